// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/convert.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/cell_graph.h>
#include <meshgrad/train/convert/conversion_advice.h>
#include <meshgrad/train/convert/convert_inputs.h>
#include <meshgrad/train/convert/found_files.h>
#include <meshgrad/train/convert/leak_finder.h>
#include <meshgrad/train/convert/listed_edges.h>
#include <meshgrad/train/convert/manifest.h>
#include <meshgrad/train/convert/map_file.h>
#include <meshgrad/train/convert/mesh_check.h>
#include <meshgrad/train/convert/narrow_fields.h>
#include <meshgrad/train/convert/outlier.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/convert/unit_finder.h>
#include <meshgrad/train/convert/warning_list.h>
#include <meshgrad/train/data/host_memory_error.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

// Takes trajectories, checks them against the first, and writes and counts them.
class Packer {
 public:
  /// `whole` are fields that are not narrowed.
  Packer(const ConvertOptions& options, std::string statistics_split, const std::set<std::string>& whole,
         WarningList& warnings)
      : options_(options),
        statistics_split_(std::move(statistics_split)),
        warnings_(warnings),
        widths_(whole) {}

  void add(RawTrajectory& trajectory, const std::vector<SplitPart>& parts, const InputFile& file) {
    files_.clear();
    for (const auto& path : file.files) files_.push_back(name_within(options_.input, path));
    lists_ = file.lists;
    list_ = is_frame_list(file.path) ? name_within(options_.input, file.path) : "";
    prepare(trajectory);
    const int64_t mesh = pack_mesh(trajectory);
    // Errors name the whole path; the packed file keeps the path within the input.
    if (trajectory.name.starts_with(folder_)) trajectory.name.erase(0, folder_.size());
    units_.add(trajectory, report_.fields);
    for (const SplitPart& part : parts) {
      if (part.first == 0 && part.count == trajectory.frames) {
        pack(trajectory, mesh, part.split);
      } else {
        RawTrajectory cut = cut_frames(trajectory, part.first, part.count);
        cut.name += fmt::format("[{}:{}]", cut.first_frame, cut.first_frame + cut.frames);
        pack(cut, mesh, part.split);
      }
    }
  }

  /// What is known before the end: counts, fields, and which array was read as what.
  const ConvertReport& so_far() const { return report_; }

  ConvertReport finish(const std::vector<std::string>& split_order, const std::string& source,
                       const std::string& input) {
    check_internal(writer_ != nullptr, "a conversion without a trajectory");
    std::vector<std::string> known = warnings_.texts();
    std::erase_if(known, [](const std::string& warning) { return !lasts_in_packed_file(warning); });
    for (std::string& warning : known)
      if (warning.starts_with('[' + folder_)) warning.erase(1, folder_.size());
    std::vector<std::string> lasting = outliers_.texts();
    std::ranges::move(units_.texts(), std::back_inserter(lasting));
    if (const std::string leak = leaks_.text(); !leak.empty()) lasting.push_back(leak);
    for (const std::string& warning : lasting) warnings_.add(warning);
    lasting.insert(lasting.end(), known.begin(), known.end());
    const auto summary = writer_->finish(split_order, statistics_, statistics_split_, source, lasting,
                                         {report_.map, input, options_text(options_)});
    report_.output_bytes = summary.bytes;
    static_cast<DataFacts&>(report_) = data_facts(Dataset::open(options_.output));
    report_.extents = units_.extents();
    return std::move(report_);
  }

 private:
  void prepare(RawTrajectory& t) {
    widths_.narrow(t);
    if (options_.dt == 0 && t.times.size() > 1 && !even_spacing(t.times))
      warnings_.add(fmt::format("[{}] times {}", t.name, uneven_text(t.times)));
    if (options_.dt != 0) t.dt = options_.dt;
    check_dt(t);
    for (RawField& field : t.fields)
      if (const auto unit = options_.units.find(field.name); unit != options_.units.end())
        field.unit = unit->second;
    validate(t);
    choose_direction(t, options_.directed);
    move_positions(t);
    choose_graph(t);
    if (t.node_type.empty()) {
      if (t.dim > 0)
        warnings_.add(
            fmt::format("[{}] there are no node types: all nodes were taken as normal (0), so inflows and "
                        "walls are predicted, too; fix: --node-types ARRAY",
                        t.name));
      t.node_type.assign(static_cast<size_t>(t.nodes), 0);
    }
    if (writer_ == nullptr) {
      begin(t);
    } else {
      match_schema(t);
      add_still_positions(t);
    }
    subtract_offsets(t);
  }

