// SPDX-License-Identifier: Apache-2.0
// Predictions of a trained model for a report: the fields as data, which the page draws.
#pragma once
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/tools/extras/flat_mesh.h>
#include <meshgrad/train/tools/program/field_frame.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace meshgrad {

/// At most `count` pictures of the first target field: of evenly spaced steps of a rollout of the split's
/// first trajectory, the first and the last included, as evaluate() makes it; of steady fields, of the
/// split's first meshes.
class RunPictures {
 public:
  RunPictures(const Predictor& predictor, std::string split, int64_t count);
  ~RunPictures();
  /// EvaluateOptions::rollout_step.
  void add_step(int64_t trajectory, int64_t step, const std::vector<float>& ours,
                const std::vector<float>& truth);
  /// Predicts steady fields. {"meshes": as FlatMesh::json, "pictures": [{"caption": "velocity, step 10 of a
  /// rollout of NAME", "unit", "mesh": its number, "low", "high" of the truth, "rmse", "largest",
  /// "prediction", "truth", "error": as FlatMesh::values}]}; a mesh with too many vertices for that has
  /// {"caption", "svg"} (draw_comparison).
  nlohmann::ordered_json finish();

 private:
  void add(const MeshView& mesh, const FieldFrame& field, const std::vector<uint8_t>& mask,
           std::string caption);

  const Predictor& predictor_;
  std::string split_;
  int64_t count_;
  std::set<int64_t> steps_;
  nlohmann::ordered_json json_{{"meshes", nlohmann::ordered_json::array()},
                               {"pictures", nlohmann::ordered_json::array()}};
  std::unique_ptr<const FlatMesh> flat_;  // of the last picture
  int64_t index_ = 0;                     // likewise
  bool written_ = false;                  // into "meshes"
};

}  // namespace meshgrad
