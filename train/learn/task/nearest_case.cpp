// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/task/nearest_case.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace meshgrad {
namespace {

/// For each of `positions` [nodes, dim] the nearest of `others`: these are sorted by their first axis, along
/// which the search ends where it alone is farther than the best.
std::vector<size_t> nearest_nodes(std::span<const float> positions, std::span<const float> others, int dim) {
  const auto width = static_cast<size_t>(dim);
  std::vector<size_t> order(others.size() / width);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto first = [&](size_t node) { return others[node * width]; };
  std::ranges::stable_sort(order, {}, first);
  std::vector<size_t> found;
  for (size_t at = 0; at < positions.size(); at += width) {
    float least = std::numeric_limits<float>::infinity();
    size_t nearest = 0;
    const auto look = [&](size_t node) {  // false: none further along is nearer
      const float along = first(node) - positions[at];
      if (along * along >= least) return false;
      float distance = 0.0F;
      for (size_t axis = 0; axis < width; ++axis)
        distance += std::pow(others[node * width + axis] - positions[at + axis], 2.0F);
      if (distance < least) {
        least = distance;
        nearest = node;
      }
      return true;
    };
    const auto begin = std::ranges::lower_bound(order, positions[at], {}, first);
    for (auto above = begin; above != order.end() && look(*above);) ++above;
    for (auto below = begin; below != order.begin() && look(*(below - 1));) --below;
    found.push_back(nearest);
  }
  return found;
}

}  // namespace

NearestCase::NearestCase(const MeshTask& task) : task_(task) {
  const std::string& split = task.dataset.statistics_split();
  const SplitSamples samples = task.samples(split);
  const int64_t count = std::min(kMostCases, samples.size());
  std::vector<Moments> moments;
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = samples.at(i * samples.size() / count);
    const TrajectoryView view = task.dataset.trajectory(split, sample.trajectory);
    cases_.push_back(
        {sample.trajectory, sample.frame, view.sample_id(sample.frame), numbers_of(view, sample.frame)});
    moments.resize(cases_.back().numbers.size());
    for (size_t n = 0; n < moments.size(); ++n) moments[n].add(cases_.back().numbers[n]);
  }
  for (const Moments& one : moments) {
    const double deviation = one.standard_deviation();
    const double rounding = 1e-6 * std::abs(one.mean);
    units_.push_back(deviation > rounding ? deviation : std::numeric_limits<double>::infinity());
  }
}

std::vector<double> NearestCase::numbers_of(const TrajectoryView& mesh, int64_t t) const {
  const auto width = static_cast<size_t>(task_.fields.node_inputs);
  std::vector<float> rows(static_cast<size_t>(mesh.mesh().nodes) * width);
  write_nodes(task_.fields, mesh, t, {}, rows.data());
  std::vector<double> numbers;
  for (size_t column = 0; column < width; ++column) {
    Moments values;
    for (size_t at = column; at < rows.size(); at += width) values.add(static_cast<double>(rows[at]));
    numbers.insert(numbers.end(), {values.mean, values.standard_deviation()});
  }
  const auto dim = static_cast<size_t>(task_.dataset.dim());
  for (size_t axis = 0; axis < dim; ++axis) {
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (size_t at = axis; at < mesh.mesh().positions.size(); at += dim) {
      least = std::min(least, mesh.mesh().positions[at]);
      most = std::max(most, mesh.mesh().positions[at]);
    }
    numbers.push_back(static_cast<double>(most - least));
  }
  return numbers;
}

std::vector<float> NearestCase::values(const TrajectoryView& mesh, int64_t t) const {
  if (task_.dataset.dim() == 0) return {};
  const std::vector<double> numbers = numbers_of(mesh, t);
  const Case* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Case& one : cases_) {
    if (one.id == mesh.sample_id(t)) continue;
    double distance = 0.0;
    for (size_t n = 0; n < numbers.size(); ++n)
      distance += std::pow((numbers[n] - one.numbers[n]) / units_[n], 2);
    if (distance >= least) continue;
    least = distance;
    nearest = &one;
  }
  if (nearest == nullptr) return {};
  const TrajectoryView view = task_.dataset.trajectory(task_.dataset.statistics_split(), nearest->trajectory);
  const std::vector<float> solution = task_.fields.target_values(view, nearest->frame);
  const auto width = static_cast<size_t>(task_.fields.outputs);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(mesh.mesh().nodes) * width);
  for (const size_t node : nearest_nodes(mesh.mesh().positions, view.mesh().positions, task_.dataset.dim()))
    values.insert(values.end(), solution.begin() + static_cast<std::ptrdiff_t>(node * width),
                  solution.begin() + static_cast<std::ptrdiff_t>((node + 1) * width));
  return values;
}

}  // namespace meshgrad
