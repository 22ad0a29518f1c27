// SPDX-License-Identifier: Apache-2.0
// The optimizer step without a host synchronisation: the loss, the skip decision and the step sizes are in
// StepState in device memory (step_state.h, shared with the CPU), and one launch updates a whole array of
// parameters.
#include <meshgrad/kernels/cuda/device.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateBlocksPerSm = 8;

struct NoteArgs {
  StepState* state;
  const double* sum;
  const double* window_weight;
  double* seed;
  const double* penalty;   // or null
  const int64_t* missing;  // or null
};
__global__ void note_loss_kernel(NoteArgs args) {
  const double penalty = args.penalty != nullptr ? *args.penalty : 0.0;
  const int64_t missing = args.missing != nullptr ? *args.missing : 0;
  *args.seed = note_loss(*args.state, *args.sum, penalty, *args.window_weight, missing);
}

struct DecideArgs {
  OptimizerSettings settings;
  StepState* state;
  double* squared_norm;
  int32_t* non_finite;
};
/// One thread: decides on skipping and clipping, then clears the accumulators for the next step.
__global__ void decide_kernel(DecideArgs args) {
  decide(*args.state, args.settings, *args.squared_norm, *args.non_finite != 0);
  *args.squared_norm = 0.0;
  *args.non_finite = 0;
}

struct UpdateArgs {
  const StepState* state;
  int64_t elements;
  bool adam, decoupled;
  float beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon, decay, momentum;
  double average_decay;
  float *parameters, *gradients, *first_moment, *second_moment, *average;
  void* storage;
};

/// The new value of parameter i. `g` is its gradient, already unscaled and clipped. step_size and
/// second_correction of the state contain Adam's bias corrections, computed once per step in f64.
///
///   SGD    g += decay w;  m = momentum m + g;  w -= rate m
///   Adam   g += decay w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///          w -= rate m / (sqrt(v) second_correction + epsilon)
///   AdamW  as Adam, with w *= shrink instead of g += decay w
/// Kingma & Ba, 2015; Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019.
__device__ inline float updated_parameter(const UpdateArgs& args, const StepState& state, float w, float g,
                                          int64_t i) {
  const auto rate = static_cast<float>(state.step_size);
  if (!args.adam) {
    g += args.decay * w;
    if (args.first_moment != nullptr) g = args.first_moment[i] = args.momentum * args.first_moment[i] + g;
    return w - rate * g;
  }
  if (args.decoupled) {
    w *= static_cast<float>(state.shrink);
  } else {
    g += args.decay * w;
  }
  const float m = args.beta1 * args.first_moment[i] + args.one_minus_beta1 * g;
  const float v = args.beta2 * args.second_moment[i] + args.one_minus_beta2 * g * g;
  args.first_moment[i] = m;
  args.second_moment[i] = v;
  return w - rate * m / (sqrtf(v) * static_cast<float>(state.second_correction) + args.epsilon);
}

/// Updates the f32 master weights, clears the gradients and rounds the weights to their 16-bit copy. Storage
/// is float when there is no such copy. The average moves towards the new weights:
/// a += (1 - keep) (w - a). A skipped step only clears the gradients.
template <class Storage>
__global__ void update_kernel(UpdateArgs args) {
  const StepState& state = *args.state;
  const bool skip = state.skip != 0;
  const auto factor = static_cast<float>(state.gradient_factor);
  const auto part = static_cast<float>(1.0 - average_keep(args.average_decay, state.steps));
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.elements; i += stride) {
    const float g = args.gradients[i];
    args.gradients[i] = 0.0f;
    if (skip) continue;
    const float w = updated_parameter(args, state, args.parameters[i], g * factor, i);
    args.parameters[i] = w;
    if (args.average != nullptr) args.average[i] += part * (w - args.average[i]);
    if constexpr (sizeof(Storage) == 2) static_cast<Storage*>(args.storage)[i] = to_storage<Storage>(w);
  }
}

StepState* state_of(const Tensor& tensor) { return static_cast<StepState*>(tensor.raw()); }

void update(const OptimizerUpdate& args, const Stream& stream) {
  const OptimizerSettings& o = args.settings;
  const auto pointer = [](const Tensor& tensor) { return tensor.data_or_null<float>(); };
  const UpdateArgs kernel_args{.state = state_of(args.state),
                               .elements = args.parameters.elements(),
                               .adam = o.kind != OptimizerKind::sgd,
                               .decoupled = o.kind == OptimizerKind::adamw,
                               .beta1 = static_cast<float>(o.beta1),
                               .beta2 = static_cast<float>(o.beta2),
                               // Subtracted in f64: 1 - 0.999f has a relative error of 1e-5.
                               .one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
                               .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
                               .epsilon = static_cast<float>(o.epsilon),
                               .decay = static_cast<float>(o.weight_decay),
                               .momentum = static_cast<float>(o.momentum),
                               .average_decay = o.average_decay,
                               .parameters = pointer(args.parameters),
                               .gradients = pointer(args.gradients),
                               .first_moment = pointer(args.first_moment),
                               .second_moment = pointer(args.second_moment),
                               .average = pointer(args.average),
                               .storage = args.storage.defined() ? args.storage.raw() : nullptr};
  const LaunchShape shape{
      .blocks = persistent_blocks(stream, kernel_args.elements, kUpdateThreads, kUpdateBlocksPerSm),
      .threads = kUpdateThreads};
  dispatch_gpu_storage(args.storage.defined() ? args.storage.dtype() : DType::f32, [&]<class T>() {
    launch("optimizer.update", update_kernel<T>, shape, stream, kernel_args);
  });
}

}  // namespace

const OptimizerKernels optimizer_kernels{
    .note_loss =
        [](const NoteLoss& args, const Stream& stream) {
          launch("optimizer.note_loss", note_loss_kernel, {.blocks = 1, .threads = 1}, stream,
                 NoteArgs{state_of(args.state), args.sum.data<double>(), args.window_weight.data<double>(),
                          args.seed.data<double>(), args.penalty.data_or_null<double>(),
                          args.missing.data_or_null<int64_t>()});
        },
    .decide =
        [](const OptimizerDecision& args, const Stream& stream) {
          launch("optimizer.decide", decide_kernel, {.blocks = 1, .threads = 1}, stream,
                 DecideArgs{args.settings, state_of(args.state), args.squared_norm.data<double>(),
                            args.non_finite.data<int32_t>()});
        },
    .update = update,
};

}  // namespace meshgrad::cuda
