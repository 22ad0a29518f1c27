// SPDX-License-Identifier: Apache-2.0
// Predictions of a trained model in physical units: one step, a rollout, or the steady fields of a mesh.
#pragma once
#include <meshgrad/train/learn/task/evaluation.h>

namespace meshgrad {

/// Target fields one frame after t (without time: of frame t), [nodes, outputs]: predicted on predicted
/// nodes, as in `state` elsewhere.
std::vector<float> predict_next(const TrainedModel& trained, const MeshTask& task,
                                const TrajectoryView& trajectory, int64_t t, const FieldState& state);

/// Feeds predictions back as inputs, from the first frame that has the neighbours it needs. Nodes that are
/// not predicted take the data's values, or keep their initial ones. A trajectory that is too short has no
/// frame.
void roll_out(const TrainedModel& trained, const MeshTask& task, const TrajectoryView& trajectory,
              const RolloutOptions& options, const std::function<void(const RolloutFrame&)>& one_frame);

/// Frames that roll_out makes.
int64_t rollout_frames(const MeshTask& task, const TrajectoryView& trajectory, const RolloutOptions& options);

}  // namespace meshgrad
