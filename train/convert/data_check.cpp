// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include <meshgrad/train/convert/cell_check.h>
#include <meshgrad/train/convert/conversion_advice.h>
#include <meshgrad/train/convert/data_check.h>
#include <meshgrad/train/convert/mesh_check.h>
#include <meshgrad/train/data/mesh_size.h>
#include <meshgrad/train/data/quiet_split.h>
#include <meshgrad/train/data/text.h>

namespace meshgrad {
namespace {

using Severity = Finding::Severity;

constexpr size_t kHistogramParts = 40;
// A change that is so many times larger than the one before and the one after stands out.
constexpr double kJump = 10.0;

/// Why each kind of line of doubtful_places matters, and what to do.
struct MeshAdvice {
  std::string_view start, why, remedy;
};
constexpr MeshAdvice kMeshAdvice[] = {
    {"nodes at the place", "no edge joins them, so that nothing passes where the parts of the mesh meet",
     "merge coincident nodes before the conversion (in ParaView: Clean to Grid)"},
    {"nodes without an edge", "they get no messages and are predicted only from their own inputs",
     "leave nodes out that no cell has"},
    {"cells that repeat", "they may be damaged; the edges are those of the nodes that remain",
     "look at these cells in the mesher"},
};

/// Keeps the first finding of each kind, and counts the others.
class FindingList {
 public:
  void add(const std::string& kind, Finding finding) {
    const auto [at, added] = entries_.try_emplace(kind, found_.size(), 0);
    if (added) {
      found_.push_back(std::move(finding));
    } else {
      ++at->second.second;
    }
  }
  std::vector<Finding> take() {
    for (const auto& [kind, entry] : entries_) {
      if (entry.second > 0) found_[entry.first].what += fmt::format(" (and {} more like it)", entry.second);
    }
    sort_findings(found_);
    return std::move(found_);
  }

 private:
  std::vector<Finding> found_;
  std::map<std::string, std::pair<size_t, int64_t>> entries_;  // kind -> place in found_, how many more
};

/// Reads a data set from its first trajectory to its last.
class DataScan {
 public:
  explicit DataScan(const Dataset& dataset) : dataset_(dataset) {
    summary_.facts = data_facts(dataset);
    for (const FieldInfo& info : dataset.fields()) {
      FieldSummary field{info, 0, {}};
      field.components.resize(static_cast<size_t>(info.components));
      training_.push_back(dataset.field_stats(info.name));
      summary_.fields.push_back(std::move(field));
    }
  }

  DataSummary run() {
    for (const SplitInfo& split : dataset_.splits()) {
      for (int64_t i = 0; i < split.count; ++i) read(dataset_.trajectory(split.first + i), split.name);
    }
    finish_fields();
    find_shared_meshes();
    find_splits();
    for (const std::string& warning : dataset_.warnings()) add_conversion_warning(warning);
    summary_.findings = findings_.take();
    return std::move(summary_);
  }

 private:
  void read(const TrajectoryView& trajectory, const std::string& split) {
    const MeshView& mesh = trajectory.mesh();
    trajectories_on_[split].push_back(mesh.index);
    if (meshes_.insert(mesh.index).second) read_mesh(mesh, std::string(trajectory.name()));
    for (size_t f = 0; f < summary_.fields.size(); ++f) read_field(trajectory, f);
    find_repeated_frames(trajectory);
  }

  void read_mesh(const MeshView& mesh, const std::string& name) {
    measure(mesh);
    for (size_t n = 0; n < static_cast<size_t>(mesh.nodes); ++n) {
      const auto degree = static_cast<size_t>(mesh.receiver_offsets[n + 1] - mesh.receiver_offsets[n]);
      if (degree >= summary_.degrees.size()) summary_.degrees.resize(degree + 1, 0);
      ++summary_.degrees[degree];
    }
    find_doubtful_places(mesh, name);
    find_doubtful_cells(mesh, name);
  }

  void measure(const MeshView& mesh) {
    const auto dim = static_cast<size_t>(mesh.dim);
    for (size_t axis = 0; axis < dim; ++axis) {
      const auto [low, high] = range_of_axis(mesh.positions, dim, axis);
      const double size = high - low;
      std::vector<MeshExtent>& extents = summary_.facts.extents;
      if (extents.size() == axis) extents.push_back({size, size});
      MeshExtent& extent = extents[axis];
      extent = {std::min(extent.least, size), std::max(extent.most, size)};
    }
    for (size_t edge = 0; dim > 0 && edge < mesh.senders.size(); ++edge) {
      const double length = edge_length(mesh, edge);
      MeshExtent& lengths = summary_.edge_length;
      lengths.least = edges_seen_ == 0 ? length : std::min(lengths.least, length);
      lengths.most = std::max(lengths.most, length);
      summary_.mean_edge_length += (length - summary_.mean_edge_length) / static_cast<double>(++edges_seen_);
    }
  }

