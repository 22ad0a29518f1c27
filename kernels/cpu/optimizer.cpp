// SPDX-License-Identifier: Apache-2.0
// The fused update is bound by memory: one pass reads and writes each array once.
#include <meshgrad/kernels/cpu/row_ops.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kChunk = 16384;  // parameters of a task

StepState& state_of(const Tensor& tensor) { return *static_cast<StepState*>(tensor.raw()); }

/// Adam and AdamW, with g = gradient * gradient_factor (adam: + decay * w):
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
///   w -= step_size * m / (sqrt(v) * second_correction + epsilon)
/// The bias corrections are folded into step_size and second_correction (step_state.h).
template <class T>
void adam(const OptimizerUpdate& args, const StepState& state, int64_t begin, int64_t end) {
  T* w = args.parameters.data<T>();
  T* m = args.first_moment.data<T>();
  T* v = args.second_moment.data<T>();
  T* gradient = args.gradients.data<T>();
  const OptimizerSettings& settings = args.settings;
  const auto scale = static_cast<T>(state.gradient_factor);
  const auto beta1 = static_cast<T>(settings.beta1);
  const auto beta2 = static_cast<T>(settings.beta2);
  // Subtracted in double: 1 - 0.999f has a relative error of 1e-5.
  const auto rest1 = static_cast<T>(1.0 - settings.beta1);
  const auto rest2 = static_cast<T>(1.0 - settings.beta2);
  const auto rate = static_cast<T>(state.step_size);
  const auto correction = static_cast<T>(state.second_correction);
  const auto epsilon = static_cast<T>(settings.epsilon);
  const auto decay = static_cast<T>(settings.weight_decay);
  const bool decoupled = settings.kind == OptimizerKind::adamw;
  const auto shrink = static_cast<T>(state.shrink);
  for (int64_t i = begin; i < end; ++i) {
    T g = gradient[i] * scale;
    gradient[i] = T(0);
    if (decoupled) {
      w[i] *= shrink;
    } else {
      g += decay * w[i];
    }
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    w[i] -= rate * m[i] / (std::sqrt(v[i]) * correction + epsilon);
  }
}

/// Heavy-ball momentum: m = momentum m + g, w -= rate m. Without momentum there is no buffer, and w -= rate
/// g.
template <class T>
void sgd(const OptimizerUpdate& args, const StepState& state, int64_t begin, int64_t end) {
  T* w = args.parameters.data<T>();
  T* m = args.first_moment.data_or_null<T>();
  T* gradient = args.gradients.data<T>();
  const auto scale = static_cast<T>(state.gradient_factor);
  for (int64_t i = begin; i < end; ++i) {
    T g = gradient[i] * scale + static_cast<T>(args.settings.weight_decay) * w[i];
    gradient[i] = T(0);
    if (m != nullptr) g = m[i] = static_cast<T>(args.settings.momentum) * m[i] + g;
    w[i] -= static_cast<T>(state.step_size) * g;
  }
}

/// The 16-bit copy of the master weights that forward and backward read.
void round_to(const Tensor& storage, const float* w, int64_t begin, int64_t end) {
  dispatch_cpu_storage(storage.dtype(), [&]<class S>() {
    if constexpr (std::is_same_v<Accumulator<S>, float>)
      row_ops<S>().store(1, end - begin, w + begin, 0, storage.data<S>() + begin, 0);
  });
}

/// a += (1 - keep) (w - a), which leaves an average that equals the parameter as it is.
template <class T>
void add_to_average(const OptimizerUpdate& args, const StepState& state, int64_t begin, int64_t end) {
  const T* w = args.parameters.data<T>();
  T* a = args.average.data<T>();
  const auto part = static_cast<T>(1.0 - average_keep(args.settings.average_decay, state.steps));
  for (int64_t i = begin; i < end; ++i) a[i] += part * (w[i] - a[i]);
}

template <class T>
void update_of(const OptimizerUpdate& args, const Stream& stream) {
  const StepState& state = state_of(args.state);
  const int64_t n = args.parameters.elements();
  stream.parallel_for((n + kChunk - 1) / kChunk, [&](int64_t task) {
    const int64_t begin = task * kChunk;
    const int64_t end = std::min(n, begin + kChunk);
    // A skipped step must leave parameters and moments alone, but the next one starts from zero gradients.
    if (state.skip != 0) {
      std::fill(args.gradients.data<T>() + begin, args.gradients.data<T>() + end, T(0));
      return;
    }
    if (args.settings.kind == OptimizerKind::sgd) {
      sgd<T>(args, state, begin, end);
    } else {
      adam<T>(args, state, begin, end);
    }
    if (args.average.defined()) add_to_average<T>(args, state, begin, end);
    if constexpr (std::is_same_v<T, float>) {
      if (args.storage.defined()) round_to(args.storage, args.parameters.data<T>(), begin, end);
    }
  });
}

}  // namespace

const OptimizerKernels optimizer_kernels{
    .note_loss =
        [](const NoteLoss& args, const Stream& stream) {
          stream.run([&] {
            const double* const penalty = args.penalty.data_or_null<double>();
            const int64_t* const missing = args.missing.data_or_null<int64_t>();
            *args.seed.data<double>() =
                note_loss(state_of(args.state), *args.sum.data<double>(), penalty != nullptr ? *penalty : 0.0,
                          *args.window_weight.data<double>(), missing != nullptr ? *missing : 0);
          });
        },
    .decide =
        [](const OptimizerDecision& args, const Stream& stream) {
          stream.run([&] {
            decide(state_of(args.state), args.settings, *args.squared_norm.data<double>(),
                   *args.non_finite.data<int32_t>() != 0);
            *args.squared_norm.data<double>() = 0.0;
            *args.non_finite.data<int32_t>() = 0;
          });
        },
    .update =
        [](const OptimizerUpdate& args, const Stream& stream) {
          dispatch_storage(args.parameters.dtype(), [&]<class T>() { update_of<T>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
