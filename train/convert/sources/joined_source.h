// SPDX-License-Identifier: Apache-2.0
// Fields of one simulation in several files: FEniCS writes a list of frames for each.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// What tells whether two trajectories are one.
struct FieldsOnMesh {
  std::array<uint64_t, 2> mesh{};   ///< a hash of points, cells and edges
  std::vector<std::string> fields;  ///< and an empty name where there are node types
  std::string number = {};          ///< at the end of the file's name
};
FieldsOnMesh fields_on_mesh(const RawTrajectory& trajectory);

/// Which of them are one trajectory: on the same mesh, and without a field that two of them have; where a
/// field stands in several on one mesh, those of one number. Groups of indices, each ascending, in the order
/// of their first.
std::vector<std::vector<size_t>> fields_of_one_trajectory(std::span<const FieldsOnMesh> all);

/// The fields of all sources on the mesh of the first. Those of one frame are static beside others with more.
/// dt and node types are those of the first source that has them. Throws DataError that names two sources
/// that have other meshes, or numbers of frames other than 1 that differ.
std::unique_ptr<TrajectorySource> join_fields(std::vector<std::unique_ptr<TrajectorySource>> sources);

}  // namespace meshgrad
