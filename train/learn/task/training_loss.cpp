// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/mesh_task.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

constexpr std::string_view kRows = "loss.rows";
constexpr std::string_view kColumns = "loss.columns";
/// Of a target's mean square, in variances: a sample in which nearly nothing changes must not outweigh all.
constexpr double kSmallestSquare = 1e-6;

double number_of(const std::vector<FieldNumber>& numbers, std::string_view name, double others) {
  for (const FieldNumber& number : numbers)
    if (number.field == name) return number.value;
  return others;
}

}  // namespace

int64_t sampled_nodes(double fraction, int64_t nodes) {
  return std::clamp<int64_t>(std::llround(fraction * static_cast<double>(nodes)), std::min<int64_t>(1, nodes),
                             nodes);
}

void sample_nodes(double fraction, uint64_t seed, uint64_t sample, uint32_t visit,
                  std::vector<double>& weights) {
  const auto nodes = static_cast<int64_t>(weights.size());
  const int64_t chosen = sampled_nodes(fraction, nodes);
  if (chosen == nodes) return std::fill(weights.begin(), weights.end(), 1.0);
  // The nodes with the smallest numbers, of one random number each.
  std::vector<std::pair<uint64_t, size_t>> numbers(weights.size());
  const RandomKey key{seed ^ hash_of("loss.sample")};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto bits = philox(key, {static_cast<uint32_t>(i), visit, static_cast<uint32_t>(sample),
                                   static_cast<uint32_t>(sample >> 32)});
    numbers[i] = {static_cast<uint64_t>(bits[0]) << 32 | bits[1], i};
  }
  std::nth_element(numbers.begin(), numbers.begin() + chosen, numbers.end());
  std::fill(weights.begin(), weights.end(), 0.0);
  for (int64_t i = 0; i < chosen; ++i)
    weights[numbers[static_cast<size_t>(i)].second] =
        static_cast<double>(nodes) / static_cast<double>(chosen);
}

TrainingLoss TrainingLoss::for_validation() const {
  LossConfig config = config_;
  config.sample = 1.0;
  config.change_penalty = 0.0;
  return TrainingLoss(config);
}

double TrainingLoss::type_weight(int64_t type) const {
  if (config_.type_weights.empty()) return config_.type_weight;
  return number_of(config_.type_weights, std::to_string(type), 1.0);
}

bool TrainingLoss::weighs_rows() const {
  return config_.sample < 1.0 || config_.name == LossName::relative_l2 || config_.type_weight != 1.0 ||
         !config_.type_weights.empty();
}

void TrainingLoss::add_to(BatchLayout& layout, int64_t outputs) const {
  const DType dtype = accumulator_of(layout.dtype());
  if (weighs_rows()) layout.add(kRows, {layout.shape().nodes}, dtype, TensorRows::nodes);
  if (weighs_columns()) layout.add(kColumns, {outputs}, dtype);
}

std::vector<double> TrainingLoss::column_weights(const TargetFields& targets) const {
  std::vector<double> weights;
  for (const FieldInfo& field : targets) {
    const double weight =
        config_.field_weights.empty() ? config_.weight : number_of(config_.field_weights, field.name, 1.0);
    weights.resize(weights.size() + static_cast<size_t>(field.components), weight);
  }
  return weights;
}

void TrainingLoss::write(const Batch& batch, const MeshTask& task, std::string_view split,
                         const std::vector<Sample>& samples, uint64_t seed) const {
  dispatch_storage(accumulator_of(batch.graph.node_features.dtype()), [&]<class T>() {
    if (weighs_rows()) write_rows<T>(batch, task, split, samples, seed);
    if (!weighs_columns()) return;
    const std::vector<double> weights = column_weights(task.fields.targets);
    std::transform(weights.begin(), weights.end(), batch.tensor(kColumns).template data<T>(),
                   [](double weight) { return static_cast<T>(weight); });
  });
}

