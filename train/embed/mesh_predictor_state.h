// SPDX-License-Identifier: Apache-2.0
// The inside of a MeshPredictor.
#pragma once
#include <meshgrad/nn/model.h>
#include <meshgrad/train/embed/held_arrays.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/run/training_data.h>
#include <meshgrad/train/task/mesh_gradients.h>
#include <meshgrad/train/task/task.h>

#include <deque>
#include <optional>

namespace meshgrad {

/// What the model reads on one mesh.
struct MeshState {
  HeldMesh mesh;
  FieldState state;
  std::vector<HeldNumbers> given;            // by field of the data; targets are in `state`
  std::vector<uint8_t> set_now, set_before;  // by target
  std::vector<double> given_gradient;        // of J by `state.current`; empty: 0
  std::optional<MeshGradients> gradients;    // after backward()
};

/// What happened to the state, which backward() undoes: a step, or new boundary values.
struct RecordedStep {
  std::vector<std::byte> node_features;  // of all meshes; empty: boundary values
  int64_t mesh = 0;                      // these were of
  size_t target = 0;
};

struct MeshPredictor::Loaded {
  Runtime& runtime;
  Config config;
  TrainingData trained;
  std::shared_ptr<MemoryData> data;
  Task task;
  Model model;
  Normalizers normalizers;
  std::vector<FieldInfo> inputs, targets;
  std::deque<MeshState> meshes;
  std::vector<Dataset::MeshSizes> before;  // of each mesh in the union
  StoragePtr host, device;                 // the batch; one memory on the CPU
  Batch written, batch;
  bool uploaded = false;
  SampleScratch scratch;
  bool recording = false;
  std::vector<RecordedStep> recorded;

  Loaded(Runtime& own, const std::filesystem::path& checkpoint);
  bool steady() const { return task.as<SteadyField>() != nullptr; }
  /// Whether edges follow a field, so that each step writes them.
  bool moves() const { return task.inputs().world_position().has_value(); }
  bool second_change() const { return !steady() && config.data.predict == Prediction::second_change; }
  std::vector<double> offset_of(const std::string& field) const;
  MeshState& mesh_at(int64_t mesh);
  /// The place of a target among targets() and of its first column, or nothing.
  std::optional<std::pair<size_t, size_t>> target_at(std::string_view name) const;
  std::pair<size_t, size_t> known_target(std::string_view name) const;
  void check_size(const FieldInfo& field, size_t got, int64_t mesh) const;
  void set_target(std::string_view name, Numbers values, int64_t mesh, std::vector<float>& to, bool boundary);
  void check_all_set() const;
  void write_edges();
  void write_nodes();
  void upload();
  void step();
  Advance advance() const {
    if (steady()) return Advance::replace;
    return second_change() ? Advance::second_change : Advance::change;
  }
  void record_boundary(int64_t mesh, size_t target);
  void drop_steps();
  void walk_back(const RecordedStep& step);
  const MeshGradients& gradients_of(int64_t mesh);
  void check_second_change(std::string_view call) const;
  /// Columns of one target, from values [nodes, outputs].
  void write_columns(std::span<const double> from, size_t column, int components, WritableNumbers& to) const;
};

}  // namespace meshgrad