  // The check of the conversion, on the mesh as it was packed.
  void find_doubtful_places(const MeshView& mesh, const std::string& name) {
    RawTrajectory raw;
    raw.nodes = mesh.nodes;
    raw.dim = mesh.dim;
    raw.positions.assign(mesh.positions.begin(), mesh.positions.end());
    raw.cells.assign(mesh.cells.begin(), mesh.cells.end());
    raw.nodes_per_cell = mesh.nodes_per_cell;
    MeshEdges edges;
    edges.receiver_offsets.assign(mesh.receiver_offsets.begin(), mesh.receiver_offsets.end());
    edges.sender_offsets.assign(mesh.sender_offsets.begin(), mesh.sender_offsets.end());
    for (const std::string& line : doubtful_places(raw, {}, mesh.cell_kind, edges)) {
      const std::string kind = line.substr(0, line.find(':'));
      Finding finding{Severity::warning, name, line, "the mesh may be damaged",
                      "look at the mesh where it was made"};
      for (const MeshAdvice& advice : kMeshAdvice) {
        if (!line.starts_with(advice.start)) continue;
        finding.why = advice.why;
        finding.remedy = advice.remedy;
      }
      findings_.add(kind, std::move(finding));
    }
  }

  void find_doubtful_cells(const MeshView& mesh, const std::string& name) {
    if (const DoubtfulCells repeated = repeated_cells(mesh); repeated.count > 0) {
      findings_.add("repeated cells",
                    {Severity::warning, name,
                     fmt::format("{} with the nodes of an earlier one, first cell {}",
                                 counted(repeated.count, "cell"), repeated.first),
                     "the edges are right, but the parts of the mesh may have been joined twice",
                     "remove duplicate cells before the conversion"});
    }
    if (const DoubtfulCells inverted = inverted_cells(mesh); inverted.count > 0) {
      findings_.add("inverted cells", {Severity::note, name,
                                       fmt::format("{} turned the other way than most, first cell {}",
                                                   counted(inverted.count, "cell"), inverted.first),
                                       "training reads edges only, and some solvers (FEniCS) write cells of "
                                       "both senses; otherwise the mesh may "
                                       "be damaged, and viewers may shade it wrongly",
                                       "order the nodes of all cells alike"});
    }
  }

  std::string place(const TrajectoryView& trajectory, int64_t frame) const {
    return fmt::format("{}: frame {}", trajectory.name(), trajectory.first_frame() + frame);
  }

  void read_field(const TrajectoryView& trajectory, size_t number) {
    const FieldView view = trajectory.field(static_cast<int64_t>(number));
    if (view.dtype != DType::f32) return;
    std::vector<double> changes;
    for (int64_t t = 0; t < view.frames; ++t) {
      add_values(view.frame(t), number, trajectory, t);
      if (t > 0) changes.push_back(add_change(view.frame(t - 1), view.frame(t), number));
    }
    find_jump(changes, trajectory, number);
  }

  void add_values(std::span<const float> values, size_t number, const TrajectoryView& trajectory, int64_t t) {
    FieldSummary& field = summary_.fields[number];
    const FieldStatistics& training = training_[number];
    const size_t width = field.components.size();
    for (size_t c = 0; c < width; ++c) {
      ComponentSummary& component = field.components[c];
      const bool ranged = training.count > 0 && c < training.min.size() && training.max[c] > training.min[c];
      const double low = ranged ? training.min[c] : 0;
      const double scale = ranged ? kHistogramParts / (training.max[c] - low) : 0;
      if (ranged) component.histogram.resize(kHistogramParts, 0);
      int64_t& seen = seen_[{number, c}];
      for (size_t i = c; i < values.size(); i += width) {
        const auto value = static_cast<double>(values[i]);
        if (!std::isfinite(value)) {
          add_non_finite(field.info, trajectory, t, i / width);
          continue;
        }
        const bool first = seen++ == 0;
        component.min = first ? value : std::min(component.min, value);
        component.max = first ? value : std::max(component.max, value);
        component.mean += value;  // the sum, until finish_fields
        if (!ranged) continue;
        const double part = std::clamp((value - low) * scale, 0.0, kHistogramParts - 1.0);
        ++component.histogram[static_cast<size_t>(part)];
      }
    }
  }

