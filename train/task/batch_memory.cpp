// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/task/batch_memory.h>

namespace meshgrad {

int64_t BatchMemory::place(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, kAlignment);
  return at;
}

BatchMemory::BatchMemory(const BatchSizes& sizes, DType dtype, Sizes kind)
    : sizes_(sizes), dtype_(dtype), counted_(kind == Sizes::capacity) {
  const int64_t index = size_of(DType::i32);
  senders_ = place(sizes.edges * index);
  receivers_ = place(sizes.edges * index);
  receiver_offsets_ = place((sizes.nodes + 1) * index);
  sender_offsets_ = place((sizes.nodes + 1) * index);
  sender_order_ = place(sizes.edges * index);
  edge_features_ = place(sizes.edges * sizes.edge_inputs * size_of(dtype));
  const int64_t feature = sizes.node_inputs * size_of(dtype);
  const int64_t target = sizes.outputs * size_of(accumulator_of(dtype));
  node_features_ = place(sizes.nodes * feature);
  target_ = place(sizes.nodes * target);
  mask_ = place(sizes.nodes);
  counts_ = place(3 * size_of(DType::i64));
  window_weight_ = place(size_of(DType::f64));
  if (sizes.steps <= 1) return;
  const int64_t further = (sizes.steps - 1) * Unroll::step_rows(sizes.nodes);
  further_node_features_ = place(further * feature);
  further_target_ = place(further * target);
  source_ = place(sizes.node_inputs * index);
  ratio_ = place(sizes.node_inputs * size_of(accumulator_of(dtype)));
}

Batch BatchMemory::batch(const StoragePtr& piece) const {
  const auto over = [&](int64_t offset, const Shape& shape, DType dtype) {
    return Tensor::over(piece, offset, shape, dtype);
  };
  EdgeSet set{"mesh", {}, over(edge_features_, {sizes_.edges, sizes_.edge_inputs}, dtype_)};
  Graph& graph = set.graph;
  graph.nodes = graph.owned_nodes = sizes_.nodes;
  graph.edges = sizes_.edges;
  graph.senders = over(senders_, {sizes_.edges}, DType::i32);
  graph.receivers = over(receivers_, {sizes_.edges}, DType::i32);
  graph.receiver_offsets = over(receiver_offsets_, {sizes_.nodes + 1}, DType::i32);
  graph.sender_offsets = over(sender_offsets_, {sizes_.nodes + 1}, DType::i32);
  graph.sender_order = over(sender_order_, {sizes_.edges}, DType::i32);
  if (counted_) graph.counts = over(counts_, {3}, DType::i64);
  Batch batch;
  batch.nodes = sizes_.nodes;
  batch.edge_sets.push_back(std::move(set));
  batch.node_features = over(node_features_, {sizes_.nodes, sizes_.node_inputs}, dtype_);
  if (sizes_.outputs > 0) {
    batch.target = over(target_, {sizes_.nodes, sizes_.outputs}, accumulator_of(dtype_));
    batch.mask = over(mask_, {sizes_.nodes}, DType::u8);
  }
  if (sizes_.steps <= 1) return batch;
  batch.unroll.further = sizes_.steps - 1;
  const int64_t rows = batch.unroll.further * Unroll::step_rows(sizes_.nodes);
  batch.unroll.node_features = over(further_node_features_, {rows, sizes_.node_inputs}, dtype_);
  batch.unroll.target = over(further_target_, {rows, sizes_.outputs}, accumulator_of(dtype_));
  batch.unroll.source = over(source_, {sizes_.node_inputs}, DType::i32);
  batch.unroll.ratio = over(ratio_, {sizes_.node_inputs}, accumulator_of(dtype_));
  batch.unroll.second_change = sizes_.second_change;
  return batch;
}

Tensor BatchMemory::window_weight(const StoragePtr& piece) const {
  return Tensor::over(piece, window_weight_, Shape{1}, DType::f64);
}

}  // namespace meshgrad
