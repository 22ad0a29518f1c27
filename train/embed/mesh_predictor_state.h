// SPDX-License-Identifier: Apache-2.0
// The inside of a MeshPredictor.
#pragma once
#include <meshgrad/kernels/solver_arrays.h>
#include <meshgrad/nn/model.h>
#include <meshgrad/train/embed/device_state.h>
#include <meshgrad/train/embed/ghost_rows.h>
#include <meshgrad/train/embed/held_arrays.h>
#include <meshgrad/train/embed/mesh_gradients.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/own_process.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/task.h>

#include <deque>
#include <functional>
#include <optional>
#include <variant>

namespace meshgrad {

/// What the model reads on one mesh.
struct MeshState {
  HeldMesh mesh;
  FieldState state;
  std::vector<HeldNumbers> given;            // by field of the data; targets are in `state`
  std::vector<Tensor> given_there{};         // f32 on the device, as they were last read
  std::vector<Tensor> next_there{};          // likewise by known change, one step after
  std::vector<uint8_t> set_now, set_before;  // by target; by frame before, then target
  std::vector<std::vector<float>> next;    // by known change: now (where it is no target) and one step after
  std::vector<uint8_t> set_next;           // likewise
  std::vector<double> given_gradient;      // of J by `state.current`; empty: 0
  std::optional<MeshGradients> gradients;  // after backward()
  /// Then, of values given for a recorded step; the last ones are those given after all steps.
  struct OfStep {
    std::vector<std::vector<double>> next;      // by known change
    std::vector<std::vector<double>> boundary;  // by target, the last that were set; empty: none
  };
  std::vector<OfStep> of_steps;
};

/// By mesh the state that its edges follow.
using StateOf = std::function<const FieldState&(size_t mesh)>;

/// What the model read at a step that backward() goes back over.
struct RecordedStep {
  std::vector<std::byte> node_features;       // of all meshes
  Tensor there, moved;                        // these on the device, where steps run there
  std::vector<std::vector<float>> positions;  // by mesh, where edges follow them
};
/// New boundary values between steps.
struct RecordedBoundary {
  size_t mesh = 0;
  size_t target = 0;
};
using Recorded = std::variant<RecordedStep, RecordedBoundary>;

/// Of meshes that a solver has partitioned: this rank's part of them.
struct PredictedParts {
  MeshParts parts;
  std::vector<MeshView> meshes;
  std::vector<GhostRows> ghosts;  // by mesh
  const Part* part = nullptr;     // of all meshes
  Batch staged{};                 // of the part, on the host
  Tensor prediction{};            // [nodes, outputs], ghosts' rows unused
};

struct MeshPredictor::Loaded {
  Runtime& runtime;
  Ranks alone;
  Ranks& ranks;
  OwnProcess process;
  Config config;
  TrainingData trained;
  std::shared_ptr<MemoryData> data;
  Task task;
  Model model;
  Normalizers normalizers;
  std::vector<FieldInfo> inputs, targets;
  Tensor graph_rows;  // the last prediction of targets on graphs, [meshes, graph_outputs]; or undefined
  std::deque<MeshState> meshes;
  std::vector<Dataset::MeshSizes> before;    // of each mesh in the union
  BatchShape room;                           // of the union
  StoragePtr host, device;                   // what is uploaded, and where to; one memory on the CPU
  Batch written, batch;                      // `written` is of the meshes as they are given
  std::unique_ptr<PredictedParts> in_parts;  // or null
  bool uploaded = false;
  std::optional<CapturedPrediction> captured;  // of `batch`, with graphs = "capture"
  std::unique_ptr<DeviceState> there;          // of steps on the device, or null: then fields are in `meshes`
  SampleScratch scratch;
  bool recording = false;
  std::vector<Recorded> recorded;

