// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

constexpr double kCoarse = 1e-5;
constexpr double kCoarseF32 = 1e-3;
constexpr double kSpacing = 0x1p-23;  // of float32, relative

struct Range {
  double min = 0, max = 0;
  double width() const { return max - min; }
  double step() const { return kSpacing * std::max(std::abs(min), std::abs(max)); }
  // A round number: a multiple of the power of ten in the width.
  double round_middle() const {
    const double unit = std::pow(10.0, std::floor(std::log10(width())));
    return std::round((min + width() / 2) / unit) * unit;
  }
};

template <class T>
Range range_of(std::span<const T> values, size_t components, size_t component) {
  if (values.size() < components) return {};
  Range range{static_cast<double>(values[component]), static_cast<double>(values[component])};
  for (size_t i = component; i < values.size(); i += components) {
    range.min = std::min(range.min, static_cast<double>(values[i]));
    range.max = std::max(range.max, static_cast<double>(values[i]));
  }
  return range;
}

bool is_coarse(const Range& range) { return range.step() > kCoarse * range.width(); }

double typical_edge(std::span<const double> positions, size_t dim) {
  double extent = 0;
  for (size_t d = 0; d < dim; ++d) extent = std::max(extent, range_of(positions, dim, d).width());
  return extent / std::pow(static_cast<double>(positions.size() / dim), 1.0 / static_cast<double>(dim));
}

bool is_coarse_axis(const Range& range, double edge) {
  return range.step() > kCoarse * edge &&
         std::max(std::abs(range.min), std::abs(range.max)) > 4 * range.width();
}

}  // namespace

bool is_coarse_in_f32(std::span<const double> values, int components) {
  for (size_t c = 0; c < static_cast<size_t>(components); ++c) {
    if (is_coarse(range_of(values, static_cast<size_t>(components), c))) return true;
  }
  return false;
}

bool are_coarse_positions(std::span<const double> positions, int dim) {
  const auto width = static_cast<size_t>(dim);
  const double edge = typical_edge(positions, width);
  for (size_t d = 0; d < width; ++d) {
    if (is_coarse_axis(range_of(positions, width, d), edge)) return true;
  }
  return false;
}

std::vector<double> offset_for(std::span<const double> wide, int components) {
  std::vector<double> offset(static_cast<size_t>(components), 0.0);
  for (size_t c = 0; c < offset.size(); ++c) {
    const Range range = range_of(wide, offset.size(), c);
    if (range.width() > 0 && is_coarse(range)) offset[c] = range.round_middle();
  }
  const bool none = std::ranges::all_of(offset, [](double o) { return o == 0; });
  return none ? std::vector<double>{} : offset;
}

std::array<double, 3> origin_for(std::span<const double> wide, int dim) {
  std::array<double, 3> origin{};
  if (wide.empty()) return origin;
  const auto width = static_cast<size_t>(dim);
  const double edge = typical_edge(wide, width);
  for (size_t d = 0; d < width; ++d) {
    const Range range = range_of(wide, width, d);
    if (is_coarse_axis(range, edge)) origin[d] = range.width() > 0 ? range.round_middle() : range.min;
  }
  return origin;
}

void subtract_offset(std::vector<float>& values, std::span<const double> wide,
                     std::span<const double> offset) {
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = wide.empty() ? static_cast<double>(values[i]) : wide[i];
    values[i] = static_cast<float>(value - offset[i % offset.size()]);
  }
}

std::optional<std::string> coarse_steps(std::span<const float> values, std::span<const double> wide,
                                        std::span<const double> offset, int components) {
  const double share = wide.empty() ? kCoarseF32 : kCoarse;
  for (size_t c = 0; c < static_cast<size_t>(components); ++c) {
    Range range = wide.empty() ? range_of(values, static_cast<size_t>(components), c)
                               : range_of(wide, static_cast<size_t>(components), c);
    const double less = offset.empty() ? 0.0 : offset[c];
    range = {range.min - less, range.max - less};
    if (range.width() <= 0 || range.step() <= share * range.width()) continue;
    return fmt::format("steps of {:.2g} in a range of {:.2g}", range.step(), range.width());
  }
  return std::nullopt;
}

}  // namespace meshgrad