  // Where the files have displacements beside the positions at rest; by the first trajectory.
  void move_positions(RawTrajectory& t) {
    if (writer_ == nullptr) {
      displacement_ = options_.displacement.empty()     ? find_displacement(t)
                      : options_.displacement == "none" ? std::string()
                                                        : options_.displacement;
    }
    if (displacement_.empty()) return;
    add_displaced_positions(t, displacement_);
    if (writer_ != nullptr || !options_.displacement.empty()) return;
    report_.notes.push_back(
        fmt::format("[{}] the mesh moves: its positions plus the field {} are the field {}; keep it with "
                    "--displacement {}, or leave it out with --displacement none",
                    t.name, displacement_, kWorldPosition, displacement_));
  }

  // Cells as nodes, where they are asked for or only they have fields; polygons and polyhedra as their sides.
  void choose_graph(RawTrajectory& t) {
    const WarningCallback warn = [&](const std::string& text) { warnings_.add(text); };
    const bool automatic = options_.graph == GraphOn::automatic;
    if (options_.graph == GraphOn::cells || (automatic && fields_are_on_cells(t))) {
      if (automatic && writer_ == nullptr) {
        report_.notes.push_back(
            fmt::format("[{}] the graph's nodes are the cells, since the fields are on cells; --graph nodes "
                        "changes it",
                        t.name));
      }
      t = graph_on_cells(t, cell_kind(t), warn);
      validate(t);
    } else if (t.faced.count() > 0) {
      faces_to_edges(t, warn);
    }
  }

  // Offsets of fields are those of the first trajectory, origins a mesh's own.
  void subtract_offsets(RawTrajectory& t) {
    const auto warn = [&](const std::string& what, const std::optional<std::string>& steps, bool wide) {
      if (!steps) return;
      warnings_.add(fmt::format("[{}] {} has only {} in float32{}", t.name, what, *steps,
                                wide ? ", since the first trajectory has other values: convert it alone"
                                     : ": save it as float64, of which an offset is subtracted"));
    };
    for (size_t f = 0; f < t.fields.size(); ++f) {
      RawField& field = t.fields[f];
      const std::vector<double>& offset = report_.fields[f].offset;
      if (auto* values = std::get_if<std::vector<float>>(&field.values)) {
        warn("field " + field.name, coarse_steps(*values, field.wide, offset, field.components),
             !field.wide.empty());
        if (!offset.empty()) subtract_offset(*values, field.wide, offset);
      }
      field.wide.clear();
    }
    if (t.dim == 0) return;
    if (t.wide_positions.empty()) warn("mesh_pos", coarse_steps(t.positions, {}, {}, t.dim), false);
    t.origin = origin_for(t.wide_positions, t.dim);
    subtract_offset(t.positions, t.wide_positions, std::span(t.origin).first(static_cast<size_t>(t.dim)));
    t.wide_positions.clear();
  }

  // All trajectories of a file have one dt, by which a model learns a change.
  void check_dt(const RawTrajectory& t) {
    const auto text = [](double dt) { return dt == 0 ? std::string("no dt") : fmt::format("dt = {}", dt); };
    if (t.dt != 0) checked_dt(t.dt, t.name + ": dt");
    if (writer_ == nullptr) first_name_ = t.name;
    constexpr double kRounding = 1e-6;  // of a dt in f32
    if (writer_ == nullptr || std::abs(t.dt - report_.dt) <= kRounding * report_.dt) return;
    const std::string got = t.dt != 0            ? text(t.dt)
                            : t.times.size() > 1 ? std::string("times that are not evenly spaced")
                            : t.frames == 1      ? std::string("one frame, which has no dt")
                                                 : text(0);
    throw data_error(t.name, fmt::format("{}, as {} has", text(report_.dt), first_name_), got,
                     "convert data of one dt together; --dt S sets it for all");
  }

