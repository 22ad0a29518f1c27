// SPDX-License-Identifier: Apache-2.0
// A thread takes a pair of columns of a row: one draw of noise.
#include <meshgrad/kernels/cuda/slab_sums.h>
#include <meshgrad/kernels/latent_noise.h>
#include <meshgrad/kernels/tables.h>

#include <cmath>
#include <numbers>

namespace meshgrad::cuda {
namespace {

constexpr int kLatentThreads = 128;
constexpr int kLatentBlocksPerSm = 8;

struct SampleArgs {
  Rows rows;
  int width;
  LatentNoise noise;
  const void *moments, *d_z;
  void *z, *d_moments;
  bool add;
};

/// The noise of columns 2 pair and the next.
__device__ inline void noise_of_pair(const LatentNoise& noise, int64_t row, int pair, float (&drawn)[2]) {
  const auto bits = noise.bits(noise.row_key(row), pair);
  const float radius = sqrtf(-2.0f * logf((static_cast<float>(bits[0]) + 1.0f) * 0x1p-32f));
  const float angle = 2.0f * std::numbers::pi_v<float> * (static_cast<float>(bits[1]) * 0x1p-32f);
  drawn[0] = radius * cosf(angle);
  drawn[1] = radius * sinf(angle);
}

/// Calls body(row, column, noise) for the columns of the pairs that this thread takes.
template <class Body>
__device__ void each_noise(const SampleArgs& args, const Body& body) {
  const int pairs = (args.width + 1) / 2;
  const int64_t items = real_rows(args.rows) * pairs;
  for (int64_t item = int64_t{blockIdx.x} * kLatentThreads + static_cast<int>(threadIdx.x); item < items;
       item += int64_t{gridDim.x} * kLatentThreads) {
    const int64_t row = item / pairs;
    const auto pair = static_cast<int>(item % pairs);
    float drawn[2] = {};
    if (args.noise.draws) noise_of_pair(args.noise, row, pair, drawn);
    for (int i = 0; i < 2; ++i)
      if (2 * pair + i < args.width) body(row, 2 * pair + i, drawn[i]);
  }
}

template <class T>
__global__ void sample_latent_kernel(SampleArgs args) {
  each_noise(args, [&](int64_t row, int column, float drawn) {
    const T* const mean = static_cast<const T*>(args.moments) + 2 * row * args.width + column;
    static_cast<T*>(args.z)[row * args.width + column] = to_storage<T>(
        to_float(mean[0]) + (args.noise.draws ? expf(to_float(mean[args.width])) * drawn : 0.0f));
  });
}

template <class T>
__device__ void add_or_store(T* to, float value, bool add) {
  *to = to_storage<T>(add ? to_float(*to) + value : value);
}

template <class T>
__global__ void sample_gradient_kernel(SampleArgs args) {
  each_noise(args, [&](int64_t row, int column, float drawn) {
    const int64_t at = 2 * row * args.width + column;
    const float gradient = to_float(static_cast<const T*>(args.d_z)[row * args.width + column]);
    const float deviation = expf(to_float(static_cast<const T*>(args.moments)[at + args.width]));
    T* const to = static_cast<T*>(args.d_moments) + at;
    add_or_store(to, gradient, args.add);
    add_or_store(to + args.width, args.noise.draws ? gradient * (deviation * drawn) : 0.0f, args.add);
  });
}

struct LatentLossArgs {
  Rows rows;
  int width, lanes;
  const void* moments;
  const float* weights;
  double* sums;  // [slabs]
};
/// A slab of rows; a group of lanes takes a row.
template <class T>
__global__ void latent_loss_kernel(LatentLossArgs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  const int64_t begin = int64_t{blockIdx.x} * kSlabRows;
  const int64_t end = min(begin + kSlabRows, real_rows(args.rows));
  const int groups = kSumThreads / args.lanes, lane = static_cast<int>(threadIdx.x) % args.lanes;
  double sum = 0.0;
  for (int64_t first = begin; first < end; first += groups) {
    const int64_t i = first + static_cast<int>(threadIdx.x) / args.lanes;
    const float weight = i < end ? args.weights[i] : 0.0f;
    const T* const mean = static_cast<const T*>(args.moments) + 2 * i * args.width;
    float of_row = 0.0f;
    for (int c = lane; c < args.width && weight != 0.0f; c += args.lanes) {
      const float m = to_float(mean[c]), l = to_float(mean[args.width + c]);
      of_row += m * m + expf(2.0f * l) - 1.0f - 2.0f * l;
    }
    of_row = group_sum(of_row, args.lanes);
    if (lane == 0 && weight != 0.0f) sum += 0.5 * static_cast<double>(weight) * static_cast<double>(of_row);
  }
  sum = block_sum(sums, sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

struct LatentGradientArgs {
  Rows rows;
  int width;
  const void* moments;
  const float* weights;
  const double* seed;
  void* d_moments;
  bool add;
};
template <class T>
__global__ void latent_gradient_kernel(LatentGradientArgs args) {
  const int columns = 2 * args.width;
  const int64_t items = real_rows(args.rows) * columns;
  const auto seed = static_cast<float>(*args.seed);
  for (int64_t item = int64_t{blockIdx.x} * kLatentThreads + static_cast<int>(threadIdx.x); item < items;
       item += int64_t{gridDim.x} * kLatentThreads) {
    const float weight = args.weights[item / columns];
    const float value = to_float(static_cast<const T*>(args.moments)[item]);
    const float slope = item % columns < args.width ? value : expf(2.0f * value) - 1.0f;
    add_or_store(static_cast<T*>(args.d_moments) + item, weight == 0.0f ? 0.0f : seed * weight * slope,
                 args.add);
  }
}

int64_t latent_blocks(const Stream& stream, int64_t items) {
  return persistent_blocks(stream, items, kLatentThreads, kLatentBlocksPerSm);
}

void sample_latent_forward(const SampleLatentForward& args, const Stream& stream) {
  const int64_t width = args.z.width();
  dispatch_gpu_storage(args.z.dtype(), [&]<class T>() {
    launch(
        "sample_latent.forward", sample_latent_kernel<T>,
        {.blocks = latent_blocks(stream, args.rows.capacity * ((width + 1) / 2)), .threads = kLatentThreads},
        stream,
        SampleArgs{args.rows, static_cast<int>(width), latent_noise(args.key), args.moments.raw(), nullptr,
                   args.z.raw(), nullptr, false});
  });
}

void sample_latent_backward(const SampleLatentBackward& args, const Stream& stream) {
  const int64_t width = args.d_z.width();
  dispatch_gpu_storage(args.d_z.dtype(), [&]<class T>() {
    launch(
        "sample_latent.backward", sample_gradient_kernel<T>,
        {.blocks = latent_blocks(stream, args.rows.capacity * ((width + 1) / 2)), .threads = kLatentThreads},
        stream,
        SampleArgs{args.rows, static_cast<int>(width), latent_noise(args.key), args.moments.raw(),
                   args.d_z.raw(), nullptr, args.d_moments.raw(), args.accumulate});
  });
}

void latent_loss_forward(const LatentLossForward& args, Runtime& runtime, const Stream& stream) {
  const int64_t slabs = blocks_for(args.rows.capacity, kSlabRows), width = args.moments.width() / 2;
  const Tensor sums = empty_slab_sums(runtime, slabs);
  dispatch_gpu_storage(args.moments.dtype(), [&]<class T>() {
    launch("latent_loss.forward", latent_loss_kernel<T>, {.blocks = slabs, .threads = kSumThreads}, stream,
           LatentLossArgs{args.rows, static_cast<int>(width), lanes_of(width, 1), args.moments.raw(),
                          args.weights.data<float>(), sums.data<double>()});
  });
  add_slabs("latent_loss.finish",
            {.first = sums.data<double>(),
             .second = nullptr,
             .slabs = slabs,
             .first_sum = args.sum.data<double>(),
             .second_sum = nullptr,
             .add = args.accumulate,
             .non_finite = nullptr},
            stream);
}

void latent_loss_backward(const LatentLossBackward& args, const Stream& stream) {
  dispatch_gpu_storage(args.moments.dtype(), [&]<class T>() {
    launch("latent_loss.backward", latent_gradient_kernel<T>,
           {.blocks = latent_blocks(stream, args.moments.elements()), .threads = kLatentThreads}, stream,
           LatentGradientArgs{args.rows, static_cast<int>(args.moments.width() / 2), args.moments.raw(),
                              args.weights.data<float>(), args.seed.data<double>(), args.d_moments.raw(),
                              args.accumulate});
  });
}

}  // namespace

const LatentKernels latent_kernels{
    .sample_latent_forward = sample_latent_forward,
    .sample_latent_backward = sample_latent_backward,
    .latent_loss_forward = latent_loss_forward,
    .latent_loss_backward = latent_loss_backward,
};

}  // namespace meshgrad::cuda
