// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/tools/extras/reach.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>

namespace meshgrad {
namespace {

constexpr int64_t kLookedAt = 8;  // trajectories
constexpr int32_t kUnreached = -1;

/// Edges from the nearest of `sources` to each node, along the edges' directions.
std::vector<int32_t> distances(const MeshView& mesh, const std::vector<int32_t>& sources) {
  std::vector<int32_t> distance(static_cast<size_t>(mesh.nodes), kUnreached), now = sources, next;
  for (const int32_t node : sources) distance[static_cast<size_t>(node)] = 0;
  for (int32_t edges = 1; !now.empty(); ++edges, std::swap(now, next)) {
    next.clear();
    for (const int32_t node : now) {
      const auto begin = static_cast<size_t>(mesh.sender_offsets[static_cast<size_t>(node)]);
      const auto end = static_cast<size_t>(mesh.sender_offsets[static_cast<size_t>(node) + 1]);
      for (const int32_t edge : mesh.sender_order.subspan(begin, end - begin)) {
        const int32_t receiver = mesh.receivers[static_cast<size_t>(edge)];
        if (distance[static_cast<size_t>(receiver)] != kUnreached) continue;
        distance[static_cast<size_t>(receiver)] = edges;
        next.push_back(receiver);
      }
    }
  }
  return distance;
}

/// Between two nodes that are far apart: the farthest from the farthest of the first.
int64_t diameter_of(const MeshView& mesh) {
  int32_t node = 0;
  int64_t most = 0;
  for (int sweep = 0; sweep < 2 && mesh.nodes > 0; ++sweep) {
    const std::vector<int32_t> distance = distances(mesh, {node});
    const auto farthest = std::ranges::max_element(distance);
    node = static_cast<int32_t>(farthest - distance.begin());
    most = *farthest;
  }
  return most;
}

/// Values of a field's first frame, offsets included.
struct FirstFrame {
  std::span<const float> stored;
  const FieldInfo& info;
  size_t width() const { return static_cast<size_t>(info.components); }
  double value(size_t row, size_t component) const {
    return static_cast<double>(stored[row * width() + component]) + info.offset_of(component);
  }
  bool is_zero(size_t row) const {
    for (size_t c = 0; c < width(); ++c)
      if (value(row, c) != 0.0) return false;
    return true;
  }
  /// On a graph, or the same at all nodes.
  bool is_condition() const {
    for (size_t at = width(); at < stored.size(); ++at)
      if (stored[at] != stored[at % width()]) return false;
    return !stored.empty();
  }
  bool repeats(const FirstFrame& other, size_t row) const {
    if (info.components != other.info.components) return false;
    for (size_t c = 0; c < width(); ++c)
      if (value(0, c) != other.value(row, c)) return false;
    return true;
  }
};

/// data.hops with which a message reaches the farthest node.
int64_t hops_needed(const Config& config, const MeshReach& reach) {
  return (reach.sources.front().most + config.model.blocks - 1) / config.model.blocks;
}

class ReachScan {
 public:
  ReachScan(const Config& config, const Dataset& dataset) : config_(config), dataset_(dataset) {
    reach_.edges = config.model.blocks * config.data.hops;
    for (size_t axis = 0; axis < config.data.period.size(); ++axis)
      edges_.period[axis] = config.data.period[axis];
    if (edges_.periodic()) dataset_ = dataset.with_edges(edges_);
  }

  MeshReach run() {
    const std::string& split = config_.data.train_split;
    for (int64_t i = 0; i < std::min(dataset_.size(split), kLookedAt); ++i)
      look(dataset_.trajectory(split, i));
    for (auto& [name, source] : sources_)
      if (!repeated_.contains(name) || spread_.contains(name)) reach_.sources.push_back(std::move(source));
    std::ranges::stable_sort(reach_.sources, std::greater<>(), &ReachSource::most);
    measure_hops();
    return std::move(reach_);
  }

