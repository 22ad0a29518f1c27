// SPDX-License-Identifier: Apache-2.0
// From named arrays, of an NPZ or HDF5 file, to a trajectory: by DeepMind's names, by other usual ones, or by
// a map.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// What the user says of arrays.
struct ArrayOptions {
  ArrayMap map;
  std::map<std::string, std::string> axes;  ///< of an array: "components,nodes" (npy_axes.h)
  std::optional<int> first_node;            ///< the number of the first node in cells, edges and facets
  std::string series;                       ///< a pattern of the names of groups (series_names.h)
  bool separate = false;                    ///< each group is a trajectory
};

/// The trajectory of `mesh_pos` [nodes, dim], `node_type` [nodes] and `cells` [cells, nodes_per_cell],
/// each with or without a leading 1, `node_type` with or without a trailing 1. `mesh_edge` [2, edges]
/// or [edges, 2] (senders, receivers; one way or both) makes the mesh where there are no cells, and numbers
/// the rows of edge fields. Without `mesh_pos` and `cells` it is a graph without positions, whose nodes are
/// counted by nodes_of_graph and whose integers become i32 where that holds them. Masks of nodes become the
/// fields of node_splits (graph_arrays.h).
///
/// Types may also be tags of cells, `cell:node_type` [cells], or of facets, `facet:node_type` [facets] with
/// `facets` [facets, nodes of a facet] (or [facets], single nodes): a node has the largest tag of what it
/// belongs to, or 0. A `node_type` whose length is that of cells or facets, and not of nodes, is read
/// likewise.
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
/// Names are those of arrays_by_map; `read_as` of the trajectory is the map of what was read.
///
/// Arrays of the mesh may be repeated for every frame; a field that is says so (RawField::repeats). Throws
/// DataError, naming both, where a shape has two readings and nothing else in the file tells which is meant:
/// [2 or 3, nodes] is frames or components, [nodes, nodes] either, and cells without point 0 count from 1 or
/// leave it out.
RawTrajectory trajectory_of_arrays(std::vector<NamedArray> arrays, const std::string& name,
                                   const ArrayOptions& options, const WarningCallback& warn);

}  // namespace meshgrad
