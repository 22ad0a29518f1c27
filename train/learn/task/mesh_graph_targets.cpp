// SPDX-License-Identifier: Apache-2.0
// MeshTask's targets on graphs beside those on nodes.
#include <meshgrad/train/learn/task/graph_inputs.h>
#include <meshgrad/train/learn/task/mesh_task.h>

#include <algorithm>

namespace meshgrad {

std::vector<float> MeshTask::graph_rows(std::string_view split, const std::vector<Sample>& samples,
                                        int64_t frame) const {
  std::vector<float> rows;
  for (const Sample& sample : samples) {
    const int64_t t = sample.frame + frame + (fields.over_time ? 1 : 0);
    const std::vector<float> row = fields.graph_targets.row(dataset.trajectory(split, sample.trajectory), t);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

void MeshTask::write_graph_targets(const Batch& batch, std::string_view split,
                                   const std::vector<Sample>& samples, Normalizers& normalizers,
                                   bool learn) const {
  if (fields.graph_targets.empty()) return;
  TargetFields::write(graph_rows(split, samples), batch.tensor("graph_target"), batch.tensor("graph_mask"),
                      normalizers.graph_targets, learn);
  dispatch_storage(batch.tensor("graph_rows").dtype(), [&]<class T>() {
    const std::span<T> rows = batch.tensor("graph_rows").values<T>();
    std::ranges::fill(rows, T(0));
    for (size_t i = 0; i < samples.size(); ++i)
      rows[i] = static_cast<T>(loss.weight(*this, split, {samples[i]}));
    const std::vector<double> columns = loss.column_weights(fields.graph_targets);
    std::ranges::transform(columns, batch.tensor("graph_columns").values<T>().begin(),
                           [](double weight) { return static_cast<T>(weight); });
  });
}

ComparedErrors MeshTask::compare_graph(std::string_view split, const Sample& sample, const Tensor& row,
                                       const Normalizers& normalizers) const {
  if (dataset.node_type_counts().empty()) return {};
  const TargetFields& targets = fields.graph_targets;
  const ComparedErrors errors = targets.compare(
      dataset, TargetFields::in_units(normalizers.graph_targets, values_of(row)), graph_rows(split, {sample}),
      fields.over_time ? targets.row(dataset.trajectory(split, sample.trajectory), sample.frame)
                       : targets.means(dataset),
      loss.column_weights(targets));
  const double weight = loss.weight(*this, split, {sample});
  return {weight * errors.model, weight * errors.baseline, weight * errors.weight};
}

std::vector<RankedMetric> MeshTask::metrics() const {
  std::vector<RankedMetric> metrics = fields.targets.metrics();
  const std::vector<RankedMetric> of_graphs = fields.graph_targets.metrics();
  metrics.insert(metrics.end(), of_graphs.begin(), of_graphs.end());
  return metrics;
}

}  // namespace meshgrad