 private:
  void look(const TrajectoryView& trajectory) {
    const MeshView& mesh = trajectory.mesh();
    look_at_inputs(trajectory);
    if (!meshes_.insert(mesh.index).second) return;
    const int64_t diameter = diameter_of(mesh);
    const bool first = reach_.meshes++ == 0;
    reach_.diameter_least = first ? diameter : std::min(reach_.diameter_least, diameter);
    reach_.diameter_most = std::max(reach_.diameter_most, diameter);
    std::map<int32_t, std::vector<int32_t>> by_type;
    for (int32_t node = 0; node < mesh.nodes; ++node)
      by_type[mesh.node_type[static_cast<size_t>(node)]].push_back(node);
    for (const auto& [type, nodes] : by_type) add(mesh, fmt::format("nodes of type {}", type), false, nodes);
  }

  void look_at_inputs(const TrajectoryView& trajectory) {
    const MeshView& mesh = trajectory.mesh();
    std::vector<FirstFrame> conditions, on_nodes;
    for (const std::string& name : config_.data.inputs) {
      const FieldInfo& info = dataset_.field(name);
      if (info.dtype != DType::f32) continue;
      const FirstFrame values{trajectory.field(name).frame(0), info};
      if (values.is_condition()) conditions.push_back(values);
      if (info.on == FieldOn::node) on_nodes.push_back(values);
    }
    for (const FirstFrame& values : on_nodes) {
      std::vector<int32_t> nodes;
      for (int32_t node = 0; node < mesh.nodes; ++node)
        if (!values.is_zero(static_cast<size_t>(node))) nodes.push_back(node);
      if (!add(mesh, values.info.name, true, nodes)) continue;
      const bool repeated = std::ranges::any_of(conditions, [&](const FirstFrame& other) {
        return other.repeats(values, static_cast<size_t>(nodes.front()));
      });
      (repeated ? repeated_ : spread_).insert(values.info.name);
    }
  }

  /// Whether they are few, and far enough to count.
  bool add(const MeshView& mesh, const std::string& name, bool input, const std::vector<int32_t>& nodes) {
    if (nodes.empty() || 2 * std::ssize(nodes) >= mesh.nodes) return false;
    const std::vector<int32_t> distance = distances(mesh, nodes);
    int64_t farthest = 0, cut_off = 0;
    for (size_t node = 0; node < distance.size(); ++node) {
      if (!contains_type(config_.data.predicted_types, mesh.node_type[node])) continue;
      farthest = std::max<int64_t>(farthest, distance[node]);
      cut_off += distance[node] == kUnreached ? 1 : 0;
    }
    const auto [at, first] = sources_.try_emplace(name, ReachSource{name, input, farthest, farthest});
    at->second.least = std::min(at->second.least, farthest);
    at->second.most = std::max(at->second.most, farthest);
    at->second.cut_off = std::max(at->second.cut_off, cut_off);
    return true;
  }

  /// What more hops cost, on the first mesh.
  void measure_hops() {
    if (reach_.sources.empty() || reach_.sources.front().most <= reach_.edges) return;
    const MeshView mesh = dataset_.trajectory(config_.data.train_split, 0).mesh();
    if (mesh.directed || mesh.edges == 0) return;
    edges_.hops = hops_needed(config_, reach_);
    const Dataset wider = dataset_.with_edges(edges_);
    reach_.hop_edges = static_cast<double>(wider.trajectory(config_.data.train_split, 0).mesh().edges) /
                       static_cast<double>(mesh.edges);
  }

