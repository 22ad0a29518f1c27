// SPDX-License-Identifier: Apache-2.0
// Positions that change over time: the mesh is at rest where the first frame has it, and the positions of all
// frames are a field on nodes.
#pragma once
#include <meshgrad/train/convert/sources/trajectory_source.h>

#include <string>

namespace meshgrad {

/// DeepMind's name of the field.
inline constexpr std::string_view kWorldPosition = "world_pos";

/// Whether some frame of [frames, count numbers] differs from the first.
template <class T>
bool positions_move(std::span<const T> all, size_t count) {
  for (size_t i = count; i < all.size(); ++i)
    if (all[i] != all[i - count]) return true;
  return false;
}

/// Adds the field kWorldPosition, [frames, nodes, components]; `wide` are the same numbers in f64, or empty.
/// Throws DataError, naming the trajectory, where it has a field of that name.
void add_world_position(RawTrajectory& trajectory, int components, std::vector<float> all,
                        std::vector<double> wide);

/// Adds it as the sum of the positions and a field of displacements on nodes, with as many components as the
/// mesh has dimensions, or 3. Throws DataError, naming the trajectory, where `field` is none
/// and where a sum is beyond f32.
void add_displaced_positions(RawTrajectory& trajectory, const std::string& field);

/// The field that its name says is one of displacements, which changes over time, in a trajectory without
/// kWorldPosition; or nothing.
std::string find_displacement(const RawTrajectory& trajectory);

}  // namespace meshgrad
