// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/learn/task/graph_task.h>
#include <meshgrad/train/tools/program/boundary_table.h>
#include <meshgrad/train/tools/program/new_data.h>
#include <meshgrad/train/tools/program/prediction_folder.h>
#include <meshgrad/train/tools/program/seen_ranges.h>
#include <meshgrad/train/tools/program/table_files.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using From = NewBoundary::From;

/// What a model reads and predicts, held against the fields of new data.
class NewFields {
 public:
  NewFields(const MeshPredictor& predictor, const Dataset& data) : predictor_(predictor), data_(data) {}

  const FieldInfo* find(const std::string& name) const {
    const auto found = std::ranges::find(data_.fields(), name, &FieldInfo::name);
    return found == data_.fields().end() ? nullptr : &*found;
  }

  void check() const {
    if (data_.dim() != predictor_.dim()) {
      throw data_error(source(),
                       fmt::format("positions in {}-D, as the model was trained with", predictor_.dim()),
                       fmt::format("{}-D", data_.dim()), "give data of the same dimensions");
    }
    for (const FieldInfo& field : predictor_.inputs())
      if (!is_target(field.name)) check(field, true);
    for (const FieldInfo& field : predictor_.targets()) check(field, over_time());
    const int64_t types = predictor_.config().data.node_types;
    if (data_.node_types() > types) {
      throw data_error(source(), fmt::format("node types 0 to {}, which the model knows", types - 1),
                       fmt::format("{}", data_.node_types() - 1),
                       "give nodes the types of the training data");
    }
  }

  bool over_time() const { return predictor_.config().task.name == TaskName::mesh_dynamics; }
  bool is_target(const std::string& name) const {
    return std::ranges::find(predictor_.targets(), name, &FieldInfo::name) != predictor_.targets().end();
  }

 private:
  const std::string& source() const { return data_.source(); }

  void check(const FieldInfo& needed, bool required) const {
    const FieldInfo* got = find(needed.name);
    if (got == nullptr) {
      if (!required) return;
      std::vector<std::string> names;
      for (const FieldInfo& field : data_.fields()) names.push_back(field.name);
      throw data_error(source(), fmt::format("the field \"{}\", which the model reads", needed.name),
                       names.empty() ? "no field" : listed(names),
                       is_target(needed.name) ? "give its first frame" : "add it to the data");
    }
    const auto wrong = [&](const std::string& wanted, const std::string& is, std::string_view fix) {
      return data_error(fmt::format("{}: field {}", source(), needed.name), wanted, is, fix);
    };
    if (got->components != needed.components || got->on != needed.on || got->dtype != DType::f32) {
      throw wrong(fmt::format("{} of f32 on each {}, as in training", counted(needed.components, "component"),
                              name_of(needed.on)),
                  fmt::format("{} of {} on each {}", got->components, name_of(got->dtype), name_of(got->on)),
                  "give the field as the training data has it");
    }
    if (got->dynamic && !needed.dynamic)
      throw wrong("a field without time, as in training", "a field over time", "give its one frame");
    if (!got->unit.empty() && !needed.unit.empty() && got->unit != needed.unit)
      throw wrong(needed.unit + ", as in training", got->unit,
                  "convert its values, and name the unit: meshgrad convert --unit FIELD=UNIT");
  }

  const MeshPredictor& predictor_;
  const Dataset& data_;
};

/// Predicts on one trajectory.
class NewTrajectory {
 public:
  NewTrajectory(MeshPredictor& predictor, const NewFields& fields, const TrajectoryView& trajectory,
                const std::optional<TrainingData>& trained, std::set<std::string>& notes, SeenRanges& seen)
      : predictor_(predictor),
        fields_(fields),
        trajectory_(trajectory),
        trained_(trained),
        notes_(notes),
        seen_(seen) {
    const MeshView& mesh = trajectory.mesh();
    seen_.add(mesh);
    predictor_.set_mesh({.positions = mesh.positions,
                         .first = mesh.senders,
                         .second = mesh.receivers,
                         .node_type = mesh.node_type});
  }

  const TrajectoryView& trajectory() const { return trajectory_; }
  const NewFields& fields() const { return fields_; }

