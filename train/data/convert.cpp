// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/convert.h>
#include <meshgrad/train/io/host_memory_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/convert_inputs.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/data/packed_file_writer.h>

namespace meshgrad {
namespace {

// Keeps the first of each kind of warning (the text after its "[place]") and counts the others.
class Warnings {
 public:
  void add(const std::string& text) {
    const size_t end = text.find("] ");
    const std::string kind = end == std::string::npos ? text : text.substr(end + 2);
    for (Entry& entry : entries_) {
      if (entry.kind != kind) continue;
      ++entry.more;
      return;
    }
    entries_.push_back({kind, text, 0});
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const Entry& entry : entries_) {
      texts.push_back(entry.more == 0 ? entry.text
                                      : fmt::format("{} (and {} more times)", entry.text, entry.more));
    }
    return texts;
  }

 private:
  struct Entry {
    std::string kind, text;
    int64_t more = 0;
  };
  std::vector<Entry> entries_;
};

std::vector<Moments> edge_moments(const RawTrajectory& t, const MeshEdges& edges) {
  const auto dim = static_cast<size_t>(t.dim);
  std::vector<Moments> moments(dim + 1);
  for (size_t e = 0; e < edges.senders.size(); ++e) {
    double square = 0;
    for (size_t d = 0; d < dim; ++d) {
      const double difference =
          static_cast<double>(t.positions[static_cast<size_t>(edges.senders[e]) * dim + d]) -
          static_cast<double>(t.positions[static_cast<size_t>(edges.receivers[e]) * dim + d]);
      moments[d].add(difference);
      square += difference * difference;
    }
    moments[dim].add(std::sqrt(square));
  }
  return moments;
}

// Takes trajectories, checks them against the first, and writes and counts them.
class Packer {
 public:
  Packer(const ConvertOptions& options, std::string statistics_split, Warnings& warnings)
      : options_(options), statistics_split_(std::move(statistics_split)), warnings_(warnings) {}

