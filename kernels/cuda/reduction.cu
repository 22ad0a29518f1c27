// SPDX-License-Identifier: Apache-2.0
// f64 keeps the rounding of a sum over 1e8 values far below that of its f32 terms.
#include <meshgrad/kernels/cuda/slab_sums.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int64_t kElementsPerBlock = 8192;  // a slab of the sum of squares
constexpr int kReductionBlocksPerSm = 8;

/// prediction[i] - target[i]; a null target counts as 0.
template <class T>
__device__ double error_at(const T* prediction, const float* target, int64_t i) {
  const auto value = static_cast<double>(to_float(prediction[i]));
  return target != nullptr ? value - static_cast<double>(target[i]) : value;
}

/// A LossForm on the device; a null pointer is all 1.
struct DeviceForm {
  LossKind kind;
  double delta, factor;
  const float* rows;
  const float* columns;

  explicit DeviceForm(const LossForm& form)
      : kind(form.kind),
        delta(form.delta),
        factor(form.factor),
        rows(form.row_weights.data_or_null<float>()),
        columns(form.column_weights.data_or_null<float>()) {}
  __device__ double row(int64_t i) const { return rows != nullptr ? static_cast<double>(rows[i]) : 1.0; }
  __device__ double column(int64_t j) const {
    return columns != nullptr ? static_cast<double>(columns[j]) : 1.0;
  }
};

struct LossArgs {
  Rows rows;
  int64_t width;
  const void* prediction;
  const float* target;  // or null
  const uint8_t* mask;
  double* sums;     // [slabs]
  double* weights;  // [slabs]
  DeviceForm form;  // unless the loss is plain
};
/// A slab of rows: sum of squared errors over the rows in the mask, and their number. A thread takes whole
/// rows, since predictions have few columns. Plain squares are compiled alone: neither their time nor their
/// bits depend on weights.
template <class T, bool plain>
__global__ void loss_kernel(LossArgs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  const int64_t rows = real_rows(args.rows);
  const int64_t begin = int64_t{blockIdx.x} * kSlabRows;
  const int64_t end = min(begin + kSlabRows, rows);
  const T* prediction = static_cast<const T*>(args.prediction);
  double sum = 0.0;
  double weight = 0.0;
  for (int64_t row = begin + threadIdx.x; row < end; row += kSumThreads) {
    if (args.mask[row] == 0) continue;
    if constexpr (plain) {
      weight += 1.0;
      for (int64_t i = row * args.width; i < (row + 1) * args.width; ++i) {
        const double error = error_at(prediction, args.target, i);
        sum += error * error;
      }
    } else {
      const double share = args.form.row(row);
      if (share == 0.0) continue;
      weight += share;
      double row_sum = 0.0;
      for (int64_t column = 0; column < args.width; ++column) {
        const double error = error_at(prediction, args.target, row * args.width + column);
        row_sum += args.form.column(column) * loss_of(args.form.kind, args.form.delta, error);
      }
      sum += args.form.factor * share * row_sum;
    }
  }
  sum = block_sum(sums, sum);
  weight = block_sum(sums, weight);
  if (threadIdx.x != 0) return;
  args.sums[blockIdx.x] = sum;
  args.weights[blockIdx.x] = weight;
}

struct LossGradientArgs {
  Rows rows;
  int64_t width;
  const void* prediction;
  const float* target;  // or null
  const uint8_t* mask;
  const double* seed;
  void* d_prediction;
  DeviceForm form;  // unless the loss is plain
};
/// d_prediction = 2 seed (prediction - target) or the form's slope, 0 outside the mask; a thread per element.
template <class T, bool plain>
__global__ void loss_gradient_kernel(LossGradientArgs args) {
  const int64_t rows = real_rows(args.rows);
  const double factor = 2.0 * *args.seed;
  const T* prediction = static_cast<const T*>(args.prediction);
  T* d_prediction = static_cast<T*>(args.d_prediction);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * args.width; i += stride) {
    float gradient = 0.0f;
    const int64_t row = i / args.width;
    if (args.mask[row] != 0) {
      if constexpr (plain) {
        const double error = error_at(prediction, args.target, i);
        gradient = static_cast<float>(factor * error);
      } else if (const double share = args.form.row(row); share != 0.0) {
        const double slope =
            loss_slope(args.form.kind, args.form.delta, error_at(prediction, args.target, i));
        gradient = static_cast<float>(*args.seed * args.form.factor * share *
                                      args.form.column(i - row * args.width) * slope);
      }
    }
    d_prediction[i] = to_storage<T>(gradient);
  }
}

