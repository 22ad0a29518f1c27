// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/device.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

struct NoteArgs {
  StepState* state;
  const double* sum;
  const double* window_weight;
  double* seed;
};
__global__ void note_loss_kernel(NoteArgs args) {
  *args.seed = note_loss(*args.state, *args.sum, *args.window_weight);
}

struct DecideArgs {
  OptimizerSettings settings;
  StepState* state;
  double* squared_norm;
  int32_t* non_finite;
};
__global__ void decide_kernel(DecideArgs args) {
  decide(*args.state, args.settings, *args.squared_norm, *args.non_finite != 0);
  *args.squared_norm = 0.0;
  *args.non_finite = 0;
}

struct UpdateArgs {
  const StepState* state;
  int64_t elements;
  bool adam, decoupled;
  float beta1, beta2, rest1, rest2, epsilon, decay, momentum;
  float *parameters, *gradients, *first_moment, *second_moment;
  void* storage;
};

/// One parameter's way: gradient `g`, already unscaled and clipped.
__device__ inline float stepped(const UpdateArgs& args, const StepState& state, float w, float g, int64_t i) {
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
  const float m = args.beta1 * args.first_moment[i] + args.rest1 * g;
  const float v = args.beta2 * args.second_moment[i] + args.rest2 * g * g;
  args.first_moment[i] = m;
  args.second_moment[i] = v;
  return w - rate * m / (sqrtf(v) * static_cast<float>(state.second_correction) + args.epsilon);
}

/// Storage: float when there is no copy in 16 bits.
template <class Storage>
__global__ void update_kernel(UpdateArgs args) {
  const StepState& state = *args.state;
  const bool skip = state.skip != 0;
  const auto factor = static_cast<float>(state.gradient_factor);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.elements; i += stride) {
    const float g = args.gradients[i];
    args.gradients[i] = 0.0f;
    if (skip) continue;
    const float w = stepped(args, state, args.parameters[i], g * factor, i);
    args.parameters[i] = w;
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
                               // Subtracted in double: 1 - 0.999f is off by 1e-5.
                               .rest1 = static_cast<float>(1.0 - o.beta1),
                               .rest2 = static_cast<float>(1.0 - o.beta2),
                               .epsilon = static_cast<float>(o.epsilon),
                               .decay = static_cast<float>(o.weight_decay),
                               .momentum = static_cast<float>(o.momentum),
                               .parameters = pointer(args.parameters),
                               .gradients = pointer(args.gradients),
                               .first_moment = pointer(args.first_moment),
                               .second_moment = pointer(args.second_moment),
                               .storage = args.storage.defined() ? args.storage.raw() : nullptr};
  const LaunchShape shape{.blocks = persistent_blocks(stream, kernel_args.elements, kThreads, kBlocksPerSm),
                          .threads = kThreads};
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
                          args.seed.data<double>()});
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
