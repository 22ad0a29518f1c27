// SPDX-License-Identifier: Apache-2.0
// A group of lanes takes a row, which it reads again for each of its passes: rows are short and stay in L1.
#include <meshgrad/kernels/class_loss.h>
#include <meshgrad/kernels/cuda/slab_sums.h>
#include <meshgrad/kernels/tables.h>

#include <cmath>

namespace meshgrad::cuda {
namespace {

constexpr int kClassBlocksPerSm = 8;

/// A row of logits and its softmax at a temperature, as the lanes of its group see it. `valid` false: nothing
/// is read.
template <class T>
struct ClassRow {
  const T* logits;
  int classes, lane, lanes;
  float inverse_temperature;
  float largest = -INFINITY;
  float sum = 0.0f;  // of exponential(); NaN where a logit is

  /// The whole warp must call.
  __device__ ClassRow(const T* row, int count, int group_lanes, bool valid, float inverse = 1.0f)
      : logits(row),
        classes(valid ? count : 0),
        lane(static_cast<int>(threadIdx.x) % group_lanes),
        lanes(group_lanes),
        inverse_temperature(inverse) {
    for (int c = lane; c < classes; c += lanes) largest = fmaxf(largest, to_float(logits[c]));
    for (int step = lanes / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    for (int c = lane; c < classes; c += lanes) sum += exponential(c);
    sum = group_sum(sum, lanes);
  }
  __device__ float exponent(int c) const { return inverse_temperature * (to_float(logits[c]) - largest); }
  __device__ float exponential(int c) const { return expf(exponent(c)); }
  __device__ float share(int c) const { return exponential(c) / sum; }
  __device__ bool has(int label) const { return label >= 0 && label < classes; }
};

/// TeacherOutput as a kernel reads it.
struct TeacherArgs {
  const void* logits;  // null: no teacher
  float share, temperature;
};
/// A row of a student and its teacher's, at the same temperature.
template <class T>
struct TaughtRow {
  float portion, temperature;
  ClassRow<T> student, teacher;

