// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/extras/run_pictures.h>
#include <meshgrad/train/tools/program/field_frame.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace meshgrad {
namespace {

constexpr int kPagePixels = 800;  // pixels; a page has many of them

/// `count` of the numbers 1 to `last`, evenly spaced, both ends included.
std::set<int64_t> evenly_spaced(int64_t last, int64_t count) {
  std::set<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i)
    chosen.insert(count == 1 ? last : 1 + ((last - 1) * i + (count - 1) / 2) / (count - 1));
  return chosen;
}

std::vector<RunPicture> draw_rollout(const Predictor& predictor, const std::string& split, int64_t count) {
  const MeshTask& task = predictor.mesh_dynamics();
  const TrajectoryView trajectory = predictor.dataset().trajectory(split, 0);
  task.check_something_to_predict(split, 0);
  const std::vector<uint8_t> mask = task.fields.predicted_mask(trajectory.mesh());
  const std::set<int64_t> steps = evenly_spaced(rollout_frames(task, trajectory, {}), count);
  std::vector<RunPicture> pictures;
  int64_t step = 0;
  roll_out(predictor, trajectory, {.boundary = predictor.config().rollout.boundary},
           [&](const RolloutFrame& frame) {
             if (!steps.contains(++step)) return;
             const FieldFrame field = split_fields(task.fields, frame.ours, frame.truth).front();
             const std::string caption = fmt::format("{}, step {} of a rollout", field.info.name, step);
             pictures.push_back({caption, draw_field(trajectory.mesh(), field, mask, caption, kPagePixels)});
           });
  return pictures;
}

std::vector<RunPicture> draw_steady(const Predictor& predictor, const std::string& split, int64_t count) {
  const MeshTask& task = predictor.steady_field();
  const FieldSelection& fields = task.fields;
  task.check_something_to_predict(split);
  std::vector<RunPicture> pictures;
  const int64_t meshes = std::min(count, predictor.dataset().size(split));
  for (int64_t i = 0; i < meshes; ++i) {
    const TrajectoryView trajectory = predictor.dataset().trajectory(split, i);
    const FieldFrame field =
        split_fields(fields, predict_steady(predictor, trajectory, 0), fields.target_values(trajectory, 0))
            .front();
    const std::string caption = fmt::format("{}, mesh {}", field.info.name, i);
    pictures.push_back({caption, draw_field(trajectory.mesh(), field,
                                            fields.predicted_mask(trajectory.mesh()), caption, kPagePixels)});
  }
  return pictures;
}

}  // namespace

std::vector<RunPicture> draw_predictions(const Predictor& predictor, const std::string& split,
                                         int64_t count) {
  const MeshTask* mesh = predictor.task().find_mesh();
  if (mesh == nullptr) return {};
  return mesh->fields.over_time ? draw_rollout(predictor, split, count)
                                : draw_steady(predictor, split, count);
}

}  // namespace meshgrad