  /// The fields of frame t as the state to predict from.
  void set(int64_t t) {
    for (const FieldInfo& field : predictor_.inputs())
      if (!fields_.is_target(field.name)) set_input(field.name, t);
    for (const FieldInfo& field : predictor_.targets()) {
      if (fields_.find(field.name) == nullptr) continue;
      const std::vector<double> now = values(field.name, t);
      if (fields_.over_time()) seen_.add(field.name, now, static_cast<size_t>(field.components));
      predictor_.set_field(field.name, now);
      for (int64_t before = 1; before <= predictor_.earlier_frames(); ++before)
        predictor_.set_previous_field(field.name, values(field.name, t - before), 0, before);
    }
  }

  /// An input is held after its last frame.
  void set_input(const std::string& name, int64_t t) {
    const int64_t last = trajectory_.field(name).frames - 1;
    if (t > last && last > 0) {
      notes_.insert(fmt::format("{} is held after its last frame, {}", name, last));
    } else if (t > 0 && is_dynamic_in_training(name) && last == 0) {
      notes_.insert(
          fmt::format("{} is held at its first frame; the training data have it for each frame", name));
    }
    held_[name] = values(name, std::min(t, last));
    seen_.add(name, held_[name], static_cast<size_t>(fields_.find(name)->components));
    predictor_.set_field(name, held_[name]);
  }

  /// The real values of a field, [rows, components].
  std::vector<double> values(const std::string& name, int64_t t) const {
    const FieldView field = trajectory_.field(name);
    const FieldInfo& info = *fields_.find(name);
    const std::span<const float> stored = field.frame(t);
    std::vector<double> real(stored.begin(), stored.end());
    const auto components = static_cast<size_t>(info.components);
    for (size_t i = 0; i < real.size(); ++i) real[i] += info.offset_of(i % components);
    return real;
  }

  /// Frames of a field that the data has.
  int64_t frames(const std::string& name) const { return trajectory_.field(name).frames; }

  std::vector<double> predicted(const FieldInfo& target) const {
    std::vector<double> now(static_cast<size_t>(trajectory_.mesh().nodes * target.components));
    predictor_.get_field(target.name, now);
    return now;
  }

  /// Targets and node types, to a VTU file if there is a path, and to the tables.
  void write(const fs::path& path, double time, int64_t t, PredictionTables& tables) const {
    const MeshView& mesh = trajectory_.mesh();
    const DataConfig& config = predictor_.config().data;
    std::vector<std::vector<float>> columns;
    std::vector<PointField> points;
    for (const FieldInfo& target : predictor_.targets()) {
      const bool given = fields_.find(target.name) != nullptr;
      const std::vector<double> offset = offset_of(target.name);
      std::vector<float>& stored = columns.emplace_back(less(predicted(target), offset));
      const auto components = static_cast<size_t>(target.components);
      for (size_t i = 0; i < stored.size() && !given; ++i) {
        if (!contains_type(config.predicted_types, mesh.node_type[i / components]))
          stored[i] = std::numeric_limits<float>::quiet_NaN();
      }
      points.push_back({target.name, target.components, {}, offset});
    }
    for (size_t i = 0; i < points.size(); ++i) points[i].values = columns[i];
    tables.add(time, points);
    if (path.empty()) return;
    PointField positions;
    std::vector<float> given;  // by an input
    if (const std::string& name = config.world_position; fields_.is_target(name)) {
      positions = *std::ranges::find(points, name, &PointField::name);
    } else if (!name.empty()) {
      given = less(values(name, std::min(t, frames(name) - 1)), offset_of(name));
      positions = {name, fields_.find(name)->components, given, offset_of(name)};
    }
    write_vtu(path, mesh, points, time, positions.name.empty() ? nullptr : &positions);
  }

  /// Nodes that are not predicted, after the step to frame t.
  void set_boundary(int64_t t, double time, const NewBoundary& boundary, const BoundaryTable* table) {
    if (boundary.from == From::data) {
      for (const FieldInfo& target : predictor_.targets())
        predictor_.set_boundary(target.name, values(target.name, t));
    }
    if (table == nullptr) return;
    std::map<int64_t, std::vector<double>> by_type;
    const std::span<const int32_t> types = trajectory_.mesh().node_type;
    for (const int32_t type : types)
      if (!by_type.contains(type)) by_type[type] = table->at(type, time);
    for (size_t target = 0; target < predictor_.targets().size(); ++target) {
      const FieldInfo& info = predictor_.targets()[target];
      std::vector<double> now = predicted(info);
      bool changed = false;
      for (size_t c = 0; c < table->columns().size(); ++c) {
        const auto [of, component] = table->columns()[c];
        if (of != target) continue;
        changed = true;
        for (size_t node = 0; node < types.size(); ++node) {
          const std::vector<double>& given = by_type[types[node]];
          if (!given.empty()) now[node * static_cast<size_t>(info.components) + component] = given[c];
        }
      }
      if (changed) predictor_.set_boundary(info.name, now);
    }
  }

