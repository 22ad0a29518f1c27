// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {

bool BatchShape::holds(const BatchShape& batch) const {
  return batch.nodes <= nodes && batch.edges <= edges && batch.ghosts <= ghosts &&
         batch.world_edges <= world_edges && batch.graphs <= graphs;
}

const Tensor& Batch::tensor(std::string_view name) const {
  for (const NamedTensor& named : tensors)
    if (named.name == name) return named.tensor;
  throw internal_error("a batch without the tensor " + std::string(name));
}

bool Batch::has(std::string_view name) const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const NamedTensor& named) { return named.name == name; });
}

void write_graph_sizes(const GraphBatch& batch, std::span<const int64_t> nodes) {
  if (batch.node_count.defined())
    *batch.node_count.data<int64_t>() = std::accumulate(nodes.begin(), nodes.end(), int64_t{0});
  if (!batch.graph_starts.defined()) return;
  const std::span<int32_t> starts = batch.graph_starts.values<int32_t>();
  check_internal(nodes.size() < starts.size(), "room for the starts of all graphs");
  int32_t start = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    starts[i] = start;
    if (i < nodes.size()) start += static_cast<int32_t>(nodes[i]);
  }
}

void write_node_keys(const GraphBatch& batch, uint64_t seed, std::span<const Sample> samples,
                     std::span<const int64_t> nodes) {
  if (!batch.node_keys.defined()) return;
  int64_t* key = batch.node_keys.data<int64_t>();
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    uint64_t mixed = mixed_bits(seed);
    for (const auto part : {static_cast<uint64_t>(sample.trajectory), static_cast<uint64_t>(sample.frame),
                            uint64_t{sample.visit}})
      mixed = mixed_bits(mixed ^ part);
    for (int64_t node = 0; node < nodes[i]; ++node)
      *key++ = static_cast<int64_t>(mixed_bits(mixed + static_cast<uint64_t>(node)));
  }
}

void finish_identifiers(const Graph& graph, int64_t nodes) {
  const std::span<const int32_t> rows = graph.senders.values<int32_t>().first(static_cast<size_t>(nodes));
  const std::span<int32_t> offsets = graph.sender_offsets.values<int32_t>();
  std::ranges::fill(offsets, 0);
  for (const int32_t row : rows) ++offsets[static_cast<size_t>(row) + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<int32_t> next(offsets.begin(), offsets.end());
  const std::span<int32_t> order = graph.sender_order.values<int32_t>();
  for (size_t node = 0; node < rows.size(); ++node)
    order[static_cast<size_t>(next[static_cast<size_t>(rows[node])]++)] = static_cast<int32_t>(node);
  if (!graph.counts.defined()) return;
  const std::span<int64_t> counts = graph.counts.values<int64_t>();
  counts[0] = graph.nodes;
  counts[1] = counts[2] = nodes;
}

int64_t BatchLayout::place(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, kAlignment);
  return at;
}

BatchLayout::BatchLayout(const ModelSizes& sizes, const BatchShape& shape, DType dtype, Sizes kind)
    : shape_(shape), node_inputs_(sizes.node_inputs), edge_weights_(sizes.edge_weights), dtype_(dtype) {
  for (size_t set = 0; set < sizes.edge_set_names.size(); ++set) {
    const bool world = sizes.edge_set_names[set] == kWorldEdges;
    place_edges(sizes.edge_set_names[set], world ? shape.world_edges : shape.edges, sizes.edge_inputs[set],
                world || kind == Sizes::capacity);
  }
  node_features_ = place(shape.nodes * node_inputs_ * size_of(dtype));
  for (const IdentifierTable& table : sizes.tables) {
    constexpr int64_t kIndex = size_of(DType::i32);
    tables_.push_back({.rows = table.rows,
                       .senders = place(shape.nodes * kIndex),
                       .sender_offsets = place((table.rows + 1) * kIndex),
                       .sender_order = place(shape.nodes * kIndex),
                       .counts = place(3 * size_of(DType::i64))});
  }
  if (kind == Sizes::capacity) node_count_ = place(size_of(DType::i64));
  if (sizes.graph_starts) graph_starts_ = place((shape.graphs + 1) * size_of(DType::i32));
  add(kWindowWeight, Shape{1}, DType::f64);
}

