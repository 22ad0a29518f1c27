// SPDX-License-Identifier: Apache-2.0
// Rows of a batch's tensors, written and read by the host in f32 or f64 whatever their storage is.
#pragma once
#include <meshgrad/train/learn/task/mesh_task.h>
#include <meshgrad/train/learn/task/upload.h>

#include <algorithm>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace meshgrad {

/// Some rows of a tensor to compute in T: in place, or beside it where the tensor stores 16 bits.
template <class T>
class RowsInPlace {
 public:
  RowsInPlace(const Tensor& tensor, int64_t first, int64_t rows, std::vector<float>& wide)
      : tensor_(tensor.row_range(first, first + rows)), wide_(wide) {
    wide_.resize(tensor.dtype() == dtype_of<T>() ? 0 : static_cast<size_t>(tensor_.elements()));
  }
  std::span<T> values() {
    if constexpr (std::is_same_v<T, float>) {
      if (tensor_.dtype() != DType::f32) return wide_;
    }
    return tensor_.values<T>();
  }
  /// Rounds what was computed beside a tensor of 16 bits into it.
  void store() {
    const auto round = [&](auto* to) {
      using To = std::remove_pointer_t<decltype(to)>;
      for (size_t i = 0; i < wide_.size(); ++i) to[i] = To(wide_[i]);
    };
    if (tensor_.dtype() == DType::f16) round(tensor_.data<half>());
    if (tensor_.dtype() == DType::bf16) round(tensor_.data<bfloat16>());
  }

 private:
  Tensor tensor_;
  std::vector<float>& wide_;
};

/// The values of a tensor on the host in the memory of `values`, widened to T where it stores 16 bits.
template <class T>
std::span<T> read_rows(const Tensor& tensor, std::vector<T>& values) {
  values.resize(static_cast<size_t>(tensor.elements()));
  const auto widen = [&](const auto* from) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<float>(from[i]));
  };
  if (tensor.dtype() == DType::f16) {
    widen(tensor.data<half>());
  } else if (tensor.dtype() == DType::bf16) {
    widen(tensor.data<bfloat16>());
  } else {
    std::copy_n(tensor.data<T>(), values.size(), values.begin());
  }
  return values;
}

/// Fills what every training batch of meshes holds: the graph, features, the tensors "target" and "mask", and
/// those of targets on graphs.
/// With `learn`, statistics of the batch are added to the normalisers before they are applied. For each
/// sample, write_sample(view, sample, nodes, targets) writes rows in physical units: [nodes, node_inputs] and
/// [nodes, outputs], in the accumulator of the batch's dtype; edges read the state that it leaves in
/// `scratch`.
template <class WriteSample>
void write_mesh_batch(const MeshTask& task, const Batch& batch, std::string_view split,
                      const std::vector<Sample>& samples, Normalizers& normalizers, bool learn,
                      SampleScratch& scratch, WriteSample&& write_sample) {
  const FieldSelection& fields = task.fields;
  const EdgeSet& edge_set = batch.graph.edges(kMeshEdges);
  const Tensor& target = batch.tensor("target");
  Dataset::MeshSizes all;
  std::vector<int64_t> graph_nodes;
  for (const Sample& sample : samples) {
    const TrajectoryView view = task.dataset.trajectory(split, sample.trajectory);
    all = append_to_union(edge_set.graph, view.mesh(), all);
    graph_nodes.push_back(view.mesh().nodes);
  }
  write_graph_sizes(batch.graph, graph_nodes);
  task.write_graph_targets(batch, split, samples, normalizers, learn);
  dispatch_storage(accumulator_of(batch.graph.node_features.dtype()), [&]<class T>() {
    RowsInPlace<T> node_rows(batch.graph.node_features, 0, all.nodes, scratch.wide_nodes);
    RowsInPlace<T> edge_rows(edge_set.features, 0, all.edges, scratch.wide_edges);
    const std::span<T> target_rows = target.row_range(0, all.nodes).template values<T>();
    T* edges = edge_rows.values().data();
    std::optional<RowsInPlace<T>> world_rows;
    Dataset::MeshSizes world;
    const bool searched = task.world.is_for_device(batch);
    if (task.world.any() && !searched) {
      const EdgeSet& set = batch.graph.edges(kWorldEdges);
      world_rows.emplace(set.features, 0, set.graph.edges, scratch.wide_world);
    }
    int64_t node = 0;
    int32_t mesh = 0;
    for (const Sample& sample : samples) {
      const TrajectoryView view = task.dataset.trajectory(split, sample.trajectory);
      write_sample(view, sample, node_rows.values().data() + node * fields.node_inputs,
                   target_rows.data() + node * fields.outputs);
      write_edges(fields, view, sample.frame, scratch.state, scratch, edges);
      edges += view.mesh().edges * task.sizes.edge_inputs.front();
      std::span<const float> positions;
      if (task.world.any())
        positions = fields.current_positions(view, sample.frame, scratch.state, scratch.positions);
      if (world_rows) {
        const MeshEdges found =
            task.world.edges_at(view, sample.frame, positions, task.world.limit(view.mesh().nodes));
        world = task.world.append(batch.graph.edges(kWorldEdges).graph, found, view, positions, world,
                                  world_rows->values().data() + world.edges * task.world.inputs());
      }
      if (searched) task.world.write_search(batch, view.mesh(), positions, {mesh++, node}, normalizers);
      fields.write_mask(view.mesh(), batch.tensor("mask").template data<uint8_t>() + node);
      node += view.mesh().nodes;
    }
    const std::span<T> world_values =
        world_rows ? world_rows->values().first(static_cast<size_t>(world.edges * task.world.inputs()))
                   : std::span<T>();
    if (learn) {
      normalizers.nodes.accumulate(std::span<const T>(node_rows.values()));
      normalizers.edges.accumulate(std::span<const T>(edge_rows.values()));
      normalizers.targets.accumulate(std::span<const T>(target_rows));
      if (world_rows) normalizers.world.accumulate(std::span<const T>(world_values));
    }
    normalizers.nodes.normalize(node_rows.values());
    normalizers.edges.normalize(edge_rows.values());
    normalizers.targets.normalize(target_rows);
    node_rows.store();
    edge_rows.store();
    if (!world_rows) return;
    normalizers.world.normalize(world_values);
    world_rows->store();
  });
}

/// A batch on the runtime's device, filled on the host by `write`. `to`: its memory there; null: new memory.
template <class Write>
Batch make_batch(Runtime& runtime, const BatchLayout& layout, Write&& write, const StoragePtr& to = {}) {
  const StoragePtr host = batch_memory_to_write(runtime, layout.bytes());
  write(layout.batch(host));
  return layout.batch(to_device(runtime, host, layout.bytes(), to));
}

}  // namespace meshgrad
