// SPDX-License-Identifier: Apache-2.0
// GraphInputs: what a model reads of given graphs, for tasks that need no mesh. Nodes read the fields
// data.inputs (one on graphs at every node), then a one-hot of the node type where the data have several, and
// the row of each identifier of data.embed in a table that is trained (nn/embedding.h).
// Edges read relative positions (sender minus receiver) and their length where the data have positions, then
// the fields data.edge_inputs. Graphs of a batch are one graph, their disjoint union.
#pragma once
#include <meshgrad/train/learn/task/mesh_inputs.h>

#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// A sample with its data.
struct GivenGraph {
  TrajectoryView view;
  int64_t frame = 0;
  const MeshView* mesh = nullptr;  ///< the same with other edges; null: with the data's
  const MeshView& edges() const { return mesh != nullptr ? *mesh : view.mesh(); }
};

class GraphInputs {
 public:
  /// Throws ConfigError without a field, for others than f32 fields on nodes and graphs, for a node type
  /// outside of the one-hot, for identifiers that are no i32 field on nodes, and what edge_fields throws.
  GraphInputs(const Dataset& dataset, const Config& config);

  /// Edges read nothing, whatever the data have.
  void leave_edges_out() { dim_ = 0, edge_width_ = 0; }
  /// Of a model that reads this; outputs are left out.
  ModelSizes sizes() const;
  const std::vector<FieldInfo>& fields() const { return fields_; }
  void describe(TaskDescription& text) const;
  /// Of node types that are so many that they may be identifiers.
  void warn(std::vector<TaskWarning>& found) const;
  /// Writes features and edges of a batch on the host. With `learn`, the normalisers learn from each graph
  /// before they are applied to it.
  void write(const Batch& batch, std::span<const GivenGraph> graphs, Normalizers& normalizers, bool learn,
             SampleScratch& scratch) const;
  Normalizers online_normalizers(int64_t targets) const;
  /// From the data set's statistics, of the inputs alone.
  Normalizers dataset_normalizers(const Dataset& dataset) const;

 private:
  template <class T>
  void write_rows(const GivenGraph& graph, T* rows) const;
  template <class T>
  void write_edge_rows(const GivenGraph& graph, T* rows) const;

  void add_tables(const Dataset& dataset, const Config& config);
  void write_identifiers(const Batch& batch, std::span<const GivenGraph> graphs, int64_t nodes) const;

  std::vector<FieldInfo> fields_, edge_fields_;
  std::vector<IdentifierTable> tables_;  // of the fields of their names
  int64_t width_ = 0;                    // columns of a node
  int64_t node_types_ = 0;               // of the one-hot; 0: there is none
  int64_t edge_width_ = 0;               // columns of an edge
  int dim_ = 0;
};

/// Writes EdgeSet::weights of a batch's edges on the host.
void write_convolution_weights(const EdgeSet& edges);

/// The error of a field that does not fit a key.
ConfigError unfit_field(const char* key, const std::string& needed, const FieldInfo& field,
                        const std::string& fix = "name another; see meshgrad info");
/// The same of data.targets: a class label is learned alone, by a task that the fix names.
ConfigError unfit_target(const std::string& needed, const FieldInfo& field);
/// The values of a tensor on the host.
std::vector<double> values_of(const Tensor& tensor);
/// Refuses training noise, which has no meaning without a mesh.
void refuse_noise(const Config& config);

}  // namespace meshgrad