  /// What nodes of data.kinematic_types do in the step from frame t.
  void set_next(int64_t t) {
    const DataConfig& config = predictor_.config().data;
    if (config.kinematic_types.empty()) return;
    for (const std::string& name : known_names()) predictor_.set_next_field(name, values(name, t + 1));
  }

  /// Fields whose next frame the model knows at nodes of data.kinematic_types.
  std::vector<std::string> known_names() const {
    const DataConfig& config = predictor_.config().data;
    if (config.kinematic_types.empty()) return {};
    if (!config.world_position.empty()) return {config.world_position};
    std::vector<std::string> names;
    for (const FieldInfo& target : predictor_.targets()) names.push_back(target.name);
    return names;
  }

 private:
  /// That the model's values of a field are stored less; empty: 0.
  std::vector<double> offset_of(const std::string& name) const {
    if (!trained_ || !trained_->offsets.contains(name)) return {};
    return trained_->offsets.at(name);
  }

  static std::vector<float> less(const std::vector<double>& values, const std::vector<double>& offset) {
    std::vector<float> stored(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      stored[i] = static_cast<float>(values[i] - (offset.empty() ? 0.0 : offset[i % offset.size()]));
    return stored;
  }

  bool is_dynamic_in_training(const std::string& name) const {
    const auto found = std::ranges::find(predictor_.inputs(), name, &FieldInfo::name);
    return found != predictor_.inputs().end() && found->dynamic;
  }

  MeshPredictor& predictor_;
  const NewFields& fields_;
  const TrajectoryView& trajectory_;
  const std::optional<TrainingData>& trained_;
  std::set<std::string>& notes_;
  SeenRanges& seen_;
  std::map<std::string, std::vector<double>> held_;  // the predictor borrows them
};

/// Steps that a rollout of this trajectory makes.
int64_t steps_of(const NewTrajectory& on, const MeshPredictor& predictor, const NewDataOptions& options) {
  const TrajectoryView& trajectory = on.trajectory();
  const int64_t first = predictor.earlier_frames();
  const std::string place = std::string(trajectory.name());
  for (const FieldInfo& target : predictor.targets()) {
    if (on.frames(target.name) > first) continue;
    throw data_error(place + ": field " + target.name,
                     fmt::format("{}, which the model reads", counted(first + 1, "frame")),
                     fmt::format("{}", on.frames(target.name)), "give its first frames");
  }
  const int64_t in_data = trajectory.frames() - 1 - first;
  const int64_t steps = options.steps > 0 ? options.steps : in_data;
  if (steps < 1) {
    throw config_error("--steps", "the number of steps to predict", "none, and data of no further frame",
                       "add --steps N");
  }
  std::vector<std::string> read = on.known_names();
  if (options.boundary.from == From::data)
    for (const FieldInfo& target : predictor.targets()) read.push_back(target.name);
  for (const std::string& name : read) {
    if (on.frames(name) > first + steps) continue;
    throw data_error(place + ": field " + name,
                     fmt::format("{} for {}{}", counted(first + steps + 1, "frame"), counted(steps, "step"),
                                 options.boundary.from == From::data
                                     ? " with --boundary data"
                                     : ", as nodes of data.kinematic_types follow the data"),
                     fmt::format("{}", on.frames(name)), "lower --steps, or give more frames");
  }
  return steps;
}

std::string held_types_of(const MeshView& mesh, const DataConfig& config) {
  return listed(held_types({mesh.node_type.begin(), mesh.node_type.end()}, config));
}

/// Of a file or folder.
std::string name_of(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

class NewDataWriter {
 public:
  NewDataWriter(MeshPredictor& predictor, const NewDataOptions& options)
      : predictor_(predictor), options_(options) {
    if (options.boundary.from == From::table) {
      table_.emplace(options.boundary.table, predictor.targets(), predictor.config().data.predicted_types);
    }
  }

  NewDataFiles write(std::span<const NewData> all) {
    int64_t total = 0, done = 0;
    std::vector<SourceOfMesh> meshes;
    for (const NewData& one : all) {
      NewFields(predictor_, one.data).check();
      total += one.data.trajectories();
      for (int64_t i = 0; i < one.data.trajectories() && !options_.outputs.probes.empty(); ++i) {
        const TrajectoryView trajectory = one.data.trajectory(i);
        meshes.push_back({source_of(one.path, one.data, trajectory), trajectory.mesh()});
      }
      inputs_.push_back(one.path);
    }
    for (std::string& note : check_probes(options_.outputs.probes, meshes)) notes_.insert(std::move(note));
    begin_folder(
        options_.directory, [](const std::string&) { return false; }, inputs_);
    if (!predictor_.graph_targets().empty()) {
      names_.take("predictions");  // so that no mesh's files have this name
      for (const char* file : {"predictions.csv", "predictions.npz"})
        check_prediction(options_.directory / file, inputs_);
    }
    for (const auto& [data, path, names] : all) {
      const NewFields fields(predictor_, data);
      for (int64_t i = 0; i < data.trajectories(); ++i) {
        const TrajectoryView trajectory = data.trajectory(i);
        NewTrajectory on(predictor_, fields, trajectory, options_.trained, notes_, seen_);
        const bool single = data.trajectories() == 1;
        source_ = source_of(path, data, trajectory);
        const bool named = static_cast<size_t>(i) < names.size() && !names[static_cast<size_t>(i)].empty();
        const std::string name = single  ? name_of(path)
                                 : named ? names[static_cast<size_t>(i)]
                                         : std::string(trajectory.name());
        fields.over_time() ? roll_out(on, names_.take(name)) : predict(on, name);
        ++number_;
        if (!fields.over_time() && options_.progress) options_.progress(++done, total);
      }
      data.check_unchanged();
    }
    if (!graphs_.groups.empty()) {
      drop_first_frames(graphs_);
      const TableFiles table = write_table(graphs_, "new data", options_.directory, inputs_);
      for (const fs::path& path : {table.csv, table.npz})
        files_.files.push_back({"meshes", path, std::ssize(graphs_.numbers)});
    }
    seen_.note(options_.trained ? options_.trained->ranges : std::nullopt, notes_);
    files_.notes.assign(notes_.begin(), notes_.end());
    return std::move(files_);
  }

 private:
  void predict(NewTrajectory& on, const std::string& name) {
    const TrajectoryView& trajectory = on.trajectory();
    const std::string types = held_types_of(trajectory.mesh(), predictor_.config().data);
    for (const FieldInfo& target : predictor_.targets()) {
      if (types.empty()) continue;
      notes_.insert(
          on.fields().find(target.name) != nullptr
              ? fmt::format("{} at nodes of type {} is from the data", target.name, types)
              : fmt::format("{} at nodes of type {} is nan: it is not predicted there, and the data does "
                            "not have it",
                            target.name, types));
    }
    for (int64_t t = 0; t < trajectory.frames(); ++t) {
      on.set(t);
      predictor_.predict();
      add_graph_row(graphs_, predictor_, number_, t);
      const std::string frame = trajectory.frames() > 1 ? fmt::format("_{:05}", t) : "";
      const fs::path stem = options_.directory / names_.take(name, frame);
      const fs::path file = options_.outputs.vtu ? fs::path(stem.string() + ".vtu") : fs::path();
      std::vector<fs::path> written = PredictionTables::files(stem, options_.outputs);
      if (!file.empty()) written.insert(written.begin(), file);
      for (const fs::path& path : written) check_prediction(path, inputs_);
      PredictionTables tables = tables_of(trajectory, 1);
      on.write(file, 0.0, t, tables);
      tables.write(stem);
      for (const fs::path& path : written) files_.files.push_back({source_, path, 1});
    }
  }

  PredictionTables tables_of(const TrajectoryView& trajectory, int64_t frames) const {
    return {trajectory.mesh(), options_.outputs, source_, predictor_.targets(), frames};
  }

  static std::string source_of(const fs::path& path, const Dataset& data, const TrajectoryView& trajectory) {
    return data.trajectories() == 1 ? path.string() : fmt::format("{}: {}", path.string(), trajectory.name());
  }

  void roll_out(NewTrajectory& on, const std::string& name) {
    const TrajectoryView& trajectory = on.trajectory();
    const int64_t steps = steps_of(on, predictor_, options_);
    const int64_t first = predictor_.earlier_frames();
    const double dt = predictor_.dt() > 0.0 ? predictor_.dt() : 1.0;
    check_dt(on);
    if (table_) {
      for (const int64_t type : table_->node_types())
        if (std::ranges::find(trajectory.mesh().node_type, type) == trajectory.mesh().node_type.end())
          notes_.insert(
              fmt::format("{}: {} has no node of type {}", options_.boundary.table.string(), source_, type));
    }
    if (const std::string types = held_types_of(trajectory.mesh(), predictor_.config().data);
        !types.empty() && options_.boundary.from == From::initial) {
      notes_.insert(fmt::format("nodes of type {} keep the values of the first frame (--boundary)", types));
    }
    const fs::path folder = options_.directory / name;
    if (fs::is_symlink(folder))
      throw data_error("-o " + folder.string(), "a folder, or a new name", "a link",
                       "remove it, or choose another -o");
    begin_folder(
        folder,
        [](const std::string& file) {
          const std::vector<fs::path> tables = PredictionTables::files(kStem, {true, true, {Probe()}, true});
          return file == kSeries || is_numbered(file, "frame_", ".vtu") ||
                 std::ranges::find(tables, fs::path(file)) != tables.end();
        },
        inputs_);
    PredictionTables tables = tables_of(trajectory, steps + 1);
    std::vector<PvdEntry> entries;
    const auto write = [&](int64_t step) {
      const double time = static_cast<double>(step) * dt;
      entries.push_back({time, fmt::format("frame_{:05}.vtu", step)});
      on.write(options_.outputs.vtu ? folder / entries.back().file : fs::path(), time, first + step, tables);
    };
    on.set(first);
    write(0);
    for (int64_t step = 1; step <= steps; ++step) {
      const int64_t t = first + step;
      for (const FieldInfo& input : predictor_.inputs())
        if (step > 1 && input.dynamic && !on.fields().is_target(input.name)) on.set_input(input.name, t - 1);
      on.set_next(t - 1);
      predictor_.predict();
      add_graph_row(graphs_, predictor_, number_, t);
      on.set_boundary(t, static_cast<double>(step) * dt, options_.boundary, table_ ? &*table_ : nullptr);
      write(step);
      if (options_.progress) options_.progress(step, steps);
    }
    tables.write(folder / kStem);
    if (options_.outputs.vtu) {
      write_pvd(folder / kSeries, entries);
      files_.files.push_back({source_, folder / kSeries, steps});
    }
    for (const fs::path& table : PredictionTables::files(folder / kStem, options_.outputs))
      files_.files.push_back({source_, table, steps});
  }

  /// Frames that the model reads have to be as far apart as in training.
  void check_dt(const NewTrajectory& on) {
    const TrajectoryView& trajectory = on.trajectory();
    const double trained = predictor_.dt();
    if (trained <= 0.0) notes_.insert("the time of a step is not known: times are numbers of steps");
    const auto moves = [&](const FieldInfo& input) {
      return !on.fields().is_target(input.name) && on.frames(input.name) > 1;
    };
    const bool read = trajectory.frames() > 1 &&
                      (predictor_.earlier_frames() > 0 || options_.boundary.from == From::data ||
                       !on.known_names().empty() || std::ranges::any_of(predictor_.inputs(), moves));
    if (!read || same_dt(trained, trajectory.dt())) return;
    throw data_error(std::string(trajectory.name()),
                     fmt::format("frames {} s apart, as in training", trained),
                     fmt::format("{} s", trajectory.dt()), "give frames of that dt");
  }

  static constexpr const char* kSeries = "rollout.pvd";
  static constexpr const char* kStem = "rollout";
  MeshPredictor& predictor_;
  const NewDataOptions& options_;
  std::optional<BoundaryTable> table_;
  SourceNames names_;
  std::string source_;
  std::vector<fs::path> inputs_;
  std::set<std::string> notes_;
  SeenRanges seen_;
  PredictedTable graphs_;  // by number of the mesh
  int64_t number_ = 0;
  NewDataFiles files_;
};

}  // namespace

NewDataFiles predict_new_data(MeshPredictor& predictor, std::span<const NewData> data,
                              const NewDataOptions& options) {
  return NewDataWriter(predictor, options).write(data);
}

}  // namespace meshgrad
