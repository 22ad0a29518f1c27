// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/grid_frames.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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
    std::vector<double> times;
    VtkTrajectory trajectory(read(times), frames_[first].name, node_types_, warn_);
    while (at_ < frames_.size()) {
      const size_t before = at_;
      const VtkGrid grid = read(times);
      if (!trajectory.has_cells_of(grid)) {
        at_ = before;
        times.resize(before - first);
        break;
      }
      trajectory.append(grid, frames_[before].name);
    }
    RawTrajectory t = trajectory.finish();
    t.first_frame = static_cast<int64_t>(first);
    if (t.frames > 1) set_dt(t, times);
    return t;
  }

 private:
  VtkGrid read(std::vector<double>& times) {
    const GridFrame& frame = frames_[at_++];
    VtkGrid grid = frame.read();
    bytes_ += frame.bytes;
    times.push_back(frame.time ? *frame.time : time_of(grid).value_or(std::nan("")));
    return grid;
  }

  void set_dt(RawTrajectory& t, const std::vector<double>& times) const {
    if (std::any_of(times.begin(), times.end(), [](double time) { return std::isnan(time); })) return;
    if (const auto dt = even_spacing(times)) {
      t.dt = *dt;
    } else if (warn_) {
      warn_(fmt::format("[{}] times are not evenly spaced and were left out", t.name));
    }
  }

  std::vector<GridFrame> frames_;
  std::optional<std::string> node_types_;
  WarningCallback warn_;
  size_t at_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<TrajectorySource> open_grids(std::vector<GridFrame> frames,
                                             std::optional<std::string> node_types, WarningCallback warn) {
  return std::make_unique<GridSource>(std::move(frames), std::move(node_types), std::move(warn));
}

}  // namespace meshgrad
