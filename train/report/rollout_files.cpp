// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/report/field_picture.h>
#include <meshgrad/train/report/rollout_files.h>
#include <meshgrad/train/report/vtu.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// Columns [first, first + count) of rows of `width` values.
std::vector<float> columns(const std::vector<float>& rows, size_t width, size_t first, size_t count) {
  std::vector<float> result;
  for (size_t row = 0; row + width <= rows.size(); row += width) {
    for (size_t c = 0; c < count; ++c) result.push_back(rows[row + first + c]);
  }
  return result;
}

/// One target field of one frame.
struct FieldFrame {
  FieldInfo info;
  std::vector<float> ours, truth, error;
};

std::vector<FieldFrame> split_fields(const FrameFeatures& features, const std::vector<float>& ours,
                                     const std::vector<float>& truth) {
  std::vector<FieldFrame> fields;
  size_t first = 0;
  for (const FieldInfo& info : features.targets()) {
    const auto count = static_cast<size_t>(info.components);
    FieldFrame field{info,
                     columns(ours, static_cast<size_t>(features.outputs()), first, count),
                     columns(truth, static_cast<size_t>(features.outputs()), first, count),
                     {}};
    for (size_t i = 0; i < field.ours.size(); ++i) field.error.push_back(field.ours[i] - field.truth[i]);
    fields.push_back(std::move(field));
    first += count;
  }
  return fields;
}

class RolloutWriter {
 public:
  RolloutWriter(const Predictor& predictor, const RolloutFilesOptions& options,
                const TrajectoryView& trajectory)
      : predictor_(predictor), options_(options), trajectory_(trajectory) {
    std::error_code error;
    fs::create_directories(options.directory, error);
    if (error)
      throw data_error(options.directory.string(), "a folder that can be made", error.message(),
                       "choose another with -o");
    const auto types = trajectory.mesh().node_type;
    node_types_.assign(types.begin(), types.end());
    mask_ = predictor.features().predicted_mask(trajectory.mesh());
    const FrameRange range = usable_frames(predictor.config().data.predict, trajectory.frames());
    total_ = range.end - range.first;
    if (options.steps > 0) total_ = std::min(total_, options.steps);
    picture_steps_ = {1, 10, total_ / 2, total_};
  }

  void add(int64_t t, const std::vector<float>& ours, const std::vector<float>& truth) {
    ++step_;
    const std::vector<FieldFrame> fields = split_fields(predictor_.features(), ours, truth);
    const double dt = trajectory_.dt() > 0.0 ? trajectory_.dt() : 1.0;
    const double time = static_cast<double>(t + trajectory_.first_frame()) * dt;
    write_frame(fields, time);
    if (picture_steps_.contains(step_)) draw(fields, time);
    sum_ += mean_squared_error(ours, truth, mask_);
    if (options_.progress) options_.progress(step_, total_);
  }

  RolloutFiles finish() {
    files_.series = options_.directory / "rollout.pvd";
    write_pvd(files_.series, entries_);
    files_.steps = step_;
    files_.rmse = step_ > 0 ? std::sqrt(sum_ / static_cast<double>(step_)) : std::nan("");
    return files_;
  }

 private:
  void write_frame(const std::vector<FieldFrame>& fields, double time) {
    std::vector<PointField> points{{"node_type", 1, node_types_}};
    for (const FieldFrame& field : fields) {
      points.push_back({field.info.name, field.info.components, field.ours});
      points.push_back({field.info.name + "_truth", field.info.components, field.truth});
      points.push_back({field.info.name + "_error", field.info.components, field.error});
    }
    const std::string name = fmt::format("frame_{:05}.vtu", step_);
    write_vtu(options_.directory / name, trajectory_.mesh(), points, time);
    entries_.push_back({time, name});
  }

  void draw(const std::vector<FieldFrame>& fields, double time) {
    for (const FieldFrame& field : fields) {
      const fs::path path = options_.directory / fmt::format("{}_step_{:05}.svg", field.info.name, step_);
      const std::string caption =
          fmt::format("{}, step {} of a rollout{}", field.info.name, step_,
                      trajectory_.dt() > 0.0 ? fmt::format(", t = {:.3g} s", time) : "");
      write_file_atomically(
          path,
          draw_comparison(trajectory_.mesh(), {field.info.name, field.info.components, field.ours},
                          {field.info.name, field.info.components, field.truth}, {caption, field.info.unit}));
      files_.pictures.push_back(path);
    }
  }

  const Predictor& predictor_;
  const RolloutFilesOptions& options_;
  const TrajectoryView& trajectory_;
  std::vector<float> node_types_;
  std::set<int64_t> picture_steps_;
  int64_t total_ = 0;
  int64_t step_ = 0;
  double sum_ = 0.0;
  std::vector<uint8_t> mask_;
  std::vector<PvdEntry> entries_;
  RolloutFiles files_;
};

}  // namespace

RolloutFiles write_rollout(const Predictor& predictor, const RolloutFilesOptions& options) {
  const int64_t count = predictor.dataset().size(options.split);
  if (options.trajectory < 0 || options.trajectory >= count) {
    throw config_error("--trajectory", fmt::format("0 to {} in split {}", count - 1, options.split),
                       fmt::format("{}", options.trajectory), "choose one that exists");
  }
  const TrajectoryView trajectory = predictor.dataset().trajectory(options.split, options.trajectory);
  RolloutWriter writer(predictor, options, trajectory);
  roll_out(predictor, trajectory, options.steps,
           options.boundary.value_or(predictor.config().rollout.boundary),
           [&](int64_t t, const std::vector<float>& ours, const std::vector<float>& truth) {
             writer.add(t, ours, truth);
           });
  return writer.finish();
}

}  // namespace meshgrad
