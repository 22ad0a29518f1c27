// SPDX-License-Identifier: Apache-2.0
// Trajectories in other units than the rest: millimetres among metres, degrees Celsius among kelvin.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

class UnitFinder {
 public:
  /// `infos` are those of the trajectory's fields, whose offsets were subtracted.
  void add(const RawTrajectory& trajectory, std::span<const FieldInfo> infos);

  /// Of the meshes' sizes along each axis; empty without positions.
  const std::vector<MeshExtent>& extents() const { return extents_; }

  /// A line for the positions, and each float field, that fall into two groups of trajectories: the largest
  /// absolute values about 1000 or 1000000 times apart (a factor of 2.5 either way; at most 10 times within a
  /// group), or the means about 273.15 (within 30) apart, at most 100 within a group, where the higher ones
  /// are at least 173. It names the first of the smaller group. Fields need three trajectories.
  std::vector<std::string> texts() const;

 private:
  struct Sizes {
    std::vector<double> largest, mean;  ///< by trajectory; nan: none
    bool scalar = true;
  };
  std::vector<std::string> names_;
  std::vector<MeshExtent> extents_;
  std::vector<double> sizes_;            // of meshes, by trajectory
  std::map<std::string, Sizes> fields_;  // of floats
};

}  // namespace meshgrad