  void begin(const RawTrajectory& first) {
    for (const RawField& field : first.fields) {
      report_.fields.push_back(info_of(field));
      report_.fields.back().offset = offset_for(field.wide, field.components);
      statistics_.fields.emplace_back(field.components, field.dtype());
    }
    check_units(first);
    if (!options_.save_map.empty() && first.read_as.empty()) {
      throw config_error("save-map", "arrays under names of their own",
                         first.name + " with rows of nodal_data", "leave --save-map out");
    }
    report_.map = first.read_as;
    statistics_.edges.resize(edge_columns(first.dim));
    report_.dim = first.dim;
    report_.directed = first.directed;
    report_.dt = first.dt;
    writer_ = std::make_unique<PackedFileWriter>(options_.output, first.dim, report_.fields, first.directed);
    for (const auto& notes : {graph_notes(first), widths_.notes(first.name)})
      report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  }

  void check_units(const RawTrajectory& first) const {
    std::vector<std::string> names;
    for (const RawField& field : first.fields) names.push_back(field.name);
    for (const auto& [name, unit] : options_.units) {
      if (std::ranges::find(names, name) != names.end()) continue;
      const std::string near = nearest_name(name, names);
      throw config_error("unit", "a field that exists", fmt::format("\"{}\"", name),
                         near.empty() ? fmt::format("use one of: {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean \"{}\"?", near));
    }
  }

  static FieldInfo info_of(const RawField& field) {
    return {field.name, field.components, field.dynamic, field.unit, field.on, field.dtype(),
            {},         field.node_split};
  }

  // The place of the positions among the first trajectory's fields, if only they are missing: among those
  // that move, one that stands still has its positions in every frame.
  std::optional<size_t> place_of_positions(const RawTrajectory& t) const {
    const auto is_position = [](const auto& field) { return field.name == kWorldPosition; };
    const auto known = std::ranges::find_if(report_.fields, is_position);
    const bool moves = known != report_.fields.end() && known->dynamic && known->components == t.dim;
    if (!moves || std::ranges::any_of(t.fields, is_position)) return std::nullopt;
    const auto place = static_cast<size_t>(known - report_.fields.begin());
    return place > t.fields.size() ? std::nullopt : std::optional(place);
  }

  // Of a trajectory that matches.
  void add_still_positions(RawTrajectory& t) const {
    const auto place = place_of_positions(t);
    if (!place) return;
    const FieldInfo* const known = &report_.fields[*place];
    std::vector<float> all;
    RawField field{.name = std::string(kWorldPosition), .components = t.dim, .unit = known->unit};
    for (int64_t frame = 0; frame < t.frames; ++frame) {
      all.insert(all.end(), t.positions.begin(), t.positions.end());
      field.wide.insert(field.wide.end(), t.wide_positions.begin(), t.wide_positions.end());
    }
    field.values = std::move(all);
    t.fields.insert(t.fields.begin() + static_cast<std::ptrdiff_t>(*place), std::move(field));
  }

