// SPDX-License-Identifier: Apache-2.0
// NPZ files (a zip of .npy arrays) with DeepMind's keys: mesh_pos, node_type, cells or mesh_edge, and fields.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <meshgrad/train/convert/sources/array_trajectory.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// One trajectory a file (array_trajectory.h), or one for each graph of graph_collection.h. Throws DataError
/// naming file and array.
std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, ArrayOptions options = {},
                                           WarningCallback warn = {});

/// The trajectory in the bytes of an NPZ file; defined for any bytes.
RawTrajectory trajectory_of_npz(std::span<const std::byte> file, const std::string& name,
                                const ArrayOptions& options = {}, const WarningCallback& warn = {});

}  // namespace meshgrad
