// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/task/batch_layout.h>

#include <algorithm>

namespace meshgrad {

const Tensor& Batch::tensor(std::string_view name) const {
  for (const NamedTensor& named : tensors)
    if (named.name == name) return named.tensor;
  throw internal_error("a batch without the tensor " + std::string(name));
}

bool Batch::has(std::string_view name) const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const NamedTensor& named) { return named.name == name; });
}

int64_t BatchLayout::place(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, kAlignment);
  return at;
}

BatchLayout::BatchLayout(const ModelSizes& sizes, const BatchShape& shape, DType dtype, Sizes kind)
    : shape_(shape),
      node_inputs_(sizes.node_inputs),
      edge_inputs_(sizes.edge_inputs.front()),
      dtype_(dtype),
      counted_(kind == Sizes::capacity) {
  const int64_t index = size_of(DType::i32);
  senders_ = place(shape.edges * index);
  receivers_ = place(shape.edges * index);
  receiver_offsets_ = place((shape.nodes + 1) * index);
  sender_offsets_ = place((shape.nodes + shape.ghosts + 1) * index);
  sender_order_ = place(shape.edges * index);
  edge_features_ = place(shape.edges * edge_inputs_ * size_of(dtype));
  node_features_ = place(shape.nodes * node_inputs_ * size_of(dtype));
  counts_ = place(3 * size_of(DType::i64));
  add(kWindowWeight, Shape{1}, DType::f64);
}

void BatchLayout::add(std::string_view name, const Shape& shape, DType dtype, TensorRows rows) {
  placed_.push_back({name, place(shape.elements() * size_of(dtype)), shape, dtype, rows});
}

Batch BatchLayout::batch(const StoragePtr& memory) const {
  const auto over = [&](int64_t offset, const Shape& shape, DType dtype) {
    return Tensor::over(memory, offset, shape, dtype);
  };
  EdgeSet set{"mesh", {}, over(edge_features_, {shape_.edges, edge_inputs_}, dtype_)};
  Graph& graph = set.graph;
  graph.nodes = shape_.nodes + shape_.ghosts;
  graph.owned_nodes = shape_.nodes;
  graph.edges = shape_.edges;
  graph.senders = over(senders_, {shape_.edges}, DType::i32);
  graph.receivers = over(receivers_, {shape_.edges}, DType::i32);
  graph.receiver_offsets = over(receiver_offsets_, {shape_.nodes + 1}, DType::i32);
  graph.sender_offsets = over(sender_offsets_, {graph.nodes + 1}, DType::i32);
  graph.sender_order = over(sender_order_, {shape_.edges}, DType::i32);
  if (counted_) graph.counts = over(counts_, {3}, DType::i64);
  Batch batch;
  batch.graph.nodes = shape_.nodes;
  batch.graph.halo = halo_;
  batch.graph.edge_sets.push_back(std::move(set));
  batch.graph.node_features = over(node_features_, {shape_.nodes, node_inputs_}, dtype_);
  for (const Placed& tensor : placed_)
    batch.tensors.push_back({tensor.name, over(tensor.offset, tensor.shape, tensor.dtype), tensor.rows});
  return batch;
}

}  // namespace meshgrad
