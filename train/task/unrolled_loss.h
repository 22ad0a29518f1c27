// SPDX-License-Identifier: Apache-2.0
// The loss of a batch, whose samples may be unrolled: a model predicts several frames in a row, each from the
// state that its own predictions led to, and gradients flow through the state. A frame here is one of those
// predictions, with its inputs and its loss; unroll.steps counts them.
//
// The state is the target fields (their change from the frame before, where second changes are predicted). It
// is carried as its deviation from the data in standard deviations of the target: with prediction p and
// target t, both normalised, D' = D + p - t on predicted nodes, and 0 elsewhere, where the data is the
// boundary. The inputs of the next prediction are the data's plus D', in their own standard deviations. So,
// without noise, a sample's predictions are those of a rollout over the same frames, whose boundary is the
// data's. Noise is in the first input alone: what the first target does not take back of it (train.gamma
// below 1, and the velocity's with second changes) is not carried on.
#pragma once
#include <meshgrad/train/planning/recompute.h>

namespace meshgrad {

/// Sum over a batch's frames of the squared errors of its predicted nodes: of the fields, in standard
/// deviations of the target. That of a batch without further frames is the masked loss of the prediction.
/// `errors`, if it is given, gets the errors of each frame, [nodes, outputs]: then there must be further
/// frames, and no sequences that are computed again. Model, batch and `recomputation` outlive the tape's
/// entries.
Variable batch_loss(Tape& tape, const MeshGraphNet& model, const Batch& batch,
                    const Recomputation& recomputation, std::vector<Tensor>* errors = nullptr);

}  // namespace meshgrad
