// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/elementwise_launch.h>
#include <meshgrad/kernels/cuda/plain_gemm.h>

namespace meshgrad::cuda {
namespace {

constexpr int kTile = 64;     // rows and columns of c of a block
constexpr int kDepth = 16;    // of k at a time
constexpr int kSide = 16;     // a block is kSide x kSide threads
constexpr int kOfThread = 4;  // rows and columns of c of a thread, kSide apart
constexpr int kPitch = kTile + 1;
static_assert(kSide * kOfThread == kTile);

/// A matrix [outer, k] whose elements lie this far apart.
template <class T>
struct PlainOperand {
  const T* data;
  int64_t outer, outer_step, k_step;
};

template <class In, class Out>
struct PlainGemm {
  PlainOperand<In> a, b;
  const Out* bias;
  Out* c;
  int64_t k;
  int64_t column_tiles;
  bool accumulate;
};

/// Elements [first, first + kTile) x [k0, k0 + kDepth) to shared memory, with zeros outside of the matrix.
/// Neighbouring threads read neighbouring addresses.
template <class T>
__device__ void load_tile(float* shared, const PlainOperand<T>& from, int64_t first, int64_t k0, int64_t k) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kSide * kSide) {
    const int outer = from.k_step == 1 ? i / kDepth : i % kTile;
    const int depth = from.k_step == 1 ? i % kDepth : i / kTile;
    const bool inside = first + outer < from.outer && k0 + depth < k;
    shared[depth * kPitch + outer] =
        inside ? to_float(from.data[(first + outer) * from.outer_step + (k0 + depth) * from.k_step]) : 0.0f;
  }
}

template <class In, class Out>
__global__ void plain_gemm_kernel(PlainGemm<In, Out> args) {
  MESHGRAD_SHARED(float, a, kDepth* kPitch);
  MESHGRAD_SHARED(float, b, kDepth* kPitch);
  const int64_t row0 = int64_t{blockIdx.x} / args.column_tiles * kTile;
  const int64_t column0 = int64_t{blockIdx.x} % args.column_tiles * kTile;
  const int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;
  float sums[kOfThread][kOfThread] = {};
  for (int64_t k0 = 0; k0 < args.k; k0 += kDepth) {
    load_tile(a, args.a, row0, k0, args.k);
    load_tile(b, args.b, column0, k0, args.k);
    __syncthreads();
#pragma unroll 4
    for (int depth = 0; depth < kDepth; ++depth) {
      float right[kOfThread];
#pragma unroll
      for (int j = 0; j < kOfThread; ++j) right[j] = b[depth * kPitch + x + kSide * j];
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const float left = a[depth * kPitch + y + kSide * i];
#pragma unroll
        for (int j = 0; j < kOfThread; ++j) sums[i][j] += left * right[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
#pragma unroll
    for (int j = 0; j < kOfThread; ++j) {
      const int64_t row = row0 + y + kSide * i, column = column0 + x + kSide * j;
      if (row >= args.a.outer || column >= args.b.outer) continue;
      Out* const to = args.c + row * args.b.outer + column;
      float sum = sums[i][j];
      if (args.bias != nullptr) sum += to_float(args.bias[column]);
      if (args.accumulate) sum += to_float(*to);
      *to = to_storage<Out>(sum);
    }
  }
}

template <class T>
struct StartWithBias {
  int64_t elements, width;
  const T* bias;
  T* c;
  bool accumulate;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float v[kElements] = {};
    if (accumulate) load_floats(c + i, v);
#pragma unroll
    for (int j = 0; j < kElements; ++j) v[j] += to_float(bias[(i + j) % width]);
    store_floats(c + i, v);
  }
};

}  // namespace

void plain_gemm(const Gemm& args, const Stream& stream) {
  const GemmSizes sizes = sizes_of(args);
  const int64_t column_tiles = blocks_for(sizes.n, kTile);
  dispatch_gpu_storage(args.a.dtype(), [&]<class In>() {
    const auto start = [&]<class Out>() {
      const int64_t a_width = args.a.width(), b_width = args.b.width();
      const PlainOperand<In> a{args.a.data<In>(), sizes.m, args.transpose_a ? 1 : a_width,
                               args.transpose_a ? a_width : 1};
      const PlainOperand<In> b{args.b.data<In>(), sizes.n, args.transpose_b ? b_width : 1,
                               args.transpose_b ? 1 : b_width};
      launch("plain_gemm", plain_gemm_kernel<In, Out>,
             {.blocks = blocks_for(sizes.m, kTile) * column_tiles, .threads = kSide * kSide}, stream,
             PlainGemm<In, Out>{a, b, args.bias.data_or_null<Out>(), args.c.data<Out>(), sizes.k,
                                column_tiles, args.accumulate});
    };
    if (args.c.dtype() == args.a.dtype()) return start.template operator()<In>();
    start.template operator()<float>();
  });
}

void start_with_bias(const Gemm& args, const Stream& stream) {
  dispatch_gpu_storage(args.c.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>("start_with_bias",
                                 StartWithBias<T>{args.c.elements(), args.c.width(), args.bias.data<T>(),
                                                  args.c.data<T>(), args.accumulate},
                                 {args.c.raw()}, stream);
  });
}

}  // namespace meshgrad::cuda
