// SPDX-License-Identifier: Apache-2.0
// NPZ files (a zip of .npy arrays) with DeepMind's keys: mesh_pos, node_type, cells or mesh_edge, and fields.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <meshgrad/train/data/sources/trajectory_source.h>

namespace meshgrad {

/// One trajectory a file: `mesh_pos` [nodes, dim], `node_type` [nodes] and `cells` [cells, nodes_per_cell],
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
std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, WarningCallback warn = {});

/// The trajectory in the bytes of an NPZ file; defined for any bytes.
RawTrajectory trajectory_of_npz(std::span<const std::byte> file, const std::string& name,
                                const WarningCallback& warn = {});

}  // namespace meshgrad
