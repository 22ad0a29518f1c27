// SPDX-License-Identifier: Apache-2.0
// Lists of frames (.pvd and .series), blocks (.vtm), lists of splits, maps of arrays, and names of series,
// whose order never matters.
#include <meshgrad/train/convert/series_names.h>
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/split_list.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

/// All readings of names, whatever their order: "PATTERN: NAME NAME | NAME".
std::string readings_of(const std::vector<std::string>& names) {
  std::string text;
  std::vector<int> in_family(names.size());
  for (const SeriesFamily& family : families_of(names)) {
    for (const size_t i : family.members) ++in_family.at(i);
    for (const SeriesReading& reading : family.readings) {
      text += reading.pattern + ":";
      std::vector<int> in_group(names.size());
      for (const std::vector<size_t>& group : reading.groups) {
        for (const size_t i : group) text += " " + names.at(i), ++in_group.at(i);
        text += " |";
      }
      for (const size_t i : family.members)
        if (in_group[i] != 1) __builtin_trap();
      text += "\n";
    }
  }
  for (const int count : in_family)
    if (count != 1) __builtin_trap();
  return text;
}

void check_names(std::string_view text) {
  std::vector<std::string> names;
  for (constexpr size_t kMost = 12; !text.empty() && names.size() < kMost;) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string name(text.substr(0, end));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const std::string first = readings_of(names);
  std::ranges::reverse(names);
  if (readings_of(names) != first) __builtin_trap();
  std::ranges::sort(names);
  if (readings_of(names) != first) __builtin_trap();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto content = fuzz::bytes_of(data, size);
  for (const char* name : {"a.pvd", "a.vtu.series"}) {
    fuzz::expect_value_or_error([&] {
      for (const VtkFrame& frame : parse_frame_list(content, name))
        if (frame.time && !std::isfinite(*frame.time)) __builtin_trap();
    });
  }
  fuzz::expect_value_or_error([&] {
    if (mesh_of_blocks(content, "folder/a.vtm").extension() != ".vtu") __builtin_trap();
  });
  fuzz::expect_value_or_error([&] {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const ArrayMap map = parse_array_map(text, "map.txt");
    for (const auto& [name, array] : map)
      if (name.empty() || array.empty()) __builtin_trap();
    if (parse_array_map(array_map_text(map, text), "map.txt") != map) __builtin_trap();
    // Any name that a file has can be written and read.
    const ArrayMap any{{"u" + std::string(text), "v" + std::string(text)},
                       {"positions", std::string(text) + "x"}};
    if (parse_array_map(array_map_text(any, ""), "map.txt") != any) __builtin_trap();
  });
  fuzz::expect_value_or_error([&] { check_names({reinterpret_cast<const char*>(data), size}); });
  fuzz::expect_value_or_error([&] {
    const std::vector<ListableFile> files{{"a.npz", 1}, {"b/a.npz", 20}, {"b/c,1.npz", 3}, {"empty.npz", 0}};
    const std::string text(reinterpret_cast<const char*>(data), size);
    const std::vector<std::string> splits = parse_split_list(text, "splits.txt", files);
    if (splits.size() != 24) __builtin_trap();
    for (const std::string& split : splits)
      if (!split.empty() && split != "train" && split != "valid" && split != "test") __builtin_trap();
  });
  return 0;
}
