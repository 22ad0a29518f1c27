// SPDX-License-Identifier: Apache-2.0
// GraphPredictor: a checkpoint of node_classification, graph_classification or graph_regression, on graphs in
// memory. MeshPredictor is the one of fields on meshes.
#pragma once
#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/embed/arrays.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

class Runtime;

/// A graph of the host application, or several side by side; read within the call that takes it.
struct GraphArrays {
  Numbers inputs{};  ///< [nodes, node_columns()]: the input fields on nodes, in their order
  Integers edges{};  ///< [edges, 2]: sender and receiver
  /// Whether edges are as they are given, or each once or both ways, and loops are left out. Nothing: as in
  /// the data that were trained on. Another value than theirs is refused.
  std::optional<bool> directed{};
  int32_t first_node = 0;  ///< number of the first node in edges and starts
  Numbers graph_inputs{};  ///< [graphs, graph_columns()]: those on graphs
  Numbers positions{};     ///< [nodes, dim()]
  Integers node_type{};    ///< [nodes]; empty: all 0
  Integers starts{};       ///< [graphs + 1]: the first node of each graph, and the end; empty: one graph
  Integers identifiers{};  ///< [nodes, identifiers().size()]: those of data.embed, in its order
  /// [edges, edge_columns()]: the fields of data.edge_inputs, in their order, of each row of `edges`. An edge
  /// without a direction that is given once has them both ways; both ways, each has its own.
  Numbers edge_inputs{};
};

class GraphPredictor {
 public:
  /// The runtime outlives it. Throws DataError or ConfigError for a checkpoint of another task, and for one
  /// of an earlier version, which does not describe its fields.
  GraphPredictor(Runtime& runtime, const std::filesystem::path& checkpoint);
  ~GraphPredictor();
  GraphPredictor(GraphPredictor&&) noexcept;

  const std::vector<FieldInfo>& inputs() const;       ///< in the order of data.inputs
  const std::vector<FieldInfo>& edge_inputs() const;  ///< likewise of data.edge_inputs
  const std::vector<FieldInfo>& identifiers() const;  ///< likewise of data.embed
  const std::vector<FieldInfo>& targets() const;
  int64_t node_columns() const;   ///< of the inputs on nodes
  int64_t edge_columns() const;   ///< of edge_inputs()
  int64_t graph_columns() const;  ///< of those on graphs
  int dim() const;                ///< of positions; 0: none are read
  bool per_graph() const;         ///< rows of a prediction are graphs, not nodes
  bool classes() const;           ///< its columns are probabilities of classes
  int64_t columns() const;        ///< how many classes there are, or columns of the targets

  /// Writes a row for each graph or node, [rows, columns()]: probabilities, or the targets in their units.
  /// Throws InvalidArgument for an array of another size, and DataError for values that are not finite, node
  /// numbers that do not exist, an edge between two graphs, edges of another kind than in training, and
  /// values of an edge without a direction that is given twice.
  void predict(const GraphArrays& graphs, WritableNumbers values);

 private:
  struct Loaded;
  std::unique_ptr<Loaded> loaded_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
