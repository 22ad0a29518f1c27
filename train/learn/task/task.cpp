// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/task.h>

#include <algorithm>

namespace meshgrad {

Task make_task(const Config& config, const Dataset& dataset) {
  if (config.task.name == TaskName::steady_field) return Task(SteadyField(dataset, config.data, config.loss));
  return Task(MeshDynamics(dataset, config.data, config.unroll.steps, config.loss));
}

Batch training_batch(const Task& task, Runtime& runtime, DType dtype, std::string_view split,
                     const std::vector<Sample>& samples, const NoiseOptions& noise, Normalizers& normalizers,
                     bool learn) {
  const BatchLayout layout = task.layout(task.shape(split, samples), dtype, BatchLayout::Sizes::exact);
  SampleScratch scratch;
  Batch batch = make_batch(runtime, layout, [&](const Batch& host) {
    task.write(host, split, samples, noise, normalizers, learn, scratch);
  });
  batch.graph.graph_offsets = graph_offsets(task.dataset(), split, samples);
  return batch;
}

BatchShape largest_batch(const Config& config, const Dataset& dataset) {
  const Dataset::MeshSizes mesh = dataset.largest_mesh(config.data.train_split);
  BatchShape largest{.nodes = std::max<int64_t>(1, config.train.batch * mesh.nodes),
                     .edges = std::max<int64_t>(1, config.train.batch * mesh.edges)};
  largest.world_edges = world_room(config.data, largest.nodes);
  return largest;
}

}  // namespace meshgrad
