// SPDX-License-Identifier: Apache-2.0
// BatchLayout: all tensors of a batch in one allocation, so that one copy moves it to a device. A task adds
// what it needs beside the model's inputs, by name.
#pragma once
#include <meshgrad/nn/model.h>
#include <meshgrad/train/learn/task/sample.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshgrad {

/// Rows of a batch: of a disjoint union of meshes.
struct BatchShape {
  int64_t nodes = 0;
  int64_t edges = 0;
  int64_t ghosts = 0;       ///< of a part of a mesh, after the nodes that it owns
  int64_t world_edges = 0;  ///< room for them
  int64_t graphs = 1;       ///< whole ones, or room for them
  /// Whether a batch of that shape has room in one of this.
  bool holds(const BatchShape& batch) const;
  bool operator==(const BatchShape&) const = default;
};

/// What the rows of a task's tensor belong to.
enum class TensorRows : uint8_t {
  batch,   ///< to none in particular
  nodes,   ///< a row for each node
  graphs,  ///< a row for each graph
  frames   ///< several times unrolled_rows(nodes) (unrolled_loss.h)
};

/// A tensor of a task: "target", "mask". The name is a literal.
struct NamedTensor {
  std::string_view name;
  Tensor tensor;
  TensorRows rows = TensorRows::batch;
};

struct Batch {
  GraphBatch graph;  ///< the model's inputs
  InlineVector<NamedTensor, 20> tensors;

  /// The tensor of that name. Throws InternalError when the task has none.
  const Tensor& tensor(std::string_view name) const;
  bool has(std::string_view name) const;
};

/// A tensor that the search for non-finite values reads before it runs the model; rows where `mask` is 0 do
/// not count.
struct GivenTensor {
  std::string name;
  Tensor tensor;
  Rows rows;
  Tensor mask;
};

/// Writes the real number of nodes of a batch on the host and the starts of its graphs, where it has them: of
/// graphs with these numbers of nodes, and of empty ones where there is room for more.
void write_graph_sizes(const GraphBatch& batch, std::span<const int64_t> nodes);

/// Writes the keys of a training batch's nodes on the host, where it has them: of samples with these numbers
/// of nodes. `seed`: of the run.
void write_node_keys(const GraphBatch& batch, uint64_t seed, std::span<const Sample> samples,
                     std::span<const int64_t> nodes);

/// One of GraphBatch::identifiers, of which `senders` are written for so many nodes: the rest of it.
void finish_identifiers(const Graph& graph, int64_t nodes);

/// f64 [1]: weight of the window's loss, which every training batch carries.
inline constexpr std::string_view kWindowWeight = "window_weight";

class BatchLayout {
 public:
  static constexpr int64_t kAlignment = 256;  ///< of each tensor, and of the allocation, in bytes
  enum class Sizes : uint8_t {
    exact,    ///< of one batch
    capacity  ///< the most of many: the batch carries its real counts (Graph::counts, node_count)
  };
  /// Room for the edge sets and features of `sizes`, stored in `dtype`; for starts of graphs
  /// where `sizes` asks for them; and for kWindowWeight. The set kWorldEdges has room for the shape's
  /// world edges, and a batch carries their real number in any case; a set of another name has room for the
  /// shape's edges.
  BatchLayout(const ModelSizes& sizes, const BatchShape& shape, DType dtype, Sizes kind);
  /// Adds a tensor after those before it, at a multiple of 256 bytes.
  void add(std::string_view name, const Shape& shape, DType dtype, TensorRows rows = TensorRows::batch);
  /// Adds room for GraphBatch::node_keys.
  void add_node_keys() { node_keys_ = place(shape_.nodes * size_of(DType::i64)); }
  /// Of a part of a mesh: what its batches exchange.
  void set_halo(std::shared_ptr<const Halo> halo) { halo_ = std::move(halo); }

  const BatchShape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  int64_t bytes() const { return bytes_; }
  /// The tensors over `bytes()` of memory on the host or on a device. Without `counts` all room for edges
  /// counts as edges: a dry run on the CPU has no memory to read numbers from.
  Batch batch(const StoragePtr& memory, bool counts = true) const;

 private:
  struct Placed {
    std::string_view name;
    int64_t offset = 0;
    Shape shape;
    DType dtype = DType::f32;
    TensorRows rows = TensorRows::batch;
  };
  /// Offsets of an edge set's tensors.
  struct PlacedEdges {
    std::string name;
    int64_t edges, inputs;
    bool counted;
    int64_t senders, receivers, receiver_offsets, sender_offsets, sender_order, features, counts, weights;
  };
  /// Offsets of GraphBatch::identifiers of one table.
  struct PlacedTable {
    int64_t rows;
    int64_t senders, sender_offsets, sender_order, counts;
  };
  int64_t place(int64_t bytes);
  void place_edges(const std::string& name, int64_t edges, int64_t inputs, bool counted);

  BatchShape shape_;
  int64_t node_inputs_;
  bool edge_weights_;
  DType dtype_;
  int64_t bytes_ = 0;
  InlineVector<PlacedEdges, 2> edge_sets_;
  std::vector<PlacedTable> tables_;
  int64_t node_features_;
  int64_t node_count_ = -1;    ///< -1: all rows are real
  int64_t graph_starts_ = -1;  ///< -1: not asked for
  int64_t node_keys_ = -1;     ///< -1: not asked for
  InlineVector<Placed, 20> placed_;
  std::shared_ptr<const Halo> halo_;
};

}  // namespace meshgrad