  void add_non_finite(const FieldInfo& info, const TrajectoryView& trajectory, int64_t t, size_t row) {
    findings_.add("not finite " + info.name,
                  {Severity::error, place(trajectory, t),
                   fmt::format("field {} is not finite at {} {}", info.name, name_of(info.on), row),
                   "one such value makes the loss of its batch NaN, and the step is skipped",
                   "repair the solver's output or leave the trajectory out, then convert again"});
  }

  /// Returns the root mean square over all components.
  double add_change(std::span<const float> before, std::span<const float> now, size_t number) {
    FieldSummary& field = summary_.fields[number];
    const size_t width = field.components.size();
    double all = 0;
    for (size_t c = 0; c < width; ++c) {
      double sum = 0;
      for (size_t i = c; i < now.size(); i += width) {
        const double change = static_cast<double>(now[i]) - static_cast<double>(before[i]);
        if (std::isfinite(change)) sum += change * change;
      }
      field.components[c].change += sum;  // the sum of squares, until finish_fields
      all += sum;
    }
    pairs_[number] += static_cast<double>(now.size() / width);
    return std::sqrt(all / static_cast<double>(std::max<size_t>(now.size(), 1)));
  }

  // A change between others that are much smaller, on both sides where there are two.
  void find_jump(const std::vector<double>& changes, const TrajectoryView& trajectory, size_t number) {
    for (size_t i = 0; i < changes.size() && changes.size() >= 3; ++i) {
      const double before = i > 0 ? changes[i - 1] : changes[i + 1];
      const double after = i + 1 < changes.size() ? changes[i + 1] : changes[i - 1];
      const double around = std::max(before, after);
      if (around <= 0 || changes[i] <= kJump * around) continue;
      const std::string& name = summary_.fields[number].info.name;
      findings_.add("jump " + name,
                    {Severity::warning, place(trajectory, static_cast<int64_t>(i) + 1),
                     fmt::format("field {} changes {:.0f} times more than in the frames beside it", name,
                                 changes[i] / around),
                     "frames may be missing or two runs joined; the model would learn this change as "
                     "one time step",
                     "write all frames at one time step, or split the trajectory there"});
    }
  }

  void find_repeated_frames(const TrajectoryView& trajectory) {
    const int64_t frames = trajectory.frames();
    for (int64_t t = 1; t < frames; ++t) {
      bool same = true, dynamic = false;
      for (size_t f = 0; f < summary_.fields.size() && same; ++f) {
        const FieldView view = trajectory.field(static_cast<int64_t>(f));
        if (!view.dynamic || view.on == FieldOn::graph) continue;
        dynamic = true;
        const size_t size = view.bytes.size() / static_cast<size_t>(view.frames);
        const auto at = [&](int64_t frame) {
          return view.bytes.subspan(static_cast<size_t>(frame) * size, size);
        };
        same = std::ranges::equal(at(t - 1), at(t));
      }
      if (!same || !dynamic) continue;
      findings_.add("repeated frame",
                    {Severity::warning, place(trajectory, t), "all fields are those of the frame before",
                     "the model learns that nothing changes, and the errors on such frames are small for "
                     "no merit",
                     "leave repeated frames out, such as those after the flow has come to rest"});
    }
  }

  void finish_fields() {
    for (size_t f = 0; f < summary_.fields.size(); ++f) {
      FieldSummary& field = summary_.fields[f];
      std::vector<size_t> constant;
      for (size_t c = 0; c < field.components.size(); ++c) {
        ComponentSummary& component = field.components[c];
        const double offset = field.info.offset_of(c);
        if (field.info.dtype == DType::f32) {
          const auto count = static_cast<double>(seen_[{f, c}]);
          field.values = std::max(field.values, count);
          component.mean = count > 0 ? component.mean / count : 0;
          component.change = pairs_[f] > 0 ? std::sqrt(component.change / pairs_[f]) : 0;
        } else if (c < training_[f].min.size()) {
          component.min = training_[f].min[c];
          component.max = training_[f].max[c];
        }
        if (component.min == component.max) constant.push_back(c);
        for (double* value : {&component.min, &component.max, &component.mean}) *value += offset;
      }
      add_constant(field, constant);
    }
  }

