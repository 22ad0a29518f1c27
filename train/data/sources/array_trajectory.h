// SPDX-License-Identifier: Apache-2.0
// From named arrays, of an NPZ or HDF5 file, to a trajectory: by DeepMind's names, by other usual ones, or by
// a map.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <meshgrad/train/data/sources/npy.h>
#include <meshgrad/train/data/sources/trajectory_source.h>

namespace meshgrad {

struct NamedArray {
  std::string name;
  std::vector<std::byte> bytes;  ///< which `array` is a view of
  NpyArray array;
  bool numbers = true;  ///< false: text, dates, objects or records, of which `array` says nothing
};

/// Which array is what: from "positions", "cells", "edges", "types", or a field's name (with or without the
/// prefixes below), to the array's name in the file.
using ArrayMap = std::map<std::string, std::string>;

/// The trajectory of `mesh_pos` [nodes, dim], `node_type` [nodes] and `cells` [cells, nodes_per_cell],
/// each with or without a leading 1, `node_type` with or without a trailing 1. `mesh_edge` [2, edges]
/// (senders, receivers; one way or both) makes the mesh where there are no cells, and numbers the rows of
/// edge fields.
///
/// Every other array is a field, on what its prefix says: `node:NAME` or plain `NAME`, `edge:NAME`,
/// `cell:NAME`, `graph:NAME`. It is [frames, rows, components] or, with one component, [frames, rows]; static
/// as [rows, components], [1, rows, components] or [rows]. Rows are nodes, columns of mesh_edge, or cells, in
/// the file's order. A graph has one row: a number, [components] or [frames, components]. Integers stay
/// integers.
///
/// Text, objects, and numbers and vectors that no axis of nodes makes a field are left out, which `warn` is
/// told; so is a mesh_edge that cells and the lack of edge fields make useless. Without dt, evenly spaced
/// `times` (or `time`, or `t`) [frames] give it. Throws DataError naming file and array, also for positions
/// or node types over frames, and for a field whose columns are as many as there are frames.
///
/// With a map that names fields, these alone are fields. Without one, an array of the mesh may have another
/// usual name, such as points or elements; `warn` is told the map that says the same.
RawTrajectory trajectory_of_arrays(std::vector<NamedArray> arrays, const std::string& name,
                                   const ArrayMap& map, const WarningCallback& warn);

}  // namespace meshgrad
