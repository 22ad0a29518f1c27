// SPDX-License-Identifier: Apache-2.0
// optimizer: the end of a step, without the host reading device memory: the rules of step_state.h, and one
// fused pass over the flat parameter arena: unscale, clip, update, write the 16-bit copy, add to the moving
// average, clear the gradients. Adam: Kingma, Ba 2015, algorithm 1 with bias correction; AdamW: Loshchilov,
// Hutter 2019 (decay decoupled from the gradient); SGD with heavy-ball momentum. Weight decay of Adam and SGD
// is added to the gradient.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/step_state.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// A StepState in device memory is a u8 tensor [kStepStateBytes].
inline constexpr int64_t kStepStateBytes = sizeof(StepState);

/// Runs note_loss of step_state.h on the device: adds a micro-batch's loss to the step's, and writes the seed
/// of its backward pass, loss scale / window weight.
struct NoteLoss {
  Tensor state;          ///< u8 [kStepStateBytes]
  Tensor sum;            ///< f64 [1]: loss of the micro-batch, as a sum over its terms
  Tensor window_weight;  ///< f64 [1]: loss terms of all micro-batches of the step
  Tensor seed;           ///< f64 [1], written
  Tensor penalty = {};   ///< f64 [1]: the part of `sum` that is a penalty; undefined: 0
  Tensor missing = {};   ///< i64 [1]: edges that the batch had no room for; undefined: 0
};

/// Runs decide of step_state.h on the device: whether the step is taken, and with which factors. squared_norm
/// and non_finite are zero afterwards, ready for the next step.
struct OptimizerDecision {
  OptimizerSettings settings;
  Tensor state;         ///< u8 [kStepStateBytes]
  Tensor squared_norm;  ///< f64 [1]: of the gradients, still scaled
  Tensor non_finite;    ///< i32 [1]: not 0 when a gradient is not finite
};

/// Updates parameters and moments in place with the factors in `state`, and clears the gradients. After a
/// decision to skip it only clears. Flat tensors of one length [n]; parameters, gradients and moments are f32
/// (f64 for checks).
struct OptimizerUpdate {
  OptimizerSettings settings;
  Tensor state;
  Tensor parameters;  ///< master weights
  Tensor gradients;
  Tensor first_moment;   ///< Adam: m. SGD: the momentum buffer, or undefined when momentum = 0
  Tensor second_moment;  ///< Adam: v
  Tensor storage;        ///< f16 or bf16: the rounded copy for forward and backward; or undefined
  Tensor average;        ///< exponential moving average of the parameters (average_keep); or undefined
};

/// Of the first two none: they pass a few scalars.
Work work_of(const NoteLoss& args);
Work work_of(const OptimizerDecision& args);
Work work_of(const OptimizerUpdate& args);

struct OptimizerKernels {
  void (*note_loss)(const NoteLoss&, const Stream&);
  void (*decide)(const OptimizerDecision&, const Stream&);
  void (*update)(const OptimizerUpdate&, const Stream&);
};

namespace kernels {
void note_loss(const NoteLoss& args, const Stream& stream);
void optimizer_decide(const OptimizerDecision& args, const Stream& stream);
void optimizer_update(const OptimizerUpdate& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
