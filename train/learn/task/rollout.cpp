// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/rollout.h>

#include <algorithm>

namespace meshgrad {
namespace {

Tensor run_model(const TrainedModel& trained, const MeshView& mesh, const Batch& batch) {
  if (trained.parts != nullptr) return trained.parts->predict(trained.model, mesh, batch.graph);
  Tape tape(trained.runtime, Tape::Mode::evaluate);
  const Values values = forward(trained.model, tape, batch.graph);
  return to_host(values.front().value(), trained.runtime.stream());
}

}  // namespace

std::vector<float> predict_next(const TrainedModel& trained, const MeshTask& task,
                                const TrajectoryView& trajectory, int64_t t, const FieldState& state) {
  const Batch batch =
      task.prediction_batch(trained.runtime, trained.precision, trajectory, t, state, trained.normalizers);
  FieldState next = state;
  SampleScratch scratch;
  task.advance(trajectory.mesh(), run_model(trained, trajectory.mesh(), batch), trained.normalizers, scratch,
               next);
  return std::move(next.current);
}

int64_t rollout_frames(const MeshTask& task, const TrajectoryView& trajectory,
                       const RolloutOptions& options) {
  const int64_t frames = task.for_validation().sample_frames(trajectory.frames()).size();
  return frames == 0 || options.steps == 0 ? frames : options.steps;
}

void roll_out(const TrainedModel& trained, const MeshTask& task, const TrajectoryView& trajectory,
              const RolloutOptions& options, const std::function<void(const RolloutFrame&)>& one_frame) {
  const int64_t count = rollout_frames(task, trajectory, options);
  if (count == 0) return;
  const int64_t first = task.for_validation().sample_frames(trajectory.frames()).first;
  const int64_t last = trajectory.frames() - 1;
  const std::vector<uint8_t> mask = task.fields.predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(task.fields.outputs);
  const std::vector<float> none;
  FieldState state = task.state_at(trajectory, first);
  for (int64_t t = first; t < first + count; ++t) {
    std::vector<float> next = predict_next(trained, task, trajectory, std::min(t, last), state);
    const std::vector<float> data = task.fields.target_values(trajectory, std::min(t + 1, last));
    for (size_t i = 0; i < next.size(); ++i) {
      const bool kinematic = task.fields.is_kinematic(trajectory.mesh().node_type[i / width]) &&
                             task.fields.is_known_change(static_cast<int64_t>(i % width));
      const bool given = options.boundary == RolloutBoundary::data || kinematic;
      if (mask[i / width] == 0 && given) next[i] = data[i];
    }
    one_frame({t + 1, next, t + 1 <= last ? data : none});
    state.advance(std::move(next));
  }
}

}  // namespace meshgrad
