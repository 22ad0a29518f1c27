// SPDX-License-Identifier: Apache-2.0
// optimizer: one fused pass over the flat parameter arena: unscale, clip, step. Adam: Kingma, Ba 2015,
// algorithm 1 with bias correction; AdamW: Loshchilov, Hutter 2019 (decay decoupled from the gradient); SGD
// with heavy-ball momentum. Weight decay of Adam and SGD is added to the gradient.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

enum class OptimizerKind : uint8_t { adam, adamw, sgd };

/// Reads gradients, updates parameters and state in place. All tensors are flat, of one length and dtype
/// (f32, or f64 for checks). The update is skipped, and nothing changes, where `non_finite` is not 0.
struct OptimizerStep {
  OptimizerKind kind = OptimizerKind::adam;
  Tensor parameters;
  Tensor gradients;
  Tensor first_moment;   ///< Adam: m. SGD: the momentum buffer, or undefined when momentum = 0
  Tensor second_moment;  ///< Adam: v
  double learning_rate = 0.0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0, momentum = 0.0;
  int64_t step = 1;             ///< 1 at the first update: bias correction
  double gradient_scale = 1.0;  ///< gradients are multiplied by this first (1 / loss scale)
  double clip_norm = 0.0;       ///< gradients times min(1, clip_norm / (norm + 1e-6)); 0: no clipping
  Tensor squared_norm;          ///< f64 scalar [1]: sum of squares of `gradients`, needed for clipping
  Tensor non_finite;            ///< i32 scalar [1], or undefined
};

struct OptimizerKernels {
  void (*step)(const OptimizerStep&, const Stream&);
};
namespace cpu {
extern const OptimizerKernels optimizer_kernels;
}

void optimizer_step(const OptimizerStep& args, const Stream& stream);

}  // namespace meshgrad