  void add_constant(const FieldSummary& field, const std::vector<size_t>& constant) {
    if (constant.empty() || field.info.on == FieldOn::graph) return;
    const bool whole = constant.size() == field.components.size();
    findings_.add("constant " + field.info.name,
                  {whole ? Severity::warning : Severity::note, "field " + field.info.name,
                   whole ? fmt::format("is {:g} everywhere", field.components[0].min)
                         : fmt::format("component {} is {:g} everywhere", constant[0],
                                       field.components[constant[0]].min),
                   "as an input it tells the model nothing; as a target it says nothing of the model",
                   whole ? "leave it out of data.inputs and data.targets"
                         : "no harm; a flow in a plane needs no third component"});
  }

  // Errors on a mesh that was trained on say nothing of other meshes.
  void find_shared_meshes() {
    const std::string& training = dataset_.statistics_split();
    const std::vector<int64_t>& numbers = trajectories_on_[training];
    const std::set<int64_t> trained(numbers.begin(), numbers.end());
    for (const SplitInfo& split : dataset_.splits()) {
      if (split.name == training) continue;
      const std::vector<int64_t>& used = trajectories_on_[split.name];
      const auto shared =
          std::count_if(used.begin(), used.end(), [&](int64_t mesh) { return trained.contains(mesh); });
      if (shared == 0) continue;
      findings_.add("shared mesh " + split.name,
                    {Severity::note, "split " + split.name,
                     fmt::format("{} of {} on a mesh of split {}", shared,
                                 counted(split.count, "trajectory is", "trajectories are"), training),
                     "errors there tell how a model does at other times and conditions, not on new meshes",
                     "to measure new meshes, keep theirs out of training: one folder for each split"});
    }
  }

  void find_splits() {
    std::vector<std::string> moving;
    for (const FieldInfo& info : dataset_.fields()) {
      if (info.dynamic && info.on == FieldOn::node && info.dtype == DType::f32) moving.push_back(info.name);
    }
    for (const SplitInfo& split : dataset_.splits()) {
      if (split.name == dataset_.statistics_split()) continue;
      const auto quiet = quiet_split(dataset_, split.name, moving, NodeTypeSet::all());
      if (!quiet) continue;
      findings_.add("quiet " + split.name,
                    {Severity::warning, "split " + split.name,
                     fmt::format("{} changes by {:.1e} a frame, by {:.1e} in training", quiet->field,
                                 quiet->split, quiet->training),
                     "predicting that nothing changes is hard to beat there: the best checkpoint and errors "
                     "say little",
                     "choose other trajectories or frames for this split"});
    }
    if (dataset_.splits().size() > 1 || !dataset_.node_splits().empty()) return;
    findings_.add("one split",
                  {Severity::warning, "split " + dataset_.splits().front().name, "there is no other split",
                   "nothing tells whether a model does more than "
                   "remember its training data",
                   "convert with --split 0.8,0.1,0.1, or give files of the splits valid and test"});
  }

  // "[PLACE] TEXT", about a trajectory in two splits or an outlier.
  void add_conversion_warning(const std::string& warning) {
    findings_.add(warning, finding_of_warning(warning));
  }

  const Dataset& dataset_;
  DataSummary summary_;
  FindingList findings_;
  std::vector<FieldStatistics> training_;
  std::set<int64_t> meshes_;
  int64_t edges_seen_ = 0;                                       // of distinct meshes
  std::map<std::string, std::vector<int64_t>> trajectories_on_;  // split -> meshes
  std::map<std::pair<size_t, size_t>, int64_t> seen_;            // (field, component) -> finite values
  std::map<size_t, double> pairs_;                               // field -> rows with a change
};

}  // namespace

int64_t DataSummary::count(Severity severity) const {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.severity == severity; });
}

void sort_findings(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
}

HistogramRange range_of(const std::vector<int64_t>& histogram) {
  const int64_t total = std::accumulate(histogram.begin(), histogram.end(), int64_t{0});
  HistogramRange range;
  int64_t below = 0;
  for (size_t i = 0; i < histogram.size() && total > 0; ++i) {
    if (histogram[i] == 0) continue;
    const auto value = static_cast<int64_t>(i);
    if (below == 0) range.least = value;
    if (2 * below < total) range.median = value;
    range.most = value;
    below += histogram[i];
  }
  return range;
}

DataSummary check_data(const Dataset& dataset) { return DataScan(dataset).run(); }

}  // namespace meshgrad
