// SPDX-License-Identifier: Apache-2.0
// MeshPredictor: predicts on meshes in memory with the model of a checkpoint. It needs no data set: features
// of edges, node types, normalisation and steps in time are made by the code that trains.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/embed/arrays.h>

#pragma GCC visibility push(default)
namespace meshgrad {

struct Config;
struct Model;
struct ModelSizes;
struct Normalizers;
struct OnlineOptions;
class OnlineTrainer;
class Ranks;
class Runtime;

/// Of the value that is farthest outside of the range that its field had in training: how far, in widths of
/// that range.
struct RangeExcess {
  double excess = 0;         ///< 0: all are within; infinite for a value that is not finite
  std::string_view field{};  ///< valid as long as the predictor; empty: all are within
};

/// One thread at a time may use it, and no other may use its Runtime meanwhile. In a child of fork() one
/// on a GPU or with several ranks stays the parent's: its functions throw InvalidArgument, and its end does
/// nothing. The parent's Runtime and Ranks are left alone there: end the child by _exit, or call exec.
class MeshPredictor {
 public:
  /// `checkpoint` is a file that train wrote, of this or an earlier version; one that does not describe its
  /// fields is refused. The runtime outlives it. Throws DataError, DeviceError and OutOfMemory.
  ///
  /// `ranks`, which outlive it, are needed for meshes in parts (MeshArrays::in_parts). On such meshes
  /// set_mesh, set_meshes, predict, record_steps and backward are collective: all ranks call them in the same
  /// order.
  MeshPredictor(Runtime& runtime, const std::filesystem::path& checkpoint, Ranks* ranks = nullptr);
  /// Of the trainer's weights and normalisers as they are now, which are copied, on its runtime and ranks:
  /// the bits of OnlineTrainer::save and the constructor above, without a file. Later steps of the trainer do
  /// not change it, and the trainer may end before it. With ranks it is collective, as save. Throws as the
  /// one above.
  explicit MeshPredictor(const OnlineTrainer& trainer);
  /// With a model of the program's own, from mesh_model_sizes' inputs to its outputs, both normalised, and
  /// the normalisers of these. Of `config` count task, data (but no file) and precision, in which the
  /// parameters are stored; of `options` dim, dt and fields. The parameters are shared: the next prediction
  /// sees what is written to them. Throws ConfigError, and InvalidArgument for a model without memory and
  /// normalisers of other widths; predict() throws it for a model of other inputs.
  MeshPredictor(Runtime& runtime, const Config& config, const OnlineOptions& options, Model model,
                const Normalizers& normalizers, Ranks* ranks = nullptr);
  ~MeshPredictor();
  MeshPredictor(MeshPredictor&&) noexcept;
  MeshPredictor& operator=(MeshPredictor&&) noexcept;

  /// How the model was trained.
  const Config& config() const;
  int dim() const;                                ///< of positions: 2 or 3
  double dt() const;                              ///< seconds that one step covers; 0 when unknown
  const std::vector<FieldInfo>& inputs() const;   ///< fields to set, on nodes or on the whole mesh ("graph")
  const std::vector<FieldInfo>& targets() const;  ///< fields that are predicted, on nodes
  const std::vector<FieldInfo>& graph_targets() const;  ///< on the whole mesh: what get_field has of them
  /// Frames before the current one that set_previous_field gives of each target.
  int64_t earlier_frames() const;

  /// One mesh instead of those before. Its fields are unset. Positions, and node types of 32 bits, stay
  /// borrowed; cells and edges are read now, and the edges of data.hops and data.period made. Throws
  /// DataError for node numbers and types that do not exist.
  void set_mesh(const MeshArrays& mesh) { set_meshes({&mesh, 1}); }
  /// Several meshes that are predicted together, numbered from 0; all in parts, or all whole. Fields of a
  /// part have rows for its ghosts, too: predict() fills those of targets, others are not read.
  void set_meshes(std::span<const MeshArrays> meshes);
  /// Reads the positions again, after the host application has changed them.
  void positions_changed();

  /// Sets a field, [nodes, components], or [components] of a field on the whole mesh. A target is the state
  /// to step from, and is read now; with task.name = "steady_field" it is optional, the values of nodes that
  /// are not predicted. Any other input stays borrowed, and is read by each prediction. Throws
  /// InvalidArgument for another name or size.
  void set_field(std::string_view name, Numbers values, int64_t mesh = 0);
  /// A target one step before; needed where its second change is predicted (data.predict). With data.history
  /// = k, targets are needed up to k - 1 steps before, and k where second changes are predicted; predict()
  /// then hands them on. Throws InvalidArgument for another `steps_before`.
  void set_previous_field(std::string_view name, Numbers values, int64_t mesh = 0, int64_t steps_before = 1);
  /// With data.kinematic_types: data.world_position, or without it each target, one step after; only nodes of
  /// these types are read, now. Each predict() needs new ones, and moves these nodes there where the field is
  /// a target. Throws InvalidArgument for another field.
  void set_next_field(std::string_view name, Numbers values, int64_t mesh = 0);
  /// A target at the nodes that are not predicted; `values` are those of all nodes.
  void set_boundary(std::string_view name, Numbers values, int64_t mesh = 0);