  void match_schema(const RawTrajectory& t) const {
    const auto line = [](int dim, const std::vector<FieldInfo>& fields) {
      std::string text = dim == 0 ? "no positions" : fmt::format("{}-D", dim);
      for (const FieldInfo& field : fields) {
        text += fmt::format(", {} [{}]{}", field.name, field.components, field.dynamic ? "" : " static");
        if (field.on != FieldOn::node) text += fmt::format(" on {}s", name_of(field.on));
        if (field.dtype != DType::f32) text += fmt::format(" {}", name_of(field.dtype));
        if (field.node_split) text += " node split";
      }
      return text;
    };
    std::vector<FieldInfo> fields;
    for (const RawField& field : t.fields) fields.push_back(info_of(field));
    if (const auto place = place_of_positions(t))
      fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(*place), report_.fields[*place]);
    const std::string known = line(report_.dim, report_.fields);
    if (line(t.dim, fields) == known) return;
    const bool first_moves = std::ranges::any_of(
        fields, [](const FieldInfo& field) { return field.name == kWorldPosition && field.dynamic; });
    throw data_error(t.name, "the dimensions and fields of the first trajectory: " + known,
                     line(t.dim, fields),
                     first_moves && known.find(kWorldPosition) == std::string::npos
                         ? "of meshes that move, the first trajectory has to move: put its file first by name"
                         : "convert trajectories of one kind together");
  }

  // The mesh's number. Edge fields are brought into the order of its edges.
  int64_t pack_mesh(RawTrajectory& t) {
    PackedMesh mesh;
    mesh.dim = t.dim;
    mesh.positions = t.positions;
    mesh.origin = t.origin;
    mesh.node_type = t.node_type;
    mesh.cells = t.cells;
    mesh.cell_kind = cell_kind(t);
    const std::vector<float> source_points = points_of_source(t);
    if (!t.source_cells.ends.empty()) mesh.source_cells = &t.source_cells;
    mesh.source_points = source_points;
    const std::vector<int32_t> pairs = t.edges;  // which take_edges may clear
    const auto key =
        PackedFileWriter::mesh_key(mesh, t.cells.empty() ? std::span(pairs) : std::span(pairs).first(0));
    const int64_t known = writer_->find_mesh(key);
    const bool edge_fields = std::ranges::any_of(t.fields, [](auto& f) { return f.on == FieldOn::edge; });
    if (known >= 0 && !edge_fields) return known;
    const MeshEdges edges = take_edges(t, mesh.cell_kind);
    if (known >= 0) return known;
    for (const std::string& line : doubtful_places(t, pairs, mesh.cell_kind, edges)) {
      warnings_.add(fmt::format("[{}] {}", t.name, line));
    }
    mesh_edge_moments_.push_back(edge_moments(t.positions, t.dim, edges));
    return writer_->add_mesh(key, mesh, edges);
  }

  CellKind cell_kind(const RawTrajectory& t) {
    const std::string where = t.name + ": field cells";
    if (options_.cells) {
      const int nodes = nodes_per_cell(*options_.cells);
      const bool solid = *options_.cells == CellKind::tetrahedron || *options_.cells == CellKind::hexahedron;
      if (!t.cells.empty() && t.nodes_per_cell == nodes && (!solid || t.dim == 3)) return *options_.cells;
      throw config_error("cells", fmt::format("cells of {} nodes{}", nodes, solid ? " in 3-D" : ""),
                         t.cells.empty() ? t.name + " without cells"
                                         : fmt::format("{} nodes a cell in {}-D", t.nodes_per_cell, t.dim),
                         "leave --cells out, or name the kind that the cells are");
    }
    if (t.cells.empty()) return CellKind::none;
    if (t.cell_kind) return *t.cell_kind;
    const CellKind kind = cell_kind_of(t.nodes_per_cell, t.dim, where);
    if (kind != CellKind::tetrahedron) return kind;
    if (!quads_) {
      quads_ = are_quads_in_space(t.cells, t.positions);
      report_.notes.push_back(
          *quads_
              ? fmt::format(
                    "[{}] cells of 4 nodes were read as quads, since they are flat; --cells tet changes it",
                    t.name)
              : fmt::format("[{}] cells of 4 nodes were read as tetrahedra; --cells quad changes it",
                            t.name));
    }
    return *quads_ ? CellKind::quad : kind;
  }

  void pack(const RawTrajectory& t, int64_t mesh, const std::string& split) {
    PackedFileWriter::Trajectory packed{t.name, split,  mesh,   t.frames, t.first_frame, t.dt,
                                        {},     files_, lists_, t.record, t.times};
    report_.read.push_back({t.name, split, t.frames, t.dt, t.times, files_, list_});
    for (const RawField& field : t.fields) {
      std::visit([&](const auto& values) { packed.fields.emplace_back(values); }, field.values);
    }
    writer_->add_trajectory(packed);
    leaks_.add(packed);
    look_for_outliers(t, mesh);
    if (split == statistics_split_) count(t, mesh);
    const bool in_time = std::ranges::any_of(t.fields, [](auto& field) { return field.dynamic; });
    if (t.frames == 1 && in_time) {
      warnings_.add(fmt::format("[{}] one frame only: a change in time cannot be learnt from it", t.name));
    }
    ++report_.trajectories;
    report_.frames += t.frames;
  }

  void look_for_outliers(const RawTrajectory& t, int64_t mesh) {
    for (const RawField& field : t.fields) {
      const auto found = find_outlier(field, static_cast<int64_t>(writer_->mesh_rows(mesh).of(field.on)));
      if (!found) continue;
      outliers_.add(
          fmt::format("[{}] field {} has {:g} at frame {}, {} {}, where 98 % of the values span {:.2g}: "
                      "normalised by their "
                      "standard deviation, all others are nearly equal",
                      t.name, field.name, found->value, found->frame + (field.dynamic ? t.first_frame : 0),
                      name_of(field.on), found->row, found->spread));
    }
  }

  void count(const RawTrajectory& t, int64_t mesh) {
    statistics_.count_nodes(t.node_type, t.frames);
    for (size_t f = 0; f < t.fields.size(); ++f) {
      const RawField& field = t.fields[f];
      const std::vector<int32_t> one_group(
          field.on == FieldOn::node ? 0 : static_cast<size_t>(writer_->mesh_rows(mesh).of(field.on)), 0);
      std::visit(
          [&](const auto& values) {
            statistics_.fields[f].add(std::span(values), field.on == FieldOn::node ? t.node_type : one_group,
                                      field.dynamic ? t.frames : 1);
          },
          field.values);
    }
    const auto& edges = mesh_edge_moments_[static_cast<size_t>(mesh)];
    for (size_t i = 0; i < edges.size(); ++i) statistics_.edges[i].merge(edges[i]);
  }

  const ConvertOptions& options_;
  const std::string folder_ = (folder_of(options_.input) / "").string();
  std::string statistics_split_;
  WarningList& warnings_;
  FieldWidths widths_;
  LeakFinder leaks_;
  UnitFinder units_;
  WarningList outliers_;
  std::optional<bool> quads_;       // whether cells of 4 nodes in 3-D are quads, by the first mesh
  std::string displacement_;        // the field of displacements, or empty
  std::vector<std::string> files_;  // of the trajectory that is packed
  std::vector<int64_t> lists_;      // how many of them each list has
  std::string list_;                // of its frames, or empty
  std::string first_name_;          // of the first trajectory, as errors name it
  std::unique_ptr<PackedFileWriter> writer_;
  DataStatistics statistics_;
  std::vector<std::vector<Moments>> mesh_edge_moments_;
  ConvertReport report_;
};

