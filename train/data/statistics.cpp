// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/statistics.h>

namespace meshgrad {
namespace {

// Value, change or second change of entry `at` (one number of frame t), in double.
double quantity_of(Quantity quantity, const float* at, int64_t frame_size) {
  switch (quantity) {
    case Quantity::change:
      return static_cast<double>(at[frame_size]) - static_cast<double>(at[0]);
    case Quantity::second_change:
      return static_cast<double>(at[frame_size]) - 2.0 * static_cast<double>(at[0]) +
             static_cast<double>(at[-frame_size]);
    case Quantity::value:
      break;
  }
  return static_cast<double>(at[0]);
}

// Calls f(position within a frame, position within [groups, components]) for each number of a frame.
template <class F>
void for_each_number(std::span<const int32_t> place_of_row, size_t components, F f) {
  int64_t i = 0;
  for (const int32_t place : place_of_row) {
    const size_t first = static_cast<size_t>(place) * components;
    for (size_t c = 0; c < components; ++c) f(i++, first + c);
  }
}

}  // namespace

void ValueRange::add(double value) { merge({1, value, value}); }

void ValueRange::merge(const ValueRange& other) {
  if (other.count <= 0) return;
  min = count > 0 ? std::min(min, other.min) : other.min;
  max = count > 0 ? std::max(max, other.max) : other.max;
  count += other.count;
}

void FieldMoments::hold(std::span<const int32_t> groups) {
  std::vector<int32_t> all;
  std::ranges::set_union(groups_, groups, std::back_inserter(all));
  if (all.size() == groups_.size()) return;
  const auto width = static_cast<std::ptrdiff_t>(components_);
  const auto spread = [&](auto& counted) {
    std::remove_reference_t<decltype(counted)> wider(all.size() * static_cast<size_t>(components_));
    for (size_t g = 0, at = 0; g < groups_.size(); ++g, ++at) {
      while (all[at] != groups_[g]) ++at;
      std::copy_n(counted.begin() + static_cast<std::ptrdiff_t>(g) * width, width,
                  wider.begin() + static_cast<std::ptrdiff_t>(at) * width);
    }
    counted = std::move(wider);
  };
  if (has_moments())
    for (std::vector<Moments>& moments : moments_) spread(moments);
  spread(ranges_);
  groups_ = std::move(all);
}

Moments& FieldMoments::at(Quantity quantity, int64_t group, int component) {
  return const_cast<Moments&>(std::as_const(*this).at(quantity, group, component));
}

const Moments& FieldMoments::at(Quantity quantity, int64_t group, int component) const {
  const auto place = std::ranges::lower_bound(groups_, group);
  check_internal(has_moments() && place != groups_.end() && *place == group,
                 "moments of a group that is held");
  return moments(quantity)[static_cast<size_t>((place - groups_.begin()) * components_ + component)];
}

std::vector<int32_t> FieldMoments::places_of(std::span<const int32_t> group_of_row) {
  if (group_of_row.empty()) return {};
  std::vector<int32_t> place(static_cast<size_t>(std::ranges::max(group_of_row)) + 1, 0);
  for (const int32_t group : group_of_row) place[static_cast<size_t>(group)] = 1;
  std::vector<int32_t> groups;
  for (size_t group = 0; group < place.size(); ++group)
    if (place[group] > 0) groups.push_back(static_cast<int32_t>(group));
  hold(groups);
  for (size_t i = 0; i < groups_.size() && groups_[i] <= groups.back(); ++i)
    place[static_cast<size_t>(groups_[i])] = static_cast<int32_t>(i);
  std::vector<int32_t> places;
  places.reserve(group_of_row.size());
  for (const int32_t group : group_of_row) places.push_back(place[static_cast<size_t>(group)]);
  return places;
}

template <class T>
void FieldMoments::add_ranges(std::span<const T> values, std::span<const int32_t> place_of_row) {
  const size_t frame_size = place_of_row.size() * static_cast<size_t>(components_);
  for (size_t at = 0; at + frame_size <= values.size() && frame_size > 0; at += frame_size) {
    for_each_number(place_of_row, static_cast<size_t>(components_), [&](int64_t i, size_t slot) {
      ranges_[slot].add(static_cast<double>(values[at + static_cast<size_t>(i)]));
    });
  }
}

void FieldMoments::add_moments(Quantity quantity, std::span<const float> values,
                               std::span<const int32_t> place_of_row, int64_t frames) {
  const int64_t frame_size = static_cast<int64_t>(place_of_row.size()) * components_;
  const auto components = static_cast<size_t>(components_);
  std::vector<Moments>& totals = moments(quantity);
  std::vector<Moments> of_frame;
  const int64_t first = quantity == Quantity::second_change ? 1 : 0;
  const int64_t last = quantity == Quantity::value ? frames : frames - 1;
  for (int64_t t = first; t < last; ++t) {
    // Two passes over a frame that lies in cache: no division a number, and no cancellation.
    const float* frame = values.data() + t * frame_size;
    of_frame.assign(totals.size(), {});
    for_each_number(place_of_row, components, [&](int64_t i, size_t slot) {
      of_frame[slot].mean += quantity_of(quantity, frame + i, frame_size);
      of_frame[slot].count += 1;
    });
    for (Moments& m : of_frame) m.mean = m.count > 0 ? m.mean / m.count : 0.0;
    for_each_number(place_of_row, components, [&](int64_t i, size_t slot) {
      const double delta = quantity_of(quantity, frame + i, frame_size) - of_frame[slot].mean;
      of_frame[slot].m2 += delta * delta;
    });
    for (size_t slot = 0; slot < totals.size(); ++slot) totals[slot].merge(of_frame[slot]);
  }
}

void FieldMoments::add(std::span<const float> values, std::span<const int32_t> group_of_row, int64_t frames) {
  check_internal(has_moments(), "floats for a field of floats");
  const std::vector<int32_t> places = places_of(group_of_row);
  add_ranges(values, places);
  for (int q = 0; q < kQuantities; ++q) add_moments(static_cast<Quantity>(q), values, places, frames);
}

void FieldMoments::add(std::span<const int32_t> values, std::span<const int32_t> group_of_row, int64_t) {
  add_ranges(values, places_of(group_of_row));
}

void FieldMoments::add(std::span<const int64_t> values, std::span<const int32_t> group_of_row, int64_t) {
  add_ranges(values, places_of(group_of_row));
}

void DataStatistics::count_nodes(std::span<const int32_t> node_type, int64_t frames) {
  for (const int32_t type : node_type) {
    const auto at = static_cast<size_t>(type);
    if (at >= node_type_counts.size()) node_type_counts.resize(at + 1, 0.0);
    node_type_counts[at] += static_cast<double>(frames);
  }
}

std::vector<Moments> edge_moments(std::span<const float> positions, int dim, const MeshEdges& edges) {
  const auto width = static_cast<size_t>(dim);
  std::vector<Moments> moments(edge_columns(dim));
  if (dim == 0) return moments;
  for (size_t e = 0; e < edges.senders.size(); ++e) {
    double square = 0;
    for (size_t d = 0; d < width; ++d) {
      const double difference =
          static_cast<double>(positions[static_cast<size_t>(edges.senders[e]) * width + d]) -
          static_cast<double>(positions[static_cast<size_t>(edges.receivers[e]) * width + d]);
      moments[d].add(difference);
      square += difference * difference;
    }
    moments[width].add(std::sqrt(square));
  }
  return moments;
}

}  // namespace meshgrad