  /// The whole warp must call.
  __device__ TaughtRow(const ClassRow<T>& row, const TeacherArgs& by, int64_t offset, int count, bool valid)
      : portion(by.share),
        temperature(by.temperature),
        student(row.logits, count, row.lanes, valid, 1.0f / temperature),
        teacher(static_cast<const T*>(by.logits) + offset, count, row.lanes, valid, 1.0f / temperature) {}
  /// The whole warp must call.
  __device__ float divergence() const {
    float sum = 0.0f;
    for (int c = teacher.lane; c < teacher.classes; c += teacher.lanes)
      sum += teacher.share(c) * (teacher.exponent(c) - student.exponent(c));
    return group_sum(sum, teacher.lanes) + logf(student.sum) - logf(teacher.sum);
  }
  __device__ float loss(float cross_entropy, float from_teacher) const {
    return (1.0f - portion) * cross_entropy + portion * temperature * temperature * from_teacher;
  }
  __device__ float gradient(int c, float of_cross_entropy) const {
    return (1.0f - portion) * of_cross_entropy +
           portion * temperature * (student.share(c) - teacher.share(c));
  }
};

struct ClassLossArgs {
  Rows rows;
  int classes, lanes;
  const void* logits;
  const int32_t* labels;
  const uint8_t* mask;
  const float* class_weights;  // null: 1
  TeacherArgs teacher;
  double* sums;     // [slabs]
  double* weights;  // [slabs]
};
/// Of a label that is no class 1: its loss is NaN.
__device__ inline float weight_of(const float* weights, int label, int classes) {
  return weights == nullptr || label < 0 || label >= classes ? 1.0f : weights[label];
}

/// A slab of rows: the weighted sum of their cross entropies, and that of their weights.
template <class T>
__global__ void class_loss_kernel(ClassLossArgs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  const int64_t begin = int64_t{blockIdx.x} * kSlabRows;
  const int64_t end = min(begin + kSlabRows, real_rows(args.rows));
  const int groups = kSumThreads / args.lanes;
  double sum = 0.0;
  double weight = 0.0;
  for (int64_t first = begin; first < end; first += groups) {
    const int64_t i = first + static_cast<int>(threadIdx.x) / args.lanes;
    const bool counts = i < end && args.mask[i] != 0;
    const ClassRow<T> row(static_cast<const T*>(args.logits) + i * args.classes, args.classes, args.lanes,
                          counts);
    const int label = counts ? args.labels[i] : 0;
    float loss = row.has(label) ? logf(row.sum) - row.exponent(label) : NAN;
    if (args.teacher.logits != nullptr) {
      const TaughtRow<T> taught(row, args.teacher, i * args.classes, args.classes, counts);
      loss = taught.loss(loss, taught.divergence());
    }
    if (!counts || row.lane != 0) continue;
    const auto of_class = static_cast<double>(weight_of(args.class_weights, label, args.classes));
    sum += of_class * static_cast<double>(loss);
    weight += of_class;
  }
  sum = block_sum(sums, sum);
  weight = block_sum(sums, weight);
  if (threadIdx.x != 0) return;
  args.sums[blockIdx.x] = sum;
  args.weights[blockIdx.x] = weight;
}

struct ClassGradientArgs {
  Rows rows;
  int classes, lanes;
  const void* logits;
  const int32_t* labels;
  const uint8_t* mask;
  const float* class_weights;  // null: 1
  TeacherArgs teacher;
  const double* seed;
  void* d_logits;
};
/// kTaught: with a teacher.
template <class T, bool kTaught>
__global__ void class_gradient_kernel(ClassGradientArgs args) {
  const int64_t rows = real_rows(args.rows);
  const int groups = kSumThreads / args.lanes;
  const auto seed = static_cast<float>(*args.seed);
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t i = first + static_cast<int>(threadIdx.x) / args.lanes;
    const bool counts = i < rows && args.mask[i] != 0;
    const ClassRow<T> row(static_cast<const T*>(args.logits) + i * args.classes, args.classes, args.lanes,
                          counts);
    const int label = counts ? args.labels[i] : 0;
    const float scale = row.has(label) ? seed * weight_of(args.class_weights, label, args.classes) : NAN;
    const auto write = [&](auto&& gradient) {
      T* const to = static_cast<T*>(args.d_logits) + i * args.classes;
      for (int c = row.lane; c < args.classes && i < rows; c += args.lanes) {
        const float plain = row.share(c) - (c == label ? 1.0f : 0.0f);
        to[c] = to_storage<T>(counts ? scale * gradient(c, plain) : 0.0f);
      }
    };
    if constexpr (kTaught) {
      const TaughtRow<T> taught(row, args.teacher, i * args.classes, args.classes, counts);
      write([&](int c, float plain) { return taught.gradient(c, plain); });
    } else {
      write([](int, float plain) { return plain; });
    }
  }
}

TeacherArgs teacher_of(const TeacherOutput& teacher) {
  return {teacher.values.defined() ? teacher.values.raw() : nullptr, static_cast<float>(teacher.share),
          static_cast<float>(teacher.temperature)};
}

void class_loss_forward(const ClassLossForward& args, Runtime& runtime, const Stream& stream) {
  const int64_t slabs = blocks_for(args.rows.capacity, kSlabRows);
  const int64_t classes = args.logits.width();
  const Tensor sums = empty_slab_sums(runtime, slabs);
  const Tensor weights = empty_slab_sums(runtime, slabs);
  dispatch_gpu_storage(args.logits.dtype(), [&]<class T>() {
    launch("class_loss.forward", class_loss_kernel<T>, {.blocks = slabs, .threads = kSumThreads}, stream,
           ClassLossArgs{args.rows, static_cast<int>(classes), lanes_of(classes, 1), args.logits.raw(),
                         args.labels.data<int32_t>(), args.mask.data<uint8_t>(),
                         args.class_weights.data_or_null<float>(), teacher_of(args.teacher),
                         sums.data<double>(), weights.data<double>()});
  });
  add_slabs("class_loss.finish",
            {.first = sums.data<double>(),
             .second = weights.data<double>(),
             .slabs = slabs,
             .first_sum = args.sum.data<double>(),
             .second_sum = args.weight.data<double>(),
             .add = false,
             .non_finite = nullptr},
            stream);
}

void class_loss_backward(const ClassLossBackward& args, const Stream& stream) {
  const int64_t classes = args.logits.width();
  const int lanes = lanes_of(classes, 1);
  dispatch_gpu_storage(args.logits.dtype(), [&]<class T>() {
    const bool taught = args.teacher.values.defined();
    launch("class_loss.backward", taught ? class_gradient_kernel<T, true> : class_gradient_kernel<T, false>,
           {.blocks = persistent_blocks(stream, args.rows.capacity, kSumThreads / lanes, kClassBlocksPerSm),
            .threads = kSumThreads},
           stream,
           ClassGradientArgs{args.rows, static_cast<int>(classes), lanes, args.logits.raw(),
                             args.labels.data<int32_t>(), args.mask.data<uint8_t>(),
                             args.class_weights.data_or_null<float>(), teacher_of(args.teacher),
                             args.seed.data<double>(), args.d_logits.raw()});
  });
}

}  // namespace

const ClassLossKernels class_loss_kernels{
    .class_loss_forward = class_loss_forward,
    .class_loss_backward = class_loss_backward,
};

}  // namespace meshgrad::cuda