template <class T>
void TrainingLoss::write_rows(const Batch& batch, const MeshTask& task, std::string_view split,
                              const std::vector<Sample>& samples, uint64_t seed) const {
  const auto width = static_cast<size_t>(task.fields.outputs);
  const std::vector<double> columns = column_weights(task.fields.targets);
  const T* target = batch.tensor("target").data<T>();
  T* rows = batch.tensor(kRows).data<T>();
  std::vector<double> chosen;
  for (const Sample& sample : samples) {
    const TrajectoryView view = task.dataset.trajectory(split, sample.trajectory);
    const auto types = view.mesh().node_type;
    chosen.assign(static_cast<size_t>(task.fields.predicted_nodes(view.mesh())), 1.0);
    if (config_.sample < 1.0)
      sample_nodes(config_.sample, seed, view.sample_id(sample.frame), sample.visit, chosen);
    double squares = 0.0, weight = 0.0;
    size_t predicted = 0;
    for (size_t i = 0; i < types.size(); ++i) {
      const bool counts = task.fields.is_predicted(types[i]);
      const double of_type = counts ? type_weight(types[i]) : 0.0;
      rows[i] = static_cast<T>(counts ? of_type * chosen[predicted++] : 0.0);
      weight += of_type;
      for (size_t j = 0; of_type > 0.0 && j < width; ++j) {
        const auto value = static_cast<double>(target[i * width + j]);
        squares += of_type * columns[j] * value * value;
      }
    }
    if (config_.name == LossName::relative_l2 && weight > 0.0) {
      const double scale = 1.0 / std::max(squares / weight, kSmallestSquare);
      for (size_t i = 0; i < types.size(); ++i)
        rows[i] = static_cast<T>(scale * static_cast<double>(rows[i]));
    }
    rows += types.size();
    target += types.size() * width;
  }
}

double TrainingLoss::weight(const MeshTask& task, std::string_view split,
                            const std::vector<Sample>& samples) const {
  if (task.fields.targets.empty()) return static_cast<double>(samples.size());
  if (config_.type_weights.empty())
    return config_.type_weight * static_cast<double>(task.predicted_nodes(split, samples));
  double weight = 0.0;
  for (const Sample& sample : samples) {
    const TrajectoryView view = task.dataset.trajectory(split, sample.trajectory);
    for (const int32_t type : view.mesh().node_type)
      if (task.fields.is_predicted(type)) weight += type_weight(type);
  }
  return weight;
}

LossForm TrainingLoss::form(const Batch& batch) const {
  LossForm form;
  if (config_.name == LossName::huber) form.kind = LossKind::huber;
  if (config_.name == LossName::l1) form.kind = LossKind::absolute;
  form.delta = config_.delta;
  if (batch.has(kRows)) form.row_weights = batch.tensor(kRows);
  if (batch.has(kColumns)) form.column_weights = batch.tensor(kColumns);
  return form;
}

LossForm TrainingLoss::penalty(const Batch& batch) const {
  LossForm form = this->form(batch);
  form.kind = LossKind::squared;
  form.factor = config_.change_penalty;
  return form;
}

std::string TrainingLoss::describe_sampling(const MeshTask& task, std::string_view split,
                                            double visits) const {
  if (config_.sample >= 1.0) return "";
  // Opening a trajectory verifies it: a few of them say it.
  constexpr int64_t kTrajectories = 32;
  const int64_t size = task.dataset.size(split), looked = std::min(size, kTrajectories);
  int64_t nodes = 0;
  for (int64_t i = 0; i < looked; ++i) {
    const MeshView mesh = task.dataset.trajectory(split, i * size / looked).mesh();
    nodes = std::max(nodes, task.fields.predicted_nodes(mesh));
  }
  const int64_t chosen = sampled_nodes(config_.sample, nodes);
  const double left_out = nodes > 0 ? 1.0 - static_cast<double>(chosen) / static_cast<double>(nodes) : 0.0;
  return fmt::format(
      "loss.sample = {}: {} of {} predicted nodes of the largest mesh{} count each time ({:.3g} %); each "
      "sample is "
      "used {:.3g} times, in which {:.3g} % of its nodes count at least once",
      config_.sample, chosen, nodes, looked < size ? fmt::format(" of {} trajectories", looked) : "",
      100.0 * (1.0 - left_out), visits, 100.0 * (1.0 - std::pow(left_out, visits)));
}

}  // namespace meshgrad