void BatchLayout::place_edges(const std::string& name, int64_t edges, int64_t inputs, bool counted) {
  constexpr int64_t kIndex = size_of(DType::i32);
  edge_sets_.push_back({.name = name,
                        .edges = edges,
                        .inputs = inputs,
                        .counted = counted,
                        .senders = place(edges * kIndex),
                        .receivers = place(edges * kIndex),
                        .receiver_offsets = place((shape_.nodes + 1) * kIndex),
                        .sender_offsets = place((shape_.nodes + shape_.ghosts + 1) * kIndex),
                        .sender_order = place(edges * kIndex),
                        .features = place(edges * inputs * size_of(dtype_)),
                        .counts = place(3 * size_of(DType::i64)),
                        .weights = edge_weights_ ? place(edges * size_of(DType::f32)) : -1});
}

void BatchLayout::add(std::string_view name, const Shape& shape, DType dtype, TensorRows rows) {
  placed_.push_back({name, place(shape.elements() * size_of(dtype)), shape, dtype, rows});
}

Batch BatchLayout::batch(const StoragePtr& memory, bool counts) const {
  const auto over = [&](int64_t offset, const Shape& shape, DType dtype) {
    return Tensor::over(memory, offset, shape, dtype);
  };
  Batch batch;
  batch.graph.nodes = shape_.nodes;
  batch.graph.halo = halo_;
  for (const PlacedEdges& placed : edge_sets_) {
    EdgeSet set{placed.name, {}, over(placed.features, {placed.edges, placed.inputs}, dtype_)};
    Graph& graph = set.graph;
    graph.nodes = shape_.nodes + shape_.ghosts;
    graph.owned_nodes = shape_.nodes;
    graph.edges = placed.edges;
    graph.senders = over(placed.senders, {placed.edges}, DType::i32);
    graph.receivers = over(placed.receivers, {placed.edges}, DType::i32);
    graph.receiver_offsets = over(placed.receiver_offsets, {shape_.nodes + 1}, DType::i32);
    graph.sender_offsets = over(placed.sender_offsets, {graph.nodes + 1}, DType::i32);
    graph.sender_order = over(placed.sender_order, {placed.edges}, DType::i32);
    if (placed.weights >= 0) set.weights = over(placed.weights, {placed.edges}, DType::f32);
    if (placed.counted && counts) graph.counts = over(placed.counts, {3}, DType::i64);
    batch.graph.edge_sets.push_back(std::move(set));
  }
  for (const PlacedTable& placed : tables_) {
    Graph& graph = batch.graph.identifiers.emplace_back();
    graph.nodes = placed.rows;
    graph.owned_nodes = graph.edges = shape_.nodes;
    graph.senders = over(placed.senders, {graph.edges}, DType::i32);
    graph.sender_offsets = over(placed.sender_offsets, {graph.nodes + 1}, DType::i32);
    graph.sender_order = over(placed.sender_order, {graph.edges}, DType::i32);
    if (counts) graph.counts = over(placed.counts, {3}, DType::i64);
  }
  if (node_count_ >= 0 && counts) batch.graph.node_count = over(node_count_, {1}, DType::i64);
  if (graph_starts_ >= 0) batch.graph.graph_starts = over(graph_starts_, {shape_.graphs + 1}, DType::i32);
  if (node_keys_ >= 0) batch.graph.node_keys = over(node_keys_, {shape_.nodes}, DType::i64);
  batch.graph.node_features = over(node_features_, {shape_.nodes, node_inputs_}, dtype_);
  for (const Placed& tensor : placed_)
    batch.tensors.push_back({tensor.name, over(tensor.offset, tensor.shape, tensor.dtype), tensor.rows});
  return batch;
}

}  // namespace meshgrad