  void add(RawTrajectory& trajectory, const std::filesystem::path& file,
           const std::vector<SplitPart>& parts) {
    prepare(trajectory);
    const int64_t mesh = pack_mesh(trajectory);
    // Errors name the whole path; the packed file keeps the file's name.
    if (trajectory.name.starts_with(file.string())) {
      trajectory.name.replace(0, file.string().size(), file.filename().string());
    }
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

  ConvertReport finish(const std::vector<std::string>& split_order, const std::string& source) {
    check_internal(writer_ != nullptr, "a conversion without a trajectory");
    const PackedFileWriter::Summary summary =
        writer_->finish(split_order, statistics_, statistics_split_, source);
    report_.meshes = summary.meshes;
    report_.output_bytes = summary.bytes;
    report_.splits = summary.splits;
    for (const SplitInfo& split : summary.splits) report_.split_frames.push_back(split_frames_[split.name]);
    report_.statistics_split = statistics_split_;
    report_.nodes_mean /= static_cast<double>(report_.trajectories);
    report_.edges_mean /= static_cast<double>(report_.trajectories);
    return std::move(report_);
  }

 private:
  void prepare(RawTrajectory& t) {
    if (options_.dt > 0) t.dt = options_.dt;
    for (RawField& field : t.fields) {
      const auto unit = options_.units.find(field.name);
      if (unit != options_.units.end()) field.unit = unit->second;
    }
    validate(t);
    if (t.node_type.empty()) {
      warnings_.add(fmt::format("[{}] there are no node types: all nodes were taken as normal (0)", t.name));
      t.node_type.assign(static_cast<size_t>(t.nodes), 0);
    }
    if (writer_ == nullptr) {
      begin(t);
    } else {
      match_schema(t);
    }
  }

  void begin(const RawTrajectory& first) {
    for (const RawField& field : first.fields) {
      report_.fields.push_back({field.name, field.components, field.dynamic, field.unit});
      statistics_.fields.emplace_back(field.components);
    }
    statistics_.edges.resize(static_cast<size_t>(first.dim) + 1);
    report_.dim = first.dim;
    report_.dt = first.dt;
    writer_ = std::make_unique<PackedFileWriter>(options_.output, first.dim, report_.fields);
  }

  void match_schema(const RawTrajectory& t) const {
    bool same = t.dim == report_.dim && t.fields.size() == report_.fields.size();
    for (size_t f = 0; same && f < t.fields.size(); ++f) {
      const FieldInfo& known = report_.fields[f];
      same = t.fields[f].name == known.name && t.fields[f].components == known.components &&
             t.fields[f].dynamic == known.dynamic;
    }
    if (same) return;
    const auto line = [](int dim, const auto& fields) {
      std::string text = fmt::format("{}-D", dim);
      for (const auto& field : fields) {
        text += fmt::format(", {} [{}]{}", field.name, field.components, field.dynamic ? "" : " static");
      }
      return text;
    };
    throw data_error(
        t.name, "the dimensions and fields of the first trajectory: " + line(report_.dim, report_.fields),
        line(t.dim, t.fields), "convert trajectories of one kind together");
  }

  int64_t pack_mesh(const RawTrajectory& t) {
    PackedMesh mesh;
    mesh.dim = t.dim;
    mesh.positions = t.positions;
    mesh.node_type = t.node_type;
    mesh.cells = t.cells;
    if (!t.cells.empty()) mesh.cell_kind = cell_kind_of(t.nodes_per_cell, t.dim, t.name + ": field cells");
    const auto key = PackedFileWriter::mesh_key(mesh, t.edges);
    const int64_t known = writer_->find_mesh(key);
    if (known >= 0) return known;
    const size_t half = t.edges.size() / 2;
    const std::span<const int32_t> pairs(t.edges);
    const MeshEdges edges =
        t.cells.empty()
            ? edges_from_pairs(pairs.first(half), pairs.subspan(half), t.nodes, t.name + ": field edges")
            : edges_from_cells(t.cells, mesh.cell_kind, t.nodes, t.name + ": field cells");
    warn_about_lonely_nodes(t, edges);
    mesh_edge_moments_.push_back(edge_moments(t, edges));
    return writer_->add_mesh(key, mesh, edges);
  }

  void warn_about_lonely_nodes(const RawTrajectory& t, const MeshEdges& edges) {
    int64_t lonely = 0;
    for (size_t n = 0; n < static_cast<size_t>(t.nodes); ++n) {
      lonely += edges.receiver_offsets[n] == edges.receiver_offsets[n + 1] ? 1 : 0;
    }
    if (lonely > 0) warnings_.add(fmt::format("[{}] {} nodes have no edge", t.name, lonely));
  }

  void pack(const RawTrajectory& t, int64_t mesh, const std::string& split) {
    PackedFileWriter::Trajectory packed{t.name, split, mesh, t.frames, t.first_frame, t.dt, {}};
    for (const RawField& field : t.fields) packed.fields.emplace_back(field.values);
    writer_->add_trajectory(packed);
    if (split == statistics_split_) count(t, mesh);
    split_frames_[split] += t.frames;
    if (t.frames == 1) {
      warnings_.add(fmt::format("[{}] one frame only: a change in time cannot be learnt from it", t.name));
    }
    const auto edges = static_cast<int64_t>(mesh_edge_moments_[static_cast<size_t>(mesh)].front().count);
    const bool first = report_.trajectories++ == 0;
    report_.frames += t.frames;
    report_.nodes_min = first ? t.nodes : std::min(report_.nodes_min, t.nodes);
    report_.nodes_max = std::max(report_.nodes_max, t.nodes);
    report_.nodes_mean += static_cast<double>(t.nodes);
    report_.edges_min = first ? edges : std::min(report_.edges_min, edges);
    report_.edges_max = std::max(report_.edges_max, edges);
    report_.edges_mean += static_cast<double>(edges);
    for (const int32_t type : t.node_type) ++report_.node_types[static_cast<size_t>(type)];
  }

  void count(const RawTrajectory& t, int64_t mesh) {
    for (const int32_t type : t.node_type) {
      statistics_.node_type_counts[static_cast<size_t>(type)] += static_cast<double>(t.frames);
    }
    for (size_t f = 0; f < t.fields.size(); ++f) {
      statistics_.fields[f].add(t.fields[f].values, t.node_type, t.fields[f].dynamic ? t.frames : 1);
    }
    const auto& edges = mesh_edge_moments_[static_cast<size_t>(mesh)];
    for (size_t i = 0; i < edges.size(); ++i) statistics_.edges[i].merge(edges[i]);
  }

  const ConvertOptions& options_;
  std::string statistics_split_;
  Warnings& warnings_;
  std::unique_ptr<PackedFileWriter> writer_;
  DataStatistics statistics_;
  std::vector<std::vector<Moments>> mesh_edge_moments_;
  std::map<std::string, int64_t> split_frames_;
  ConvertReport report_;
};

ConvertReport pack(const ConvertOptions& options) {
  Warnings warnings;
  const WarningCallback warn = [&](const std::string& text) { warnings.add(text); };
  Inputs inputs = open_inputs(options, warn);
  const SplitPlan plan(options, inputs, warn);
  Packer packer(options, plan.statistics_split(), warnings);
  ConvertProgress progress{0, inputs.records, 0, inputs.bytes};
  int64_t first_record = 0;
  for (InputFile& file : inputs.files) {
    while (auto trajectory = file.source->next()) {
      const int64_t record = first_record + trajectory->record;
      packer.add(*trajectory, file.path, plan.parts(file, record, trajectory->frames));
      progress.trajectories = record + 1;
      if (options.progress) {
        ConvertProgress now = progress;
        now.bytes += file.source->bytes_read();
        options.progress(now);
      }
    }
    progress.bytes += file.source->bytes_read();
    first_record += file.source->records();
    file.source.reset();
  }
  ConvertReport report =
      packer.finish(plan.names(), fmt::format("{} ({})", options.input.string(), inputs.format));
  report.format = inputs.format;
  report.input_bytes = inputs.bytes;
  report.warnings = warnings.texts();
  return report;
}

}  // namespace

ConvertReport convert(const ConvertOptions& options) {
  return with_host_memory_named(options.input, true, "for a trajectory and its index",
                                [&] { return pack(options); });
}

}  // namespace meshgrad
