// SPDX-License-Identifier: Apache-2.0
// Segments of a forward pass that are computed again on the way back instead of being kept. Source of the
// method: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost" (2016).
#pragma once
#include <meshgrad/autograd/keep.h>

namespace meshgrad {

/// Ops on the tape it is given, from the variables it is given: the same ones whenever it is called. What it
/// captures by reference must outlive the tape's entries. It may read other variables of the outer tape,
/// weights and anything else; absent variables are allowed on either side.
using Segment = std::function<std::vector<Variable>(Tape&, const std::vector<Variable>&)>;

/// Runs `segment` and keeps its inputs, and what `keep` says. Backward runs it again, on an inner tape and on
/// the same variables, but for the ops whose outputs neither a backward function nor such an op reads; then
/// it walks back through it. Gradients are added where, and in the order in which, they would be without:
/// they are the same to the last bit. A fused op that is not run again redoes its hidden activations in the
/// tile.
///
/// Segments nest. On a tape that evaluates, this is a plain call.
std::vector<Variable> checkpoint(Tape& tape, std::string_view name, const Segment& segment,
                                 const std::vector<Variable>& inputs, Keep keep = Keep::inputs);

}  // namespace meshgrad