ConvertReport pack(const ConvertOptions& options, const std::optional<Manifest>& manifest,
                   const std::set<std::string>& whole) {
  MapFile map_file(options);
  WarningList warnings;
  const WarningCallback warn = [&](const std::string& text) { warnings.add(text); };
  Inputs inputs = open_inputs(options, manifest, warn);
  const std::string input = hash_of_input(options, manifest, inputs);
  const SplitPlan plan(options, inputs, warn);
  const std::string split_note = plan.note(options, inputs);
  Packer packer(options, plan.statistics_split(), whole, warnings);
  ConvertProgress progress{0, inputs.records, 0, inputs.bytes};
  int64_t first_record = 0;
  std::map<int64_t, int64_t> packed;  // frames by record
  for (InputFile& file : inputs.files) {
    while (auto trajectory = file.source->next()) {
      const int64_t record = first_record + trajectory->record;
      const std::vector<SplitPart> parts =
          plan.parts(file, record, trajectory->frames, trajectory->first_frame);
      for (const SplitPart& part : parts) packed[record] += part.count;
      if (!parts.empty()) packer.add(*trajectory, parts, file);
      progress.trajectories = record + 1;
      if (options.progress) {
        ConvertProgress now = progress;
        now.bytes += file.source->bytes_read();
        options.progress(now);
      }
    }
    for (int64_t record = first_record; manifest && record < first_record + file.source->records(); ++record)
      check_all_packed(inputs.listed_parts[static_cast<size_t>(record)], packed[record], file.path.string());
    progress.bytes += file.source->bytes_read();
    first_record += file.source->records();
    file.source.reset();
  }
  check_no_steps(options, inputs, packer.so_far());
  map_file.write(packer.so_far().map);
  const std::string doubt = plan.doubt(options, inputs, packer.so_far());
  if (!doubt.empty()) warnings.add(doubt);
  ConvertReport report =
      packer.finish(plan.names(), fmt::format("{} ({})", options.input.string(), inputs.format), input);
  report.format = inputs.format;
  report.notes.insert(report.notes.end(), inputs.notes.begin(), inputs.notes.end());
  report.input_bytes = inputs.bytes;
  report.warnings = warnings.texts();
  if (!split_note.empty()) report.notes.push_back(split_note);
  return report;
}

/// From the beginning where a later trajectory has more in a field than the first ones, which were narrowed.
ConvertReport pack_again(ConvertOptions options) {
  const std::optional<Manifest> manifest = take_manifest(options);
  for (std::set<std::string> whole;;) {
    try {
      return pack(options, manifest, whole);
    } catch (const WiderField& field) {
      check_internal(whole.insert(field.name).second, "a field that stays as it is was narrowed");
    }
  }
}

}  // namespace

ConvertReport convert(const ConvertOptions& options) {
  check_packed_output(options);
  return with_host_memory_named(options.input, true, "for a trajectory and its index",
                                [&] { return pack_again(options); });
}

}  // namespace meshgrad
