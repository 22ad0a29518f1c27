// SPDX-License-Identifier: Apache-2.0
// Lists of frames (.pvd and .series), blocks (.vtm), lists of splits, and maps of arrays.
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/split_list.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

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
