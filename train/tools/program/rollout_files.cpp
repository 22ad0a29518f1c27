// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/tools/program/field_frame.h>
#include <meshgrad/train/tools/program/prediction_folder.h>
#include <meshgrad/train/tools/program/rollout_files.h>
#include <meshgrad/train/tools/program/table_files.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// One VTU file: node_type, and for each field NAME, NAME_truth and NAME_error, the latter two where the data
/// has the truth. Points are at `positions`, unless null at those of the mesh.
void write_comparison(const fs::path& path, const MeshView& mesh, const std::vector<FieldFrame>& fields,
                      double time, const PointField* positions = nullptr) {
  std::vector<PointField> points;
  for (const FieldFrame& field : fields) {
    points.push_back({field.info.name, field.info.components, field.ours, field.info.offset});
    if (field.truth.empty()) continue;
    points.push_back({field.info.name + "_truth", field.info.components, field.truth, field.info.offset});
    points.push_back({field.info.name + "_error", field.info.components, field.error});
  }
  write_vtu(path, mesh, points, time, positions);
}

fs::path write_picture(const fs::path& path, const MeshView& mesh, const FieldFrame& field,
                       const std::vector<uint8_t>& mask, const std::string& caption) {
  write_file_atomically(path, draw_field(mesh, field, mask, caption));
  return path;
}

/// Of targets on graphs.
PredictedTable table_of(const MeshTask& task) {
  return {.rows = "graph", .groups = task.fields.graph_targets.columns()};
}

fs::path write_graphs(const MeshTask& task, const PredictedTable& table, const fs::path& directory) {
  if (table.groups.empty()) return {};
  return write_table(table, task.dataset.path().string(), directory).csv;
}

class RolloutWriter {
 public:
  RolloutWriter(const MeshTask& task, const RolloutFilesOptions& options, const TrajectoryView& trajectory)
      : task_(task),
        options_(options),
        trajectory_(trajectory),
        total_(rollout_frames(task, trajectory, {.steps = options.steps})),
        picture_steps_{1, 10, std::min(total_, rollout_frames(task, trajectory, {})) / 2,
                       std::min(total_, rollout_frames(task, trajectory, {}))},
        mask_(task.fields.predicted_mask(trajectory.mesh())),
        errors_(task) {
    begin_folder(options.directory, [&](const std::string& name) {
      return name == kSeries || is_numbered(name, "frame_", ".vtu") ||
             std::ranges::any_of(task.fields.targets, [&](const FieldInfo& field) {
               return is_numbered(name, file_name(field.name) + "_step_", ".svg");
             });
    });
  }

  /// The frame that the rollout starts from.
  void start() {
    const int64_t t = task_.for_validation().sample_frames(trajectory_.frames()).first;
    start_ = task_.fields.target_values(trajectory_, t);
    graph_start_ = task_.fields.graph_targets.row(trajectory_, t);
    write_frame(split_fields(task_.fields, start_, start_), start_, t);
  }

  void add(const RolloutFrame& frame) {
    ++files_.steps;
    const std::vector<FieldFrame> fields = split_fields(task_.fields, frame.ours, frame.truth);
    write_frame(fields, frame.ours, frame.t);
    if (!frame.truth.empty()) {
      if (picture_steps_.contains(files_.steps)) draw(fields, time_of(frame.t));
      ++files_.compared;
      errors_.nodes.add(frame.ours, frame.truth, mask_, start_);
      errors_.add_graph(frame.graphs, frame.graph_truth, graph_start_);
    }
    const std::vector<double> row(frame.graphs.begin(), frame.graphs.end());
    task_.fields.graph_targets.add_row(table_, {options_.trajectory, frame.t, 0}, row);
    if (options_.progress) options_.progress(files_.steps, total_);
  }

  RolloutFiles finish() {
    files_.series = options_.directory / kSeries;
    write_pvd(files_.series, entries_);
    files_.graphs = write_graphs(task_, table_, options_.directory);
    files_.fields = errors_.fields();
    return files_;
  }

 private:
  static constexpr const char* kSeries = "rollout.pvd";
  double time_of(int64_t t) const {
    return static_cast<double>(t + trajectory_.first_frame()) *
           (trajectory_.dt() > 0.0 ? trajectory_.dt() : 1.0);
  }
  /// Of frame t; `values` are all targets, [nodes, outputs]. A mesh that moves is where they say.
  void write_frame(const std::vector<FieldFrame>& fields, const std::vector<float>& values, int64_t t) {
    const std::string name = fmt::format("frame_{:05}.vtu", files_.steps);
    const auto& world = task_.fields.world_position;
    PointField positions;
    std::vector<float> gathered;
    if (world) {
      const int64_t last = trajectory_.frames() - 1;
      positions = {
          .name = world->field.name,
          .components = world->field.components,
          .values = task_.fields.current_positions(trajectory_, std::min(t, last), {values, {}}, gathered),
          .offset = world->field.offset};
    }
    write_comparison(options_.directory / name, trajectory_.mesh(), fields, time_of(t),
                     world ? &positions : nullptr);
    entries_.push_back({time_of(t), name});
  }
  void draw(const std::vector<FieldFrame>& fields, double time) {
    for (const FieldFrame& field : fields) {
      const std::string caption =
          fmt::format("{}, step {} of a rollout{}", field.info.name, files_.steps,
                      trajectory_.dt() > 0.0 ? fmt::format(", t = {:.3g} s", time) : "");
      const std::string name = fmt::format("{}_step_{:05}.svg", file_name(field.info.name), files_.steps);
      files_.pictures.push_back(
          write_picture(options_.directory / name, trajectory_.mesh(), field, mask_, caption));
    }
  }

