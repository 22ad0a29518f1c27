// SPDX-License-Identifier: Apache-2.0
// Head scores: x . weight, head by head.
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/attention.h>
#include <meshgrad/kernels/cuda/column_sums.h>

namespace meshgrad::cuda {
namespace {

template <class T>
struct ScoreArgs {
  Rows rows;
  int heads, dim, lanes;
  const T* x;
  const float* weight;
  float* scores;
};

/// One group of lanes a head of a row; heads of a row follow one another.
template <class T, int kElements>
__global__ void head_scores_kernel(ScoreArgs<T> args) {
  const attention::Place at(args.lanes);
  const int64_t items = real_rows(args.rows) * args.heads;
  for (int64_t first = int64_t{blockIdx.x} * at.groups; first < items;
       first += int64_t{gridDim.x} * at.groups) {
    const int64_t item = first + at.group;
    float sum = 0.0f;
    if (item < items) {
      const int head = static_cast<int>(item % args.heads);
      for (int column = at.lane * kElements; column < args.dim; column += args.lanes * kElements) {
        float v[kElements];
        load_floats(args.x + item * args.dim + column, v);
#pragma unroll
        for (int i = 0; i < kElements; ++i) sum += v[i] * args.weight[head * args.dim + column + i];
      }
    }
    sum = group_sum(sum, args.lanes);  // all lanes of a warp call
    if (item < items && at.lane == 0) args.scores[item] = sum;
  }
}

template <class T>
struct ScoreBackwardArgs {
  Rows rows;
  int heads, dim, width, lanes;
  const T* x;
  const float *weight, *d_scores;
  T* d_x;           // or null
  float* partials;  // [blocks, width]: d_weight
  bool accumulate;
};

/// As norm_backward: d_x row by row, and this block's partial sums of d_weight.
template <class T, int kElements, int kAccesses>
__global__ void head_scores_backward_kernel(ScoreBackwardArgs<T> args) {
  constexpr int kHeld = kAccesses > 0 ? kAccesses : 1;
  const int64_t rows = real_rows(args.rows);
  const int groups = static_cast<int>(blockDim.x) / args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  float* const partials = args.partials + int64_t{blockIdx.x} * args.width;
  RowPart<T, kElements, kAccesses> x;
  x.lanes = args.lanes;
  x.lane = static_cast<int>(threadIdx.x) % args.lanes;
  x.width = args.width;
  float d_weight[kHeld][kElements] = {};
  if constexpr (kAccesses == 0) {  // one warp per block, a column belongs to one lane
    for (int column = x.lane; column < args.width; column += 32) partials[column] = 0.0f;
  }
  for (int64_t row = int64_t{blockIdx.x} * groups + group; row < rows; row += int64_t{gridDim.x} * groups) {
    x.load(args.x + row * args.width, true);
    x.each([&](int access, int column) {
      const auto& v = x.at(access);
      // With vectors a head is made of whole ones.
      const float d_score = args.d_scores[row * args.heads + column / args.dim];
      float d_x[kElements] = {};
      T* const to = args.d_x + row * args.width + column;
      if (args.accumulate && args.d_x != nullptr) load_floats(to, d_x);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        d_x[i] += d_score * args.weight[column + i];
        if constexpr (kAccesses > 0) {
          d_weight[access][i] += d_score * v[i];
        } else {
          partials[column + i] += d_score * v[i];
        }
      }
      if (args.d_x != nullptr) store_floats(to, d_x);
    });
  }
  if constexpr (kAccesses > 0) store_partials(x, d_weight, dynamic_shared<float>(), partials);
}

}  // namespace

void head_scores_forward(const HeadScoresForward& args, const Stream& stream) {
  const int64_t dim = args.x.width() / args.heads;
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    const auto start = [&]<int kElements>() {
      const int lanes = lanes_of(dim, kElements);
      const int64_t items = args.rows.capacity * args.heads;
      launch("head_scores.forward", head_scores_kernel<T, kElements>,
             {persistent_blocks(stream, items, attention::kThreads / lanes, 16), attention::kThreads, 0},
             stream,
             ScoreArgs<T>{args.rows, static_cast<int>(args.heads), static_cast<int>(dim), lanes,
                          args.x.data<T>(), args.weight.data<float>(), args.scores.data<float>()});
    };
    if (attention::heads_fit<T>(dim, {&args.x})) {
      start.template operator()<Vector<T>::kSize>();
    } else {
      start.template operator()<1>();
    }
  });
}

void head_scores_backward(const HeadScoresBackward& args, Runtime& runtime, const Stream& stream) {
  const int64_t width = args.x.width();
  if (args.rows.capacity == 0) return;
  const int64_t blocks = partial_blocks(stream);
  const Tensor partials =
      Tensor::empty(runtime, {blocks, width}, DType::f32, Tag::workspace, "head score partials");
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    const bool vectors = attention::heads_fit<T>(width / args.heads, {&args.x, &args.d_x});
    dispatch_row<T>(width, vectors, [&]<int kElements, int kAccesses>() {
      const int lanes = kAccesses > 0 ? lanes_of(width, kElements) : 32;
      const LaunchShape shape{blocks, kAccesses > 0 ? kRowThreads : 32,
                              kAccesses > 0 ? kRowWarps * static_cast<int>(width) * 4 : 0};
      launch("head_scores.backward", head_scores_backward_kernel<T, kElements, kAccesses>, shape, stream,
             ScoreBackwardArgs<T>{args.rows, static_cast<int>(args.heads),
                                  static_cast<int>(width / args.heads), static_cast<int>(width), lanes,
                                  args.x.data<T>(), args.weight.data<float>(), args.d_scores.data<float>(),
                                  args.d_x.data_or_null<T>(), partials.data<float>(), args.accumulate_d_x});
    });
  });
  if (args.d_weight.defined()) add_partials(partials, 0, args.d_weight, stream);
}

}  // namespace meshgrad::cuda
