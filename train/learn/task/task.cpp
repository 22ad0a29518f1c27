// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/task.h>

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
  return make_batch(runtime, layout, [&](const Batch& host) {
    task.write(host, split, samples, noise, normalizers, learn, scratch);
  });
}

}  // namespace meshgrad