  /// `load` gives it the model and the normalisers, which are empty.
  Loaded(Runtime& own, Ranks* with, Config given, TrainingData trained_on,
         const std::function<void(Loaded&)>& load);
  /// With memory for its parameters.
  void make_model_of_config();
  /// Data without meshes.
  std::shared_ptr<MemoryData> empty_data() const;
  /// What the model reads and predicts.
  const FieldSelection& fields() const { return task.mesh().fields; }
  const std::vector<FieldInfo>& graph_targets() const { return fields().graph_targets.fields; }
  const WorldEdgeSearch& world() const { return task.mesh().world; }
  TrajectoryView view(size_t mesh) const { return task.dataset().trajectory(static_cast<int64_t>(mesh)); }
  /// Whether edges follow a field, so that each step writes them.
  bool moves() const { return fields().world_position.has_value(); }
  /// Frames of a state before its current one.
  int64_t earlier() const { return fields().earlier_frames(); }
  /// Those that are read of a target.
  int64_t frames_before(size_t target) const;
  const std::vector<FieldSelection::Input>& known_changes() const { return fields().known_changes; }
  std::vector<double> offset_of(const std::string& field) const;
  MeshState& mesh_at(int64_t mesh);
  /// The place of a target on graphs and of its first column, or nothing.
  std::optional<std::pair<size_t, size_t>> graph_target_at(std::string_view name) const;
  void get_graph_target(size_t target, size_t column, const WritableNumbers& values, int64_t mesh) const;
  /// The place of a target on nodes among targets() and of its first column, or nothing.
  std::optional<std::pair<size_t, size_t>> target_at(std::string_view name) const;
  std::pair<size_t, size_t> known_target(std::string_view name) const;
  void check_size(const FieldInfo& field, size_t got, int64_t mesh) const;
  void check_values(const FieldInfo& field, const Numbers& values, int64_t mesh, bool boundary = false) const;
  /// Of the frame that many before the current one.
  void set_target(std::string_view name, const Numbers& values, int64_t mesh, size_t age, bool boundary);
  void read_given(size_t mesh);
  void move_kinematic(size_t mesh);
  void check_all_set() const;
  /// New meshes, before their batch has memory.
  struct Held {
    std::shared_ptr<MemoryData> data;
    std::deque<MeshState> meshes{};
    std::vector<Dataset::MeshSizes> before{};
    Dataset::MeshSizes all{};
    std::vector<GivenPart> given{};  // empty: whole
  };
  int dim() const { return data->dim; }
  Held hold(std::span<const MeshArrays> arrays) const;
  void use(Held held);
  void write_union(bool whole);
  void make_parts(std::vector<GivenPart> given, const std::deque<MeshState>& of);
  /// Unless empty, and once.
  void warn(const std::string& text) {
    if (!text.empty()) runtime.log_once(LogLevel::warning, text);
  }
  /// On the CPU `on_host` itself.
  StoragePtr device_memory(int64_t bytes, const StoragePtr& on_host) const;
  void fill_ghosts();
  void write_edges(const StateOf& states);
  /// Whether the device finds world edges.
  bool searches() const { return world().any() && runtime.stream().on_gpu(); }
  void make_world_room(int64_t edges);
  std::vector<MeshEdges> world_edges_at(const StateOf& states);
  void find_world_edges(const StateOf& states);
  void write_world_search(const StateOf& states);
  std::string name_of_most_crowded(const StateOf& states);
  bool world_edges_fit(const StateOf& states);
  void write_nodes();
  void upload();
  /// Writes what the model reads, and uploads it; `nodes` writes the node features.
  void write_inputs(const StateOf& states, const std::function<void()>& nodes);
  ModelOutput run_model();
  void step();
  /// Whether fields stay on the device: of whole meshes without world edges, on a GPU.
  bool steps_on_device() const;
  void make_device_state(const std::deque<MeshState>& of);
  int64_t columns_of(const FieldSelection::Input& input) const;
  Tensor rows_there(const Tensor& of_all, size_t mesh) const;
  void write_edges_there();
  /// Columns of edge features from `column` on.
  void write_displacements_there(const Tensor& positions, int64_t column);
  void read_moved_there();
  RecordedStep recorded_there() const;
  /// Writes what the model read at a step. By mesh the positions that its edges followed.
  std::vector<std::vector<float>> play_back_there(const RecordedStep& step);
  void read_positions_there();
  void set_target_there(size_t target, const Numbers& values, size_t mesh, size_t age, bool boundary);
  void get_target_there(size_t target, const WritableNumbers& values, size_t mesh) const;
  void read_given_there(size_t mesh);
  void set_next_there(size_t change, const Numbers& values, size_t mesh);
  void write_nodes_there();
  /// Columns of one field, which become node features from `column` on; returns the column after them.
  int64_t write_columns_there(const FieldInfo& field, int64_t column, MapColumns args);
  int64_t write_known_there(int64_t column);
  void move_kinematic_there();
  const Tensor& given_there(size_t mesh, std::string_view field) const;
  /// The fields now, [nodes, outputs], from the device; empty where they are not there.
  std::vector<float> fetched_state(size_t mesh) const;
  void step_on_device();
  void record_boundary(int64_t mesh, size_t target);
  RecordedStep step_to_record();
  int64_t recorded_steps() const;
  void drop_steps();
  void walk_back();
  void walk_back(const RecordedStep& step);
  void walk_back(const RecordedBoundary& boundary, size_t before_step);
  /// Of the normalised prediction, [rows, outputs], and the state before the step without the model's part.
  std::vector<double> seed_of_step();
  void run_backward(const StateOf& states, std::vector<double> seed);
  StateOf states_now() const;
  /// Which have only the positions that edges follow, by mesh; valid as long as these.
  std::vector<FieldState> states_of(const std::vector<std::vector<float>>& moved);
  /// The positions that a mesh's edges follow; empty for one that does not move. Valid until the next call.
  std::span<const float> positions_of(const StateOf& states, size_t mesh);
  void gather_gradients();
  void gather_moved_ghosts();
  MeshGradients& gradients_of(int64_t mesh);
  const MeshState::OfStep& of_step(std::string_view call, int64_t mesh, int64_t step, int64_t last);
  /// The place of a field among known_changes().
  size_t known_change(std::string_view call, std::string_view name) const;
  void check_earlier(std::string_view call, int64_t steps_before) const;
  /// Columns of one target, from values [nodes, outputs].
  void write_columns(std::span<const double> from, size_t column, const FieldInfo& field,
                     const WritableNumbers& to) const;
};

}  // namespace meshgrad