struct SquareArgs {
  int64_t elements;
  const void* x;
  double* sums;  // [slabs]
};
template <class T>
__global__ void squares_kernel(SquareArgs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  const int64_t begin = int64_t{blockIdx.x} * kElementsPerBlock;
  const int64_t end = min(begin + kElementsPerBlock, args.elements);
  const T* x = static_cast<const T*>(args.x);
  double sum = 0.0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) {
    const auto value = static_cast<double>(to_float(x[i]));
    sum += value * value;
  }
  sum = block_sum(sums, sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

void masked_loss_forward(const MaskedLossForward& args, Runtime& runtime, const Stream& stream) {
  const int64_t slabs = blocks_for(args.rows.capacity, kSlabRows);
  const Tensor sums = empty_slab_sums(runtime, slabs);
  const Tensor weights = empty_slab_sums(runtime, slabs);
  dispatch_gpu_storage(args.prediction.dtype(), [&]<class T>() {
    launch("masked_loss.forward", args.form.plain() ? loss_kernel<T, true> : loss_kernel<T, false>,
           {.blocks = slabs, .threads = kSumThreads}, stream,
           LossArgs{args.rows, args.prediction.width(), args.prediction.raw(),
                    args.target.data_or_null<float>(), args.mask.data<uint8_t>(), sums.data<double>(),
                    weights.data<double>(), DeviceForm(args.form)});
  });
  add_slabs("masked_loss.finish",
            {.first = sums.data<double>(),
             .second = weights.data<double>(),
             .slabs = slabs,
             .first_sum = args.sum.data<double>(),
             .second_sum = args.weight.data<double>(),
             .add = args.accumulate,
             .non_finite = nullptr},
            stream);
}

void masked_loss_backward(const MaskedLossBackward& args, const Stream& stream) {
  const int64_t elements = args.rows.capacity * args.prediction.width();
  dispatch_gpu_storage(args.prediction.dtype(), [&]<class T>() {
    launch("masked_loss.backward",
           args.form.plain() ? loss_gradient_kernel<T, true> : loss_gradient_kernel<T, false>,
           {.blocks = persistent_blocks(stream, elements, kSumThreads, kReductionBlocksPerSm),
            .threads = kSumThreads},
           stream,
           LossGradientArgs{args.rows, args.prediction.width(), args.prediction.raw(),
                            args.target.data_or_null<float>(), args.mask.data<uint8_t>(),
                            args.seed.data<double>(), args.d_prediction.raw(), DeviceForm(args.form)});
  });
}

void sum_of_squares(const SumOfSquares& args, Runtime& runtime, const Stream& stream) {
  const int64_t slabs = blocks_for(args.x.elements(), kElementsPerBlock);
  const Tensor sums = empty_slab_sums(runtime, slabs);
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    launch("sum_of_squares", squares_kernel<T>, {.blocks = slabs, .threads = kSumThreads}, stream,
           SquareArgs{args.x.elements(), args.x.raw(), sums.data<double>()});
  });
  add_slabs("sum_of_squares.finish",
            {.first = sums.data<double>(),
             .second = nullptr,
             .slabs = slabs,
             .first_sum = args.sum.data<double>(),
             .second_sum = nullptr,
             .add = true,
             .non_finite = args.non_finite.data_or_null<int32_t>()},
            stream);
}

}  // namespace

const ReductionKernels reduction_kernels{
    .masked_loss_forward = masked_loss_forward,
    .masked_loss_backward = masked_loss_backward,
    .sum_of_squares = sum_of_squares,
};

}  // namespace meshgrad::cuda