  /// Predicts `steps` steps, each from the one before. Nodes that are not predicted keep their values. With
  /// task.name = "steady_field" the one step is the solution; with data.kinematic_types a call is one step.
  /// Returns when the result is there; on a GPU and the application's own stream when it is queued. Throws
  /// InvalidArgument when a field is not set.
  ///
  /// With graphs = "capture", on a GPU and a whole mesh, the second step on the mesh records the model's
  /// kernels and later ones replay them: a model of the program's own then does the same in every call.
  void predict(int64_t steps = 1);
  /// A target as it stands now, [nodes, components], or [components] of one on the whole mesh, which
  /// predict() gives. Throws InvalidArgument when it was neither set nor predicted.
  void get_field(std::string_view name, WritableNumbers values, int64_t mesh = 0) const;

  /// Of the model's inputs on a mesh as they are set now, or as predict() has left them: whether the model
  /// has learned such values. Throws InvalidArgument for a checkpoint that does not say what it has learned:
  /// of an earlier version, or of a program's own model. Of a mesh in parts, of this rank's own nodes.
  RangeExcess range_excess(int64_t mesh = 0) const;

  // Gradients of a scalar J of the predicted fields: the adjoint of predict(). They pass through the model,
  // normalisers, edge features and all steps that were recorded.

  /// Whether predict() records its steps: a copy of the node features each, and of the positions that edges
  /// follow (data.world_position). Steps recorded so far are dropped; so they are by a new mesh, by
  /// positions_changed, and by set_field and set_previous_field of a target, where the next sequence of steps
  /// begins.
  void record_steps(bool on);
  int64_t recorded_steps() const;
  /// dJ/d(target as it stands now), [nodes, components]; read now. A target that none is given for does not
  /// count in J. The next predict() drops it.
  void set_gradient(std::string_view name, Numbers values, int64_t mesh = 0);
  /// Walks back over the recorded steps: one forward and one backward pass each. Gradients have the model's
  /// precision. World edges stay those that each step found. On meshes in parts J is the sum over the ranks,
  /// given at their own nodes; gradients at ghosts are then those of their nodes, and those of fields on the
  /// whole mesh are the same on all ranks. Throws InvalidArgument when no step is recorded, or not as many on
  /// every rank.
  void backward();
  /// dJ/d(field), of the last backward(), in the field's shape. Of a target: the state from which the
  /// recorded steps began; where set_boundary gave new values since, the ones before have a gradient of 0. Of
  /// another input: summed over the steps.
  void get_gradient(std::string_view name, WritableNumbers values, int64_t mesh = 0) const;
  /// Of a target some steps before (set_previous_field).
  void get_previous_gradient(std::string_view name, WritableNumbers values, int64_t mesh = 0,
                             int64_t steps_before = 1) const;
  /// Of the values that set_next_field gave for a recorded step, counted from 0: 0 at nodes that are not of
  /// data.kinematic_types. In parts the rows of ghosts are 0, as in get_boundary_gradient.
  void get_next_gradient(std::string_view name, WritableNumbers values, int64_t mesh = 0,
                         int64_t step = 0) const;
  /// Of the values that set_boundary gave before recorded step `step`, counted from 0, or, where `step` is
  /// recorded_steps(), after the last one: 0 at predicted nodes, and where it was not called.
  void get_boundary_gradient(std::string_view name, WritableNumbers values, int64_t mesh = 0,
                             int64_t step = 0) const;
  /// dJ/d(positions), [nodes, dim]; of a mesh that moves (data.world_position), those at rest.
  void get_position_gradient(WritableNumbers values, int64_t mesh = 0) const;

 private:
  struct Loaded;
  struct Delete {
    void operator()(Loaded* loaded) const;
  };
  Loaded& loaded() const;
  std::unique_ptr<Loaded, Delete> loaded_;
};

/// What the model of a configuration on these fields takes and gives: node features (the inputs, each
/// data.history times, and the one-hot of node types), edge features (relative positions and their lengths),
/// targets. Throws ConfigError for fields that are missing.
ModelSizes mesh_model_sizes(const Config& config, const OnlineOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
