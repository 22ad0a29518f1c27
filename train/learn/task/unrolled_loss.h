// SPDX-License-Identifier: Apache-2.0
// The loss of samples that are unrolled over several frames: the model predicts frame after frame, each from
// the state that its own predictions led to, and gradients flow through the state. unroll.steps counts the
// frames.
//
// The state is the target fields (with second changes, their change from the frame before). It is carried as
// its error D, the predicted state minus the data, in standard deviations of the target: with prediction p
// and target t, both normalised, D' = D + p - t on predicted nodes, and 0 elsewhere, where the data is the
// boundary. The inputs of the next prediction are the data's plus D', converted to their own standard
// deviations. So, without noise, a sample's predictions are those of a rollout over the same frames, with the
// data's boundary. Noise is in the first input alone: what the first target does not correct of it
// (train.gamma below 1, and the velocity's share with second changes) is not carried on.
//
// Tensors of the batch (batch_layout.h): "target" [nodes, outputs], "mask" u8 [nodes]; for the frames after
// the first "unroll.nodes" [(frames - 1) * unrolled_rows(nodes), node_inputs] and "unroll.target" likewise,
// both from the data; "unroll.source" i32 [node_inputs], the output that an input follows, or -1; and
// "unroll.ratio" [node_inputs], how much of a normalised input one normalised output is. With targets on
// graphs "graph_target" [graphs, graph_outputs], "graph_mask" u8 [graphs], and of the frames after the first
// "unroll.graph_target" [(frames - 1) * unrolled_rows(graphs), graph_outputs].
#pragma once
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/teacher_output.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/recomputation.h>

#include <optional>

namespace meshgrad {

struct UnrolledFrames {
  int64_t count = 1;
  bool second_change =
      false;           ///< outputs change a velocity; the position's error is the accumulated velocity error
  LossForm form = {};  ///< how errors count
  std::optional<LossForm> penalty = {};  ///< how the predictions themselves do
  std::optional<LossForm> graphs = {};   ///< how errors of targets on graphs do
  TeacherOutput teacher = {};            ///< of one frame alone
};

/// Data of a frame after the first.
struct UnrolledFrame {
  Tensor nodes;           ///< [nodes, node_inputs]
  Tensor target;          ///< [nodes, outputs]
  Tensor graph_target{};  ///< [graphs, graph_outputs], where there are any
};
/// Rows of a frame in the "unroll." tensors, padded so that each frame begins at a multiple of 256 bytes.
int64_t unrolled_rows(int64_t nodes);
/// `frame` counts from 1.
UnrolledFrame unrolled_frame(const Batch& batch, int64_t frame);

/// Sum over frames of the squared errors of predicted nodes, in standard deviations of the target, or what
/// `form` makes of them, of graphs likewise, and of the penalties; for one frame the masked loss of the
/// prediction, where nodes have a target of any columns. `errors`, where it is given, gets each frame's
/// errors, [nodes, outputs]: then there must be several frames, and no recomputed sequences. Model, batch and
/// `recomputation` must outlive the tape's entries.
LossTerms unrolled_loss(Tape& tape, const Model& model, const Batch& batch, const UnrolledFrames& frames,
                        const Recomputation& recomputation, std::vector<Tensor>* errors = nullptr);

}  // namespace meshgrad
