// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/npy_axes.h>

namespace meshgrad {
namespace {

using Sizes = std::array<int64_t, 3>;

/// Bytes from one number to the next along each axis.
std::vector<int64_t> strides_of(const NpyArray& array) {
  std::vector<int64_t> strides(array.shape.size());
  int64_t stride = array.bytes;
  for (size_t i = 0; i < strides.size(); ++i) {
    const size_t axis = array.fortran_order ? i : strides.size() - 1 - i;
    strides[axis] = stride;
    stride *= array.shape[axis];
  }
  return strides;
}

/// The numbers in row-major order of three axes.
std::vector<std::byte> gathered(const NpyArray& array, const Sizes& sizes, const Sizes& strides) {
  std::vector<std::byte> bytes;
  bytes.reserve(array.data.size());
  const auto width = static_cast<size_t>(array.bytes);
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      for (int64_t k = 0; k < sizes[2]; ++k) {
        const auto number =
            array.data.subspan(static_cast<size_t>(i * strides[0] + j * strides[1] + k * strides[2]), width);
        bytes.insert(bytes.end(), number.begin(), number.end());
      }
    }
  }
  return bytes;
}

std::optional<size_t> place_of_axis(const std::string& word) {
  if (word == "frames") return 0;
  if (word == "nodes" || word == "edges" || word == "cells") return 1;
  if (word == "components") return 2;
  return std::nullopt;
}

/// Seconds in a unit of time.
std::optional<double> seconds_in(std::string_view unit) {
  struct Unit {
    double seconds;
    std::vector<std::string_view> names;
  };
  static const std::array<Unit, 8> kUnits{{{1, {"", "1", "s", "sec", "secs", "second", "seconds"}},
                                           {1e-3, {"ms", "msec", "msecs", "millisecond", "milliseconds"}},
                                           {1e-6, {"us", "microsecond", "microseconds"}},
                                           {1e-9, {"ns", "nanosecond", "nanoseconds"}},
                                           {60, {"min", "mins", "minute", "minutes"}},
                                           {3600, {"h", "hr", "hrs", "hour", "hours"}},
                                           {86400, {"d", "day", "days"}},
                                           {604800, {"week", "weeks"}}}};
  std::string name(unit.substr(0, unit.find(" since ")));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  while (name.ends_with(' ')) name.pop_back();
  for (const Unit& known : kUnits)
    if (std::ranges::find(known.names, name) != known.names.end()) return known.seconds;
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<double>> in_seconds(const NamedArray& times) {
  const auto seconds = seconds_in(times.unit);
  if (!seconds) return std::nullopt;
  std::vector<double> values = to_doubles(times.array);
  for (double& value : values) value *= *seconds;
  return values;
}

void put_axes_in_order(NamedArray& array, const std::string& axes, const std::string& where) {
  std::vector<size_t> places;
  std::istringstream words(axes);
  for (std::string word; std::getline(words, word, ',');) {
    const auto place = place_of_axis(word);
    if (!place || std::ranges::find(places, *place) != places.end()) {
      throw config_error("axes", "frames, components, and nodes, edges or cells, each once", axes,
                         "write for example --axes velocity=components,nodes");
    }
    places.push_back(*place);
  }
  NpyArray& from = array.array;
  if (places.size() != from.shape.size() || std::ranges::find(places, size_t{1}) == places.end()) {
    throw data_error(where,
                     fmt::format("an axis for each of {}, one of nodes, edges or cells among them", axes),
                     shape_text(from), "name the axes that the array has, in their order: --axes");
  }
  Sizes sizes{1, 1, 1}, strides{0, 0, 0};
  const std::vector<int64_t> all = strides_of(from);
  for (size_t i = 0; i < places.size(); ++i) {
    sizes[places[i]] = from.shape[i];
    strides[places[i]] = all[i];
  }
  std::vector<std::byte> bytes = gathered(from, sizes, strides);
  array.bytes = std::move(bytes);
  from.shape.assign(sizes.begin(), sizes.end());
  from.fortran_order = false;
  from.data = array.bytes;
}

int64_t first_change(const NpyArray& array) {
  if (array.shape.empty() || array.shape[0] < 2 || array.size() == 0) return 0;
  const int64_t size = array.size() / array.shape[0];
  const auto frames = static_cast<size_t>(array.shape[0]);
  const auto width = static_cast<size_t>(array.bytes);
  // In the order of Fortran the first axis is the innermost.
  if (array.fortran_order) {
    int64_t first = 0;
    for (size_t row = 0; row < static_cast<size_t>(size); ++row) {
      const auto numbers = array.data.subspan(row * frames * width, frames * width);
      for (size_t frame = 1; frame < (first == 0 ? frames : static_cast<size_t>(first)); ++frame)
        if (std::memcmp(numbers.data(), numbers.data() + frame * width, width) != 0)
          first = static_cast<int64_t>(frame);
    }
    return first;
  }
  const size_t bytes = static_cast<size_t>(size) * width;
  for (size_t frame = 1; frame < frames; ++frame)
    if (std::memcmp(array.data.data(), array.data.data() + frame * bytes, bytes) != 0)
      return static_cast<int64_t>(frame);
  return 0;
}

void keep_first(NamedArray& array) {
  NpyArray& from = array.array;
  const int64_t frames = from.shape[0];
  Sizes strides{0, from.fortran_order ? from.bytes * frames : from.bytes, 0};
  // The other axes keep their order in memory.
  std::vector<std::byte> bytes = gathered(from, {1, from.size() / frames, 1}, strides);
  array.bytes = std::move(bytes);
  from.shape.erase(from.shape.begin());
  from.data = array.bytes;
}

void count_from_zero(std::vector<int32_t>& numbers, std::optional<int> given, int64_t nodes,
                     const std::string& where) {
  int32_t least = std::numeric_limits<int32_t>::max(), most = 0;
  for (const int32_t number : numbers) {
    if (number >= 0) least = std::min(least, number);
    most = std::max(most, number);
  }
  const int first = given.value_or(0);
  if (given && (least < first || most - first >= nodes)) {
    throw data_error(
        where, fmt::format("nodes from {0} to {1}, as --first-node {0} says", first, first + nodes - 1),
        fmt::format("{} to {}", least, most), "give another --first-node, or correct the numbers");
  }
  if (!given && least == 1) {
    throw data_error(where, "nodes that count from 0 or from 1",
                     fmt::format("{} to {} of {} nodes: from 0 with node 0 unused{}", least, most, nodes,
                                 most < nodes ? ", or from 1" : " is too many; from 1 fits"),
                     "--first-node 0 or --first-node 1 says it");
  }
  for (int32_t& number : numbers)
    if (number >= 0) number -= first;
}

}  // namespace meshgrad
