// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <meshgrad/train/convert/outlier.h>

namespace meshgrad {
namespace {

constexpr size_t kSample = 4096;

std::optional<Outlier> outlier_of(std::span<const float> values, size_t components, size_t component) {
  const size_t count = values.size() / components;
  const size_t stride = std::max<size_t>(1, count / kSample);
  std::vector<float> sample;
  for (size_t i = 0; i < count; i += stride) sample.push_back(values[i * components + component]);
  std::sort(sample.begin(), sample.end());
  const auto quantile = [&](double share) {
    return static_cast<double>(sample[static_cast<size_t>(share * static_cast<double>(sample.size() - 1))]);
  };
  Outlier found;
  found.component = static_cast<int>(component);
  found.middle = quantile(0.5);
  found.spread = quantile(0.99) - quantile(0.01);
  double farthest = 0;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const double distance = std::abs(static_cast<double>(values[i * components + component]) - found.middle);
    if (distance > farthest) at = i;
    farthest = std::max(farthest, distance);
  }
  const double limit = std::max(1000.0, 10.0 * std::sqrt(static_cast<double>(count)));
  if (found.spread <= 0 || farthest <= limit * found.spread) return std::nullopt;
  found.value = values[at * components + component];
  found.row = static_cast<int64_t>(at);
  return found;
}

}  // namespace

std::optional<Outlier> find_outlier(const RawField& field, int64_t rows) {
  const auto* values = std::get_if<std::vector<float>>(&field.values);
  if (values == nullptr || values->empty() || rows < 1) return std::nullopt;
  for (size_t c = 0; c < static_cast<size_t>(field.components); ++c) {
    std::optional<Outlier> found = outlier_of(*values, static_cast<size_t>(field.components), c);
    if (!found) continue;
    found->frame = found->row / rows;
    found->row %= rows;
    return found;
  }
  return std::nullopt;
}

}  // namespace meshgrad
