// SPDX-License-Identifier: Apache-2.0
// Trajectories of grids that are read frame by frame: files of VTK, frames of XDMF.
#pragma once
#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// In the order of their times, which are finite, where all frames have one.
template <class Frame>
void sort_by_time(std::vector<Frame>& frames) {
  if (!std::ranges::all_of(frames, [](const Frame& frame) { return frame.time.has_value(); })) return;
  std::ranges::stable_sort(frames, {}, [](const Frame& frame) { return *frame.time; });
}

struct GridFrame {
  std::string name;               ///< for errors
  std::optional<double> time;     ///< seconds; where nothing says it, the grid's own TimeValue counts
  uint64_t bytes = 0;             ///< of input
  std::function<VtkGrid()> read;  ///< its cells are linear
};

/// The frames of one trajectory (vtk_trajectory.h). Where a later frame has other cells, or other points by
/// number, a new part of the trajectory begins, which `warn` is told. Evenly spaced times give dt, to a part
/// of one frame its distance to the next. `node_types` is as VtkTrajectory takes it.
std::unique_ptr<TrajectorySource> open_grids(std::vector<GridFrame> frames,
                                             std::optional<std::string> node_types, WarningCallback warn);

}  // namespace meshgrad
