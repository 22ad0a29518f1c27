// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/grid_frames.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>

namespace meshgrad {
namespace {

class GridSource : public TrajectorySource {
 public:
  GridSource(std::vector<GridFrame> frames, std::optional<std::string> node_types, WarningCallback warn)
      : frames_(std::move(frames)), node_types_(std::move(node_types)), warn_(std::move(warn)) {}

  int64_t records() const override { return 1; }
  uint64_t bytes_read() const override { return bytes_; }

  std::optional<RawTrajectory> next() override {
    if (at_ == frames_.size()) return std::nullopt;
    const size_t first = at_;
    VtkTrajectory trajectory(read(), frames_[first].name, node_types_, warn_);
    while (at_ < frames_.size()) {
      const size_t before = at_;
      VtkGrid grid = read();
      if (const auto node = trajectory.first_permuted_node(grid)) {
        throw data_error(frames_[before].name, "the nodes in the order of the frame before",
                         fmt::format("a permutation that begins at node {}", *node),
                         "write all frames with one order of nodes");
      }
      if (!trajectory.take_cell_order(grid)) {
        at_ = before;
        break;
      }
      trajectory.append(grid, frames_[before].name);
    }
    RawTrajectory t = trajectory.finish(frames_.size() > 1);
    t.first_frame = static_cast<int64_t>(first);
    for (size_t frame = first; frame < at_; ++frame) t.frame_files.push_back(frames_[frame].name);
    if (first > 0 && warn_) {
      warn_(
          fmt::format("[{}] the mesh is another one than that of the frame before: frame {} begins a new "
                      "trajectory; fix: where all frames have one mesh, this file is another run's",
                      t.name, first));
    }
    if (frames_.size() > 1) set_dt(t, first);
    return t;
  }

 private:
  VtkGrid read() {
    const GridFrame& frame = frames_[at_];
    VtkGrid grid = frame.read();
    bytes_ += frame.bytes;
    times_.resize(std::max(times_.size(), at_ + 1), std::nan(""));
    times_[at_++] = frame.time ? *frame.time : time_of(grid).value_or(std::nan(""));
    return grid;
  }

  void set_dt(RawTrajectory& t, size_t first) const {
    size_t begin = first, end = first + static_cast<size_t>(t.frames);
    // One frame is followed by one that was read to see that its mesh is another, or it is the last.
    if (t.frames == 1) end < times_.size() ? ++end : --begin;
    const std::span<const double> times(times_.begin() + static_cast<std::ptrdiff_t>(begin), end - begin);
    if (std::ranges::any_of(times, [](double time) { return std::isnan(time); })) return;
    const auto own = times.subspan(first - begin, static_cast<size_t>(t.frames));
    t.times.assign(own.begin(), own.end());
    if (const auto dt = even_spacing(times)) t.dt = *dt;
  }

  std::vector<GridFrame> frames_;
  std::optional<std::string> node_types_;
  WarningCallback warn_;
  size_t at_ = 0;
  std::vector<double> times_;  // of the frames read so far; nan where nothing says it
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<TrajectorySource> open_grids(std::vector<GridFrame> frames,
                                             std::optional<std::string> node_types, WarningCallback warn) {
  return std::make_unique<GridSource>(std::move(frames), std::move(node_types), std::move(warn));
}

}  // namespace meshgrad