  const MeshTask& task_;
  const RolloutFilesOptions& options_;
  const TrajectoryView& trajectory_;
  int64_t total_;
  std::set<int64_t> picture_steps_;
  std::vector<uint8_t> mask_;
  std::vector<float> start_, graph_start_;
  TargetErrors errors_;
  PredictedTable table_ = table_of(task_);
  std::vector<PvdEntry> entries_;
  RolloutFiles files_;
};

}  // namespace

RolloutFiles write_rollout(const Predictor& predictor, const RolloutFilesOptions& options) {
  const MeshTask& task = predictor.mesh_dynamics();
  const int64_t count = predictor.dataset().size(options.split);
  if (options.trajectory < 0 || options.trajectory >= count) {
    throw config_error("--trajectory", fmt::format("0 to {} in split {}", count - 1, options.split),
                       fmt::format("{}", options.trajectory), "choose one that exists");
  }
  const TrajectoryView trajectory = predictor.dataset().trajectory(options.split, options.trajectory);
  task.check_something_to_predict(options.split, options.trajectory);
  const int64_t data_steps = rollout_frames(task, trajectory, {});
  if (options.steps > data_steps && !options.beyond_data) {
    throw config_error(
        options.steps == predictor.config().rollout.steps ? "rollout.steps" : "--steps",
        fmt::format("at most {}, the steps of trajectory {} in the data", data_steps, options.trajectory),
        fmt::format("{}", options.steps), "add --beyond-data, which holds the boundary values from there on");
  }
  const RolloutBoundary boundary = options.boundary.value_or(predictor.config().rollout.boundary);
  const RolloutOptions rollout{.steps = options.steps, .boundary = boundary};
  if (!options.writes) {
    roll_out(predictor, trajectory, rollout, [](const RolloutFrame&) {});
    return {};
  }
  RolloutWriter writer(task, options, trajectory);
  writer.start();
  roll_out(predictor, trajectory, rollout, [&](const RolloutFrame& frame) { writer.add(frame); });
  RolloutFiles files = writer.finish();
  predictor.dataset().check_unchanged();
  files.boundary = boundary;
  files.baseline = baseline_name(task);
  files.inputs_from_data = task.fields.given_inputs();
  files.held_types = task.fields.held_types_of(task.dataset);
  return files;
}

namespace {

/// Whether a name is `before`, "mesh_" and a number, with or without a source, and `after`.
bool is_of_mesh(const std::string& name, const std::string& before, std::string_view after) {
  const std::string start = before + "mesh_";
  return name.starts_with(start) && name.ends_with(after) && name.size() >= start.size() + 5 &&
         name.substr(start.size(), 5).find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

PredictionFiles write_predictions(const Predictor& predictor, const PredictionFilesOptions& options) {
  const MeshTask& task = predictor.steady_field();
  const FieldSelection& selection = task.fields;
  task.check_something_to_predict(options.split);
  if (options.writes) {
    begin_folder(options.directory, [&](const std::string& name) {
      return is_of_mesh(name, "", ".vtu") ||
             std::ranges::any_of(selection.targets, [&](const FieldInfo& field) {
               return is_of_mesh(name, file_name(field.name) + "_", ".svg");
             });
    });
  }
  constexpr int64_t kPictures = 4;
  TargetErrors errors(task);
  PredictedTable table = table_of(task);
  const std::vector<float> graph_means = selection.graph_targets.means(task.dataset);
  PredictionFiles files;
  const int64_t all = predictor.dataset().size(options.split);
  const int64_t count = options.meshes > 0 ? std::min(options.meshes, all) : all;
  for (int64_t i = 0; i < count; ++i) {
    const TrajectoryView trajectory = predictor.dataset().trajectory(options.split, i);
    const MeshView& mesh = trajectory.mesh();
    const std::vector<uint8_t> mask = selection.predicted_mask(mesh);
    const std::vector<float> mean = task.mean_values(mesh);
    for (int64_t t = 0; t < trajectory.frames(); ++t) {
      std::vector<float> graphs;
      const std::vector<float> ours = predict_steady(predictor, trajectory, t, &graphs);
      if (!options.writes) continue;
      const std::vector<float> truth = selection.target_values(trajectory, t);
      errors.nodes.add(ours, truth, mask, mean);
      errors.add_graph(graphs, selection.graph_targets.row(trajectory, t), graph_means);
      selection.graph_targets.add_row(table, {i, t, 0}, std::vector<double>(graphs.begin(), graphs.end()));
      if (selection.targets.empty()) continue;  // the table has all
      const std::vector<FieldFrame> fields = split_fields(selection, ours, truth);
      const std::string number =
          trajectory.frames() > 1 ? fmt::format("mesh_{:05}_{:05}_", i, t) : fmt::format("mesh_{:05}_", i);
      const std::string name = number + SourceNames().take(trajectory.name());
      files.meshes.push_back(options.directory / (name + ".vtu"));
      files.sources.emplace_back(trajectory.name());
      write_comparison(files.meshes.back(), mesh, fields, 0.0);
      if (static_cast<int64_t>(files.meshes.size()) > kPictures) continue;
      for (const FieldFrame& field : fields) {
        const fs::path path = options.directory / fmt::format("{}_{}.svg", file_name(field.info.name), name);
        files.pictures.push_back(
            write_picture(path, mesh, field, mask, fmt::format("{}, mesh {}", field.info.name, i)));
      }
    }
    predictor.dataset().check_unchanged();
    if (options.progress) options.progress(i + 1, count);
  }
  if (options.writes) {
    files.fields = errors.fields();
    drop_first_frames(table);
    files.graphs = write_graphs(task, table, options.directory);
  }
  files.baseline = baseline_name(task);
  return files;
}

}  // namespace meshgrad
