// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/unit_finder.h>
#include <meshgrad/train/data/mesh_size.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace meshgrad {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kFactors[] = {1e3, 1e6};  // milli and kilo, micro and mega
constexpr double kTolerance = 2.5;         // of a factor: trajectories differ by more than their unit
constexpr double kSpread = 10.0;           // within a group
constexpr double kCelsius = 273.15, kCelsiusTolerance = 30.0, kColdest = 173.0;  // of kelvin
constexpr double kMeansSpread = 100.0;  // of temperatures of one group

/// Two groups of values with the widest gap between them.
struct Groups {
  std::vector<std::pair<double, size_t>> low, high;  // value and trajectory, ascending
  static double median(const std::vector<std::pair<double, size_t>>& group) {
    return group[group.size() / 2].first;
  }
};

template <class Gap>
std::optional<Groups> groups_of(const std::vector<double>& values, Gap gap) {
  std::vector<std::pair<double, size_t>> sorted;
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i])) sorted.emplace_back(values[i], i);
  if (sorted.size() < 2) return std::nullopt;
  std::ranges::sort(sorted);
  size_t cut = 1;
  for (size_t i = 2; i < sorted.size(); ++i)
    if (gap(sorted[i - 1].first, sorted[i].first) > gap(sorted[cut - 1].first, sorted[cut].first)) cut = i;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(cut);
  return Groups{{sorted.begin(), middle}, {middle, sorted.end()}};
}

std::string range_of(const std::vector<std::pair<double, size_t>>& group) {
  const std::string least = fmt::format("{:.3g}", group.front().first);
  const std::string most = fmt::format("{:.3g}", group.back().first);
  return least == most ? least : least + " to " + most;
}

/// "[FIRST] WHAT 1.8e+03 in 1 of 6 trajectories and 1.6 to 2.2 in the others: HOW; the unit may be another".
std::string line(const Groups& groups, const std::vector<std::string>& names, std::string_view what,
                 const std::string& how) {
  const bool low_is_odd = groups.low.size() < groups.high.size();
  const auto& odd = low_is_odd ? groups.low : groups.high;
  const auto& others = low_is_odd ? groups.high : groups.low;
  const size_t first = std::ranges::min_element(odd, {}, &std::pair<double, size_t>::second)->second;
  return fmt::format("[{}] {} {} in {} of {} trajectories and {} in the others: {}; the unit may be another",
                     names[first], what, range_of(odd), odd.size(), odd.size() + others.size(),
                     range_of(others), how);
}

std::optional<std::string> factor_line(const std::vector<double>& values,
                                       const std::vector<std::string>& names, const std::string& what) {
  const auto groups = groups_of(values, [](double a, double b) { return b / a; });
  if (!groups) return std::nullopt;
  const auto& [low, high] = *groups;
  const bool close =
      low.back().first <= kSpread * low.front().first && high.back().first <= kSpread * high.front().first;
  const double ratio = Groups::median(high) / Groups::median(low);
  for (const double factor : kFactors) {
    if (!close || ratio < factor / kTolerance || ratio > factor * kTolerance) continue;
    return line(*groups, names, what, fmt::format("about {:.0f} times apart", factor));
  }
  return std::nullopt;
}

std::optional<std::string> celsius_line(const std::vector<double>& means,
                                        const std::vector<std::string>& names, const std::string& field) {
  const auto groups = groups_of(means, [](double a, double b) { return b - a; });
  if (!groups) return std::nullopt;
  const auto& [low, high] = *groups;
  const double apart = Groups::median(high) - Groups::median(low);
  const bool close = low.back().first - low.front().first <= kMeansSpread &&
                     high.back().first - high.front().first <= kMeansSpread;
  if (!close || std::abs(apart - kCelsius) > kCelsiusTolerance || high.front().first < kColdest)
    return std::nullopt;
  return line(*groups, names, field + " is on average",
              fmt::format("{:.0f} apart, as degrees Celsius and kelvin are", apart));
}

}  // namespace

void UnitFinder::add(const RawTrajectory& trajectory, std::span<const FieldInfo> infos) {
  const size_t number = names_.size();
  names_.push_back(trajectory.name);
  double size = 0.0;
  const auto dim = static_cast<size_t>(trajectory.dim);
  for (size_t axis = 0; axis < dim; ++axis) {
    const auto [least, most] = range_of_axis(trajectory.positions, dim, axis);
    const double extent = most - least;
    size = std::max(size, extent);
    if (extents_.size() == axis) extents_.push_back({extent, extent});
    extents_[axis] = {std::min(extents_[axis].least, extent), std::max(extents_[axis].most, extent)};
  }
  sizes_.push_back(size > 0.0 ? size : kNone);
  for (size_t f = 0; f < trajectory.fields.size() && f < infos.size(); ++f) {
    const auto* values = std::get_if<std::vector<float>>(&trajectory.fields[f].values);
    if (values == nullptr) continue;
    const auto components = static_cast<size_t>(infos[f].components);
    double largest = 0.0, sum = 0.0;
    for (size_t i = 0; i < values->size(); ++i) {
      const double value = static_cast<double>((*values)[i]) + infos[f].offset_of(i % components);
      largest = std::max(largest, std::abs(value));
      sum += value;
    }
    Sizes& sizes = fields_[infos[f].name];
    sizes.scalar = components == 1;
    sizes.largest.resize(number, kNone);  // where an earlier trajectory did not have it
    sizes.mean.resize(number, kNone);
    sizes.largest.push_back(largest > 0.0 ? largest : kNone);
    sizes.mean.push_back(values->empty() ? kNone : sum / static_cast<double>(values->size()));
  }
}

std::vector<std::string> UnitFinder::texts() const {
  std::vector<std::string> texts;
  if (auto text = factor_line(sizes_, names_, "meshes are as large as")) texts.push_back(std::move(*text));
  if (names_.size() < 3) return texts;
  for (const auto& [name, sizes] : fields_) {
    auto text = factor_line(sizes.largest, names_, name + " is at most");
    if (!text && sizes.scalar) text = celsius_line(sizes.mean, names_, name);
    if (text) texts.push_back(std::move(*text));
  }
  return texts;
}

}  // namespace meshgrad
