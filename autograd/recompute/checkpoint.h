// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (checkpointing): segments of the forward pass that are recomputed in the backward
// pass instead of saving their activations. Method: Chen, Xu, Zhang, Guestrin, "Training deep nets with
// sublinear memory cost" (2016).
#pragma once
#include <meshgrad/autograd/recompute/save_policy.h>
#include <meshgrad/kernels/mlp.h>

#include <functional>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Inputs or outputs of a segment: at most kMaxMlpInputs, or InvalidArgument is thrown.
using Variables = PerInput<Variable>;

using Segment = std::function<Variables(Tape&, const Variables&)>;

/// Runs `segment` and saves only its inputs, and the outputs that `saves` names. Backward recomputes it, on
/// an inner tape and the same variables, and walks back through it. Ops whose outputs neither a backward
/// function nor another recomputed op reads are skipped. Gradients are accumulated in the same places and
/// order as without recomputation, so they are bit-identical. A fused op that is skipped recomputes its
/// hidden activations inside its backward kernel.
///
/// `segment` calls ops on the tape and variables that it is passed, and must call the same ops every time.
/// What it captures by reference must outlive the tape's entries. It may also read other variables of the
/// outer tape, weights and constants. Inputs and outputs may be absent variables.
///
/// Segments nest. On a tape that evaluates, this is a plain call. Throws InvalidArgument in backward when the
/// second run calls other ops than the first.
Variables checkpoint(Tape& tape, std::string_view name, const Segment& segment, const Variables& inputs,
                     SavePolicy saves = SavePolicy::inputs);

}  // namespace meshgrad
#pragma GCC visibility pop
