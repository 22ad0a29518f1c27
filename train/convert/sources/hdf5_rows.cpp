// SPDX-License-Identifier: Apache-2.0
// How the named rows of nodal_data make up fields; needs no HDF5.
#include <array>

#include <meshgrad/train/convert/sources/hdf5_source.h>

namespace meshgrad {
namespace {

struct AxisName {
  std::string base;  // the name without its axis; empty for a bare x, y, z
  int axis = -1;     // 0, 1, 2; -1 when the name has none
};

AxisName split_axis(const std::string& name) {
  constexpr std::array<char, 3> kAxes{'x', 'y', 'z'};
  for (int axis = 0; axis < 3; ++axis) {
    const char letter = kAxes[static_cast<size_t>(axis)];
    if (name == std::string(1, letter)) return {"", axis};
    const size_t size = name.size();
    if (size > 2 && name[size - 2] == '_' && name[size - 1] == letter)
      return {name.substr(0, size - 2), axis};
    if (size > 2 && name[0] == letter && name[1] == '_') return {name.substr(2), axis};
  }
  return {name, -1};
}

bool is_position(const std::string& base) {
  for (const char* known : {"", "coord", "coords", "pos", "position", "mesh_pos"}) {
    if (base == known) return true;
  }
  return false;
}

}  // namespace

std::vector<RowGroup> group_rows(const std::vector<std::string>& names) {
  std::vector<RowGroup> groups;
  std::string open_base;
  int next_axis = -1;
  for (size_t row = 0; row < names.size(); ++row) {
    const AxisName name = split_axis(names[row]);
    if (name.axis > 0 && name.axis == next_axis && name.base == open_base) {
      groups.back().rows.push_back(row);
      ++next_axis;
      continue;
    }
    const bool starts = name.axis == 0;
    const bool followed = row + 1 < names.size() && split_axis(names[row + 1]).axis == 1 &&
                          split_axis(names[row + 1]).base == name.base;
    if (starts && followed) {
      groups.push_back({is_position(name.base) ? "mesh_pos" : name.base, {row}});
      open_base = name.base;
      next_axis = 1;
    } else {
      groups.push_back({names[row], {row}});
      next_axis = -1;
    }
  }
  return groups;
}

}  // namespace meshgrad
