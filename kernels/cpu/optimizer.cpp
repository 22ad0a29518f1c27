// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/optimizer.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kChunk = 16384;

template <class T>
void adam(const OptimizerStep& args, T scale, int64_t begin, int64_t end) {
  T* w = args.parameters.data<T>();
  T* m = args.first_moment.data<T>();
  T* v = args.second_moment.data<T>();
  const T* gradient = args.gradients.data<T>();
  const auto beta1 = static_cast<T>(args.beta1);
  const auto beta2 = static_cast<T>(args.beta2);
  // Subtracted in double: 1 - 0.999f is off by 1e-5.
  const auto rest1 = static_cast<T>(1.0 - args.beta1);
  const auto rest2 = static_cast<T>(1.0 - args.beta2);
  const auto step = static_cast<double>(args.step);
  const auto rate = static_cast<T>(args.learning_rate / (1.0 - std::pow(args.beta1, step)));
  const auto correction = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, step)));
  const auto epsilon = static_cast<T>(args.epsilon);
  const auto decay = static_cast<T>(args.weight_decay);
  const bool decoupled = args.kind == OptimizerKind::adamw;
  const auto shrink = static_cast<T>(1.0 - args.learning_rate * args.weight_decay);
  for (int64_t i = begin; i < end; ++i) {
    T g = gradient[i] * scale;
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

template <class T>
void sgd(const OptimizerStep& args, T scale, int64_t begin, int64_t end) {
  T* w = args.parameters.data<T>();
  T* m = args.first_moment.defined() ? args.first_moment.data<T>() : nullptr;
  const T* gradient = args.gradients.data<T>();
  for (int64_t i = begin; i < end; ++i) {
    T g = gradient[i] * scale + static_cast<T>(args.weight_decay) * w[i];
    if (m != nullptr) g = m[i] = static_cast<T>(args.momentum) * m[i] + g;
    w[i] -= static_cast<T>(args.learning_rate) * g;
  }
}

template <class T>
void step_of(const OptimizerStep& args, const Stream& stream) {
  if (args.non_finite.defined() && *args.non_finite.data<int32_t>() != 0) return;
  double scale = args.gradient_scale;
  if (args.clip_norm > 0.0) {
    const double norm = std::sqrt(*args.squared_norm.data<double>()) * args.gradient_scale;
    // The 1e-6 is PyTorch's clip_grad_norm_'s, so that runs can be compared.
    scale *= std::min(1.0, args.clip_norm / (norm + 1e-6));
  }
  const int64_t n = args.parameters.elements();
  stream.parallel_for((n + kChunk - 1) / kChunk, [&](int64_t task) {
    const int64_t begin = task * kChunk;
    const int64_t end = std::min(n, begin + kChunk);
    if (args.kind == OptimizerKind::sgd) {
      sgd<T>(args, static_cast<T>(scale), begin, end);
    } else {
      adam<T>(args, static_cast<T>(scale), begin, end);
    }
  });
}

}  // namespace

const OptimizerKernels optimizer_kernels{
    .step =
        [](const OptimizerStep& args, const Stream& stream) {
          dispatch_storage(args.parameters.dtype(), [&]<class T>() { step_of<T>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