  const Config& config_;
  Dataset dataset_;
  MeshEdgeOptions edges_;
  MeshReach reach_;
  std::set<int64_t> meshes_;
  std::map<std::string, ReachSource> sources_;
  std::set<std::string> repeated_, spread_;  // inputs whose values another one has everywhere, or has not
};

std::string span_text(int64_t least, int64_t most) {
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

std::string repeat_text(const ReachSource& cause) {
  return fmt::format(
      "repeat the values of {} at all nodes, as a condition of the mesh (FieldData of VTU, graph:NAME of NPZ "
      "and HDF5) or as a further field: an input column each",
      cause.name);
}

/// Of parts of a mesh that no edges join.
Finding cut_off_finding(const ReachSource& cause) {
  const std::string from = cause.input ? "the nodes at which " + cause.name + " is not 0" : cause.name;
  return {cause.input ? Finding::Severity::warning : Finding::Severity::note, "data.inputs",
          fmt::format("{} of a mesh {} not connected with {}", counted(cause.cut_off, "predicted node"),
                      cause.cut_off == 1 ? "is" : "are", from),
          "no message reaches them, however many blocks there are",
          cause.input ? repeat_text(cause)
                      : "make one mesh of its parts, or add what they need to know as inputs"};
}

std::string remedy_text(const Config& config, const MeshReach& reach, const ReachSource& cause) {
  const ReachSource& far = reach.sources.front();
  const int64_t blocks = (far.most + config.data.hops - 1) / config.data.hops;
  const double times = static_cast<double>(blocks) / static_cast<double>(config.model.blocks);
  std::string text;
  if (cause.input) text += repeat_text(cause) + "; or ";
  text +=
      fmt::format("set model.blocks = {}: about {:.1f} times the time and memory of a step", blocks, times);
  if (reach.hop_edges > 1.0) {
    text += fmt::format(", or data.hops = {}: {:.1f} times the edges", hops_needed(config, reach),
                        reach.hop_edges);
  }
  return text;
}

}  // namespace

std::optional<MeshReach> mesh_reach(const Config& config, const Dataset& dataset) {
  if (config.task.name == TaskName::node_classification || dataset.dim() < 2) return std::nullopt;
  return ReachScan(config, dataset).run();
}

std::string reach_text(const MeshReach& reach) {
  std::string text =
      fmt::format("{} a message (blocks x hops); nodes are up to {} apart", counted(reach.edges, "edge"),
                  span_text(reach.diameter_least, reach.diameter_most));
  if (!reach.sources.empty()) {
    const ReachSource& far = reach.sources.front();
    text += fmt::format(", and up to {} from {}", span_text(far.least, far.most), far.name);
  }
  return text;
}

std::optional<Finding> reach_finding(const Config& config, const MeshReach& reach) {
  if (config.task.name != TaskName::steady_field || reach.sources.empty()) return std::nullopt;
  if (reads_graph_starts(config.model)) return std::nullopt;  // slices join all nodes
  const ReachSource* cut_off = nullptr;
  for (const ReachSource& source : reach.sources)
    if (source.cut_off > 0 && (cut_off == nullptr || (source.input && !cut_off->input))) cut_off = &source;
  if (cut_off != nullptr) return cut_off_finding(*cut_off);
  const auto input = std::ranges::find_if(reach.sources, &ReachSource::input);
  const bool of_input = input != reach.sources.end() && input->most > reach.edges;
  const ReachSource& source = of_input ? *input : reach.sources.front();
  if (source.most <= reach.edges) return std::nullopt;
  return Finding{
      source.input ? Finding::Severity::warning : Finding::Severity::note, "model.blocks",
      fmt::format("{} {} edges from the farthest predicted node; a message travels {}",
                  source.input ? source.name + " is 0 but at nodes that are" : source.name + " are",
                  span_text(source.least, source.most), reach.edges),
      "nodes beyond that are predicted without it, however long training lasts",
      remedy_text(config, reach, source)};
}

HealthCheck examine_reach(const std::filesystem::path& run) {
  HealthCheck check{
      .name = "reach", .verdict = HealthCheck::Verdict::unknown, .found = {}, .remedy = {}, .gain = {}};
  const std::filesystem::path file = run / "config.resolved.toml";
  if (!std::filesystem::exists(file)) {
    check.found = "no config.resolved.toml";
    return check;
  }
  Config config;
  std::optional<MeshReach> reach;
  try {
    config = parse_saved_config(read_file(file), file.string());
    const auto data = data_of_run(config, find_checkpoint(run.string(), "last"));
    reach = mesh_reach(config, Dataset::open(data.value_or(config.data.path)));
  } catch (const Error&) {  // other checks say what is wrong with the run
    check.found =
        fmt::format("the run has no checkpoint yet, or {} is not there as it was", config.data.path);
    return check;
  }
  check.verdict = HealthCheck::Verdict::good;
  check.found = reach ? reach_text(*reach) : "a graph without a mesh";
  const std::optional<Finding> finding = reach ? reach_finding(config, *reach) : std::nullopt;
  if (!finding) return check;
  check.verdict = HealthCheck::Verdict::note;  // what it costs in errors is another check's
  check.found = finding->what + ": " + finding->why;
  check.remedy = finding->remedy;
  return check;
}

}  // namespace meshgrad
