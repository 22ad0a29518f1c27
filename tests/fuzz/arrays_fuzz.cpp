// SPDX-License-Identifier: Apache-2.0
// Named arrays of every shape and kind, with and without a map, as NPZ and HDF5 files may have them; and the
// names of data sets and rows, of which layouts and vectors are guessed.
#include <fuzzer/FuzzedDataProvider.h>
#include <meshgrad/train/convert/sources/array_trajectory.h>
#include <meshgrad/train/convert/sources/hdf5_layout.h>
#include <meshgrad/train/convert/sources/hdf5_source.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

constexpr std::array<const char*, 25> kNames{
    "mesh_pos",   "cells",      "node_type",   "mesh_edge",  "times",      "dt",       "u",
    "velocity",   "edge:",      "edge:length", "cell:load",  "graph:Re",   "node:p",   "flow/xyz",
    "positions",  "types",      "world_pos",   "velocity_x", "velocity_y", "elements", "edges",
    "edge_index", "train_mask", "val_mask",    "test_mask"};

std::string name_of(FuzzedDataProvider& in) {
  return in.ConsumeBool() ? in.ConsumeRandomLengthString(12) : in.PickValueInArray(kNames);
}

NamedArray array_of(FuzzedDataProvider& in) {
  constexpr std::array<std::pair<char, int>, 9> kKinds{
      {{'f', 4}, {'f', 8}, {'i', 4}, {'i', 8}, {'u', 1}, {'b', 1}, {'u', 8}, {'i', 2}, {'u', 4}}};
  NamedArray made;
  made.name = name_of(in);
  made.numbers = in.ConsumeIntegralInRange(0, 15) != 0;
  const auto [kind, bytes] = in.PickValueInArray(kKinds);
  made.array.kind = kind;
  made.array.bytes = bytes;
  made.array.fortran_order = in.ConsumeBool();
  size_t count = 1;
  for (auto rank = in.ConsumeIntegralInRange(0, 4); rank > 0; --rank) {
    made.array.shape.push_back(in.ConsumeIntegralInRange<int64_t>(0, 6));
    count *= static_cast<size_t>(made.array.shape.back());
  }
  made.bytes.resize(count * static_cast<size_t>(bytes));
  const auto given = in.ConsumeBytes<uint8_t>(made.bytes.size());
  // Beyond what the input has: small numbers, as indices are.
  for (size_t i = 0; i < made.bytes.size(); ++i) {
    const bool low = kind != 'f' && i % static_cast<size_t>(bytes) == 0;
    made.bytes[i] = static_cast<std::byte>(i < given.size() ? given[i] : low ? i / 4 % 4 : 0);
  }
  made.array.data = made.bytes;
  return made;
}

void check_layout(const std::vector<std::string>& paths) {
  const GroupFacts facts{[](const std::string& path) { return std::vector<int64_t>(path.size() % 4, 2); },
                         [](const std::string&) { return std::nullopt; }};
  const Hdf5Layout layout = hdf5_layout(paths, {}, facts, "fuzz.h5");
  if (layout.trajectories.empty()) __builtin_trap();
  const std::set<std::string> known(paths.begin(), paths.end());
  for (const std::vector<std::string>& groups : layout.trajectories)
    for (const std::string& group : groups)
      for (const std::string& member : layout.members)
        if (!known.contains(group + member)) __builtin_trap();
  for (const std::string& path : layout.shared)
    if (!known.contains(path)) __builtin_trap();
  std::set<size_t> rows;
  for (const RowGroup& group : group_rows(paths))
    for (const size_t row : group.rows)
      if (row >= paths.size() || !rows.insert(row).second) __builtin_trap();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  std::vector<std::string> paths;
  for (auto count = in.ConsumeIntegralInRange(0, 8); count > 0; --count) paths.push_back(name_of(in));
  fuzz::expect_value_or_error([&] { check_layout(paths); });
  ArrayMap map;
  for (auto count = in.ConsumeIntegralInRange(0, 3); count > 0; --count) {
    std::string role = name_of(in);
    map[std::move(role)] = name_of(in);
  }
  std::vector<NamedArray> arrays;
  for (auto count = in.ConsumeIntegralInRange(0, 8); count > 0; --count) arrays.push_back(array_of(in));
  fuzz::expect_value_or_error([&] {
    validate(trajectory_of_arrays(std::move(arrays), "fuzz", {.map = map}, [](const std::string& text) {
      if (text.empty()) __builtin_trap();
    }));
  });
  return 0;
}
