// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/extras/flat_mesh.h>
#include <meshgrad/train/tools/extras/run_pictures.h>
#include <meshgrad/train/tools/program/field_frame.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

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

}  // namespace

RunPictures::RunPictures(const Predictor& predictor, std::string split, int64_t count)
    : predictor_(predictor), split_(std::move(split)), count_(count) {
  const MeshTask* mesh = predictor_.task().find_mesh();
  const Dataset& data = predictor_.dataset();
  if (mesh == nullptr || !mesh->fields.over_time || !data.has_split(split_) || data.size(split_) == 0) return;
  steps_ = evenly_spaced(rollout_frames(mesh->for_validation(), data.trajectory(split_, 0), {}), count_);
}
RunPictures::~RunPictures() = default;

void RunPictures::add(const MeshView& mesh, const FieldFrame& field, const std::vector<uint8_t>& mask,
                      std::string caption) {
  caption = field.info.name + ", " + caption;
  if (flat_ == nullptr || mesh.index != index_) {
    flat_ = std::make_unique<FlatMesh>(mesh);
    index_ = mesh.index;
    written_ = false;
  }
  if (flat_->vertices() > FlatMesh::kMostVertices) {
    json_["pictures"].push_back(
        {{"caption", caption}, {"svg", draw_field(mesh, field, mask, caption, kPagePixels)}});
    return;
  }
  if (!std::exchange(written_, true)) json_["meshes"].push_back(flat_->json());
  const FieldComparison compared =
      compare_fields(mesh, {field.info.name, field.info.components, field.ours},
                     {field.info.name, field.info.components, field.truth}, mask);
  json_["pictures"].push_back({{"caption", caption_with_offset(caption, field.info)},
                               {"unit", field.info.unit},
                               {"mesh", json_["meshes"].size() - 1},
                               {"low", compared.low},
                               {"high", compared.high},
                               {"rmse", compared.rmse},
                               {"largest", compared.largest},
                               {"prediction", flat_->values(compared.prediction)},
                               {"truth", flat_->values(compared.truth)},
                               {"error", flat_->values(compared.error)}});
}

void RunPictures::add_step(int64_t trajectory, int64_t step, const std::vector<float>& ours,
                           const std::vector<float>& truth) {
  if (trajectory != 0 || !steps_.contains(step)) return;
  const FieldSelection& fields = predictor_.mesh_dynamics().fields;
  const TrajectoryView view = predictor_.dataset().trajectory(split_, 0);
  add(view.mesh(), split_fields(fields, ours, truth).front(), fields.predicted_mask(view.mesh()),
      fmt::format("step {} of a rollout of {}", step, view.name()));
}

nlohmann::ordered_json RunPictures::finish() {
  const MeshTask* mesh = predictor_.task().find_mesh();
  const bool steady = mesh != nullptr && !mesh->fields.over_time;
  const int64_t meshes = steady ? std::min(count_, predictor_.dataset().size(split_)) : 0;
  for (int64_t i = 0; i < meshes; ++i) {
    const TrajectoryView view = predictor_.dataset().trajectory(split_, i);
    const std::vector<float> ours = predict_steady(predictor_, view, 0);
    add(view.mesh(), split_fields(mesh->fields, ours, mesh->fields.target_values(view, 0)).front(),
        mesh->fields.predicted_mask(view.mesh()), std::string(view.name()));
  }
  return std::move(json_);
}

}  // namespace meshgrad
