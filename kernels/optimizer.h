// SPDX-License-Identifier: Apache-2.0
// optimizer: what ends a window of batches, without the host looking: the rules of step_state.h, and one
// fused pass over the flat parameter arena: unscale, clip, step, write the 16-bit copy, clear the gradients.
// Adam: Kingma, Ba 2015, algorithm 1 with bias correction; AdamW: Loshchilov, Hutter 2019 (decay decoupled
// from the gradient); SGD with heavy-ball momentum. Weight decay of Adam and SGD is added to the gradient.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/step_state.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// A StepState in device memory is a tensor u8 [kStepStateBytes].
inline constexpr int64_t kStepStateBytes = sizeof(StepState);

/// state, seed = note_loss(state, sum, window_weight)
struct NoteLoss {
  Tensor state;
  Tensor sum;            ///< f64 [1]
  Tensor window_weight;  ///< f64 [1]
  Tensor seed;           ///< f64 [1], written
};

/// decide(state, settings, squared_norm, non_finite); the two are zero afterwards.
struct OptimizerDecision {
  OptimizerSettings settings;
  Tensor state;
  Tensor squared_norm;  ///< f64 [1]
  Tensor non_finite;    ///< i32 [1]
};

/// Updates parameters and moments in place as `state` decided, and clears the gradients; where it decided to
/// skip it only clears. Flat tensors of one length; the first four of one dtype, f32 (f64 for checks).
struct OptimizerUpdate {
  OptimizerSettings settings;
  Tensor state;
  Tensor parameters;
  Tensor gradients;
  Tensor first_moment;   ///< Adam: m. SGD: the momentum buffer, or undefined when momentum = 0
  Tensor second_moment;  ///< Adam: v
  Tensor storage;        ///< f16 or bf16: the parameters rounded; or undefined
};

struct OptimizerKernels {
  void (*note_loss)(const NoteLoss&, const Stream&);
  void (*decide)(const OptimizerDecision&, const Stream&);
  void (*update)(const OptimizerUpdate&, const Stream&);
};
namespace cpu {
extern const OptimizerKernels optimizer_kernels;
}

void note_loss(const NoteLoss& args, const Stream& stream);
void optimizer_decide(const OptimizerDecision& args, const Stream& stream);
void optimizer_update(const OptimizerUpdate& args, const Stream& stream);

}  // namespace meshgrad
#pragma GCC visibility pop
