// SPDX-License-Identifier: Apache-2.0
// Which array of an NPZ or HDF5 file is what: guessed from usual names, given by a map, or read from a file.
#pragma once
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/convert/sources/npy.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

struct NamedArray {
  std::string name;
  std::vector<std::byte> bytes;  ///< which `array` is a view of
  NpyArray array;
  bool numbers = true;   ///< false: text, dates, objects or records, of which `array` says nothing
  std::string source{};  ///< its name in the file, once a map or a guess gave it another
  std::string unit{};    ///< that the file says; empty: none
};

/// Which array is what: from "positions", "cells", "edges", "facets", "types", "cell:types", "facet:types",
/// or a field's name (with or without the prefixes of array_trajectory.h), to the array's name in the file.
using ArrayMap = std::map<std::string, std::string>;

/// Times, or a dt, in seconds; nothing where their unit is none of time, or of no fixed length (months). A
/// unit is one of UDUNITS, also with a date: "hours since 2000-01-01" (CF Metadata Conventions 1.11, section
/// 4.4). Numbers without a unit are in seconds.
std::optional<std::vector<double>> in_seconds(const NamedArray& times);

/// Names of arrays of node types: on nodes (or what their length says), cells, or facets.
constexpr std::array<std::string_view, 3> kTypeArrays{"node_type", "cell:node_type", "facet:node_type"};

/// Arrays of the mesh under the names that array_trajectory.h reads. With a map that names fields, these
/// alone are kept; node types that it names replace others. What it does not name of the mesh may have a
/// usual name, such as points or elements; `warn` is told the map that says the same. Throws DataError for an
/// array that is not there, and for arrays and names that the map has twice.
std::vector<NamedArray> arrays_by_map(std::vector<NamedArray> arrays, const std::string& where,
                                      const ArrayMap& map, const WarningCallback& warn);

/// "positions" of "mesh_pos": what a map calls the array that is read under this name; and back.
std::string name_in_map(const std::string& array);
std::string name_of_array(const std::string& in_map);

/// Whether an array of this name is part of the mesh.
bool is_mesh_array(std::string_view name);

/// Whether these are the times of the frames: [frames] under a usual name, and not a static field on nodes.
bool are_times(const NamedArray& array, int64_t nodes);

std::string shape_text(const NpyArray& array);

inline constexpr size_t kLargestMapFile = size_t{64} << 20;  ///< bytes

/// The text of a map: each line is NAME=ARRAY, empty, or a comment that begins with "#". A name that begins
/// or ends with a blank, begins with "#" or a double quote, or (NAME alone) contains "=" stands in double
/// quotes, where \" \\ \n and \r mean what they do in C. Throws DataError for other lines and for a NAME
/// given twice; defined for any bytes.
ArrayMap parse_array_map(std::string_view content, const std::string& file);
/// Of a file of at most kLargestMapFile bytes.
ArrayMap read_array_map(const std::filesystem::path& file);
/// A file that parse_array_map reads as the same map; lines of `comment` come first, after "# ".
std::string array_map_text(const ArrayMap& map, std::string_view comment);

}  // namespace meshgrad
