// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/tools/extras/field_roles.h>
#include <meshgrad/train/tools/extras/first_graph_config.h>
#include <meshgrad/train/tools/extras/reach.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshgrad {
namespace {

constexpr double kNoiseShare = 0.3;         // of a target's change
constexpr double kSecondChangeGamma = 0.1;  // Pfaff et al. (2021), appendix A.2.2
constexpr int64_t kNodesPerBatch = 2048;    // small meshes are batched up to about this many nodes
constexpr int64_t kEpochs = 16;
constexpr int64_t kFewestSteps = 2000;
constexpr int64_t kMostSteps = 100000;

template <class T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::ranges::find(list, value) != list.end();
}

/// Guesses one key after the other; each guess is noted with its reason.
class Guess {
 public:
  Guess(const Dataset& dataset, const std::vector<std::string>& targets)
      : dataset_(dataset), targets_(targets) {
    for (const std::string& target : targets) dataset.field(target);  // says which exist
  }

  FirstConfig run(const std::vector<Preset>& chosen) {
    Config& config = first_.config;
    const std::filesystem::path& path = dataset_.path();
    config.data.path = path.string();
    config.run.dir = (std::filesystem::path("runs") / path.stem()).string();
    reason("run.dir", "metrics, checkpoints and pictures go here");
    reason("data.path", "");
    choose_splits();
    choose_fields();
    choose_types();
    choose_prediction();
    choose_network();
    choose_steps();
    choose_noise();
    choose_precision(first_);
    config = with_presets(config, chosen);
    const bool batch_is_set = std::ranges::any_of(chosen, [](const Preset& preset) {
      return std::ranges::any_of(preset.settings, [](auto text) { return text.starts_with("train.batch="); });
    });
    if (!batch_is_set) choose_batch();
    note_reach();
    mark_presets(first_, chosen);
    return std::move(first_);
  }

 private:
  void reason(const std::string& key, std::string text) { first_.reasons[key] = std::move(text); }

  void choose_splits() {
    DataConfig& data = first_.config.data;
    data.train_split = dataset_.statistics_split();
    reason("data.train_split", counted(dataset_.size(data.train_split), "trajectory", "trajectories"));
    for (const SplitInfo& split : dataset_.splits())
      frames_ += split.name == data.train_split ? frames_of(split) : 0;
    data.valid_split = data.train_split;
    for (const char* name : {"test", "valid"}) {
      if (dataset_.has_split(name) && dataset_.size(name) > 0) data.valid_split = name;
    }
    if (data.valid_split == data.train_split) {
      first_.notes.push_back(
          "There is no split to validate on, so train validates on its own data: convert with more "
          "trajectories or --split 0.8,0.1,0.1 --by time.");
    }
    reason("data.valid_split", counted(dataset_.size(data.valid_split), "trajectory", "trajectories"));
  }

  int64_t frames_of(const SplitInfo& split) {
    int64_t frames = 0;
    for (int64_t i = 0; i < split.count; ++i) {
      const int64_t here = dataset_.frames(split.name, i);
      longest_ = std::max(longest_, here);
      samples_in_time_ += std::max<int64_t>(0, here - 1);
      frames += here;
    }
    return frames;
  }

  int64_t longest_in(const std::string& split) const {
    int64_t longest = 0;
    for (int64_t i = 0; i < dataset_.size(split); ++i) longest = std::max(longest, dataset_.frames(split, i));
    return longest;
  }

  bool varies(const FieldInfo& field, Quantity quantity) const {
    const FieldStatistics stats = dataset_.field_stats(field.name, NodeTypeSet::all(), quantity);
    return std::ranges::any_of(stats.std, [](double deviation) { return deviation > 0; });
  }

  /// Also where it changes by the same number everywhere.
  bool changes(const FieldInfo& field) const {
    const FieldStatistics stats = dataset_.field_stats(field.name, NodeTypeSet::all(), Quantity::change);
    return varies(field, Quantity::change) ||
           std::ranges::any_of(stats.mean, [](double mean) { return mean != 0; });
  }

  void choose_fields() {
    std::vector<FieldInfo> moving, still, conditions;
    for (const FieldInfo& field : dataset_.fields()) {
      if (field.dtype != DType::f32) continue;
      if (field.on == FieldOn::graph && !contains(targets_, field.name)) conditions.push_back(field);
      if (field.on == FieldOn::edge && !field.dynamic && varies(field, Quantity::value)) {
        first_.config.data.edge_inputs.push_back(field.name);
        reason("data.edge_inputs", "static float fields on edges");
      }
      if (field.on != FieldOn::node || !varies(field, Quantity::value)) continue;
      const bool moves = field.dynamic && longest_ > 1 && changes(field);
      (moves ? moving : still).push_back(field);
    }
    const std::string displacement = leave_out_displacement(moving);
    if (moving.empty()) {
      choose_steady(still, conditions);
    } else {
      choose_dynamics(moving, still, conditions);
    }
    if (!displacement.empty()) {
      first_.reasons["data.targets"] +=
          fmt::format("; {} is left out, since it is how far {} moved", displacement, kWorldPosition);
    }
  }

  /// A field that moves exactly as the nodes do is none beside their positions. Returns its name, or nothing.
  std::string leave_out_displacement(std::vector<FieldInfo>& moving) const {
    const auto world = std::ranges::find(moving, kWorldPosition, &FieldInfo::name);
    if (world == moving.end()) return "";
    const TrajectoryView trajectory = dataset_.trajectory(dataset_.statistics_split(), 0);
    const int64_t last = trajectory.frames() - 1;
    const FieldView positions = trajectory.field(kWorldPosition);
    const auto same = std::ranges::find_if(moving, [&](const FieldInfo& field) {
      if (field.name == kWorldPosition || field.components != world->components) return false;
      const FieldView values = trajectory.field(field.name);
      float largest = 0, apart = 0;
      for (const int64_t frame : {last / 2, last}) {
        for (size_t i = 0; i < values.frame(0).size(); ++i) {
          const float moved = positions.frame(frame)[i] - positions.frame(0)[i];
          largest = std::max(largest, std::abs(moved));
          apart = std::max(apart, std::abs(moved - (values.frame(frame)[i] - values.frame(0)[i])));
        }
      }
      return largest > 0 && apart < 1e-4F * largest;
    });
    if (same == moving.end()) return "";
    std::string name = same->name;
    moving.erase(same);
    return name;
  }

  static std::vector<std::string> names_of(const std::vector<FieldInfo>& fields) {
    std::vector<std::string> names;
    for (const FieldInfo& field : fields) names.push_back(field.name);
    return names;
  }
  static void append(std::vector<std::string>& list, const std::vector<std::string>& more) {
    list.insert(list.end(), more.begin(), more.end());
  }

  void choose_dynamics(const std::vector<FieldInfo>& moving, const std::vector<FieldInfo>& still,
                       const std::vector<FieldInfo>& conditions) {
    DataConfig& data = first_.config.data;
    first_.config.task.name = TaskName::mesh_dynamics;
    over_time_ = true;
    reason("task.name", fmt::format("trajectories of up to {}", counted(longest_, "frame")));
    data.inputs = names_of(moving);
    data.targets = targets_.empty() ? data.inputs : targets_;
    choose_positions(moving);
    append(data.inputs, names_of(still));
    append(data.inputs, names_of(conditions));
    reason("data.targets", "the fields on nodes that change over time; a rollout predicts them");
    reason("data.inputs", "the targets at this frame, then what is known beforehand");
    reason("data.predict", "\"second_change\" for positions and displacements with inertia");
    if (moving.size() > 1) {
      first_.notes.push_back(
          fmt::format("Targets are {}: leave out what you do not want predicted.", listed(data.targets)));
    }
  }

  /// Of a mesh that moves: edges follow the field of positions.
  void choose_positions(const std::vector<FieldInfo>& moving) {
    DataConfig& data = first_.config.data;
    const auto world = std::ranges::find(moving, kWorldPosition, &FieldInfo::name);
    if (world == moving.end() || (world->components != 2 && world->components != 3)) return;
    data.world_position = kWorldPosition;
    for (const FieldInfo& field : moving)
      if (follows_positions(field.name)) data.value_targets.push_back(field.name);
    std::erase_if(data.inputs, follows_positions);
    if (!data.value_targets.empty())
      reason("data.value_targets", "stresses and strains follow from where the nodes are");
    reason("data.world_position", "the mesh moves: edges read where its nodes are");
  }

  /// What swings or falls needs to know how it last moved; what a body presses, as DeepMind's plate, does
  /// not.
  void choose_prediction() {
    DataConfig& data = first_.config.data;
    if (data.world_position.empty()) return;
    const auto spread = [&](Quantity quantity) {
      const FieldStatistics stats = dataset_.field_stats(data.world_position, NodeTypeSet::all(), quantity);
      return std::hypot(stats.std[0], stats.std[1], stats.std.size() > 2 ? stats.std[2] : 0.0);
    };
    const bool alone = data.targets.size() == data.value_targets.size() + 1;
    const bool pressed = !data.value_targets.empty() && !data.kinematic_types.empty();
    const bool short_ones = std::min(longest_, longest_in(data.valid_split)) < 3;
    if (short_ones || !alone || pressed || spread(Quantity::second_change) > 0.5 * spread(Quantity::change)) {
      std::erase(data.inputs, kWorldPosition);
      if (data.inputs.empty()) reason("data.inputs", "none: edges tell where nodes are");
      return;
    }
    data.predict = Prediction::second_change;
    reason("data.predict", "the mesh moves smoothly: nodes read how they last moved");
  }

  void choose_steady(const std::vector<FieldInfo>& fields, const std::vector<FieldInfo>& conditions) {
    DataConfig& data = first_.config.data;
    first_.config.task.name = TaskName::steady_field;
    reason("task.name", "no field changes over time");
    if (fields.empty() || fields.size() + conditions.size() < 2) {
      throw config_error(
          dataset_.path().string(),
          "a float field on nodes to predict, and another one (or one on graphs) to predict it from",
          fields.empty() ? "none that varies" : "only " + listed(names_of(fields)),
          "add the known values as a field: boundary values, sources, a Reynolds number");
    }
    data.inputs = names_of(conditions);
    data.targets = targets_;
    const auto on_nodes = [&](const auto& name) { return dataset_.field(name).on != FieldOn::graph; };
    std::erase_if(data.targets, on_nodes);
    reason("data.inputs", "what is known before the solution");
    reason("data.targets", "what the model predicts");
    const bool told = std::ranges::any_of(fields, &FieldInfo::dynamic) &&
                      (!conditions.empty() || !std::ranges::all_of(fields, &FieldInfo::dynamic));
    std::vector<std::string> unknown, why_known, why_results;
    for (const FieldInfo& field : fields) {
      using Kind = FieldRole::Kind;
      const FieldRole role = !targets_.empty()
                                 ? FieldRole{contains(targets_, field.name) ? Kind::result : Kind::known, ""}
                             : told ? FieldRole{field.dynamic ? Kind::result : Kind::known, ""}
                                    : role_of(dataset_, field);
      if (role.kind == Kind::unknown) unknown.push_back(field.name);
      if (role.kind == Kind::known) data.inputs.push_back(field.name);
      if (role.kind == Kind::result) data.targets.push_back(field.name);
      std::vector<std::string>& why = role.kind == Kind::known ? why_known : why_results;
      if (!role.why.empty()) why.push_back(field.name + ": " + role.why);
    }
    if (!targets_.empty() && (data.targets.size() != targets_.size() || data.inputs.empty())) {
      throw config_error("--targets", "some of the fields on nodes, each once, and others to predict from",
                         listed(targets_), "choose from " + listed(names_of(fields)));
    }
    if (!unknown.empty() || data.targets.empty() || data.inputs.empty()) {
      const std::vector<std::string> candidates = unknown.empty() ? names_of(fields) : unknown;
      const std::string path = dataset_.path().string();
      throw config_error(
          path, "fields that say what is known and what is to be predicted",
          "candidates " + listed(candidates),
          fmt::format("name those to predict, for example meshgrad init --data {} --targets {}", path,
                      candidates.back()));
    }
    if (!why_known.empty()) reason("data.inputs", "what is known before the solution; " + listed(why_known));
    if (!why_results.empty()) reason("data.targets", "what the model predicts; " + listed(why_results));
  }

  void choose_types() {
    DataConfig& data = first_.config.data;
    const std::vector<double>& counts = dataset_.node_type_counts();
    std::vector<int64_t> present;
    for (size_t type = 0; type < counts.size(); ++type) {
      if (counts[type] > 0) present.push_back(static_cast<int64_t>(type));
    }
    const bool single = dataset_.node_types() == 1;
    data.node_types = single ? 1 : std::max(data.node_types, dataset_.node_types());
    reason("data.node_types", single ? "the data has one type only" : "one-hot input; 9 are DeepMind's");
    std::string why = "normal and outflow nodes; all others keep the values of the data";
    if (dataset_.source().ends_with("(deepmind)")) {  // whose numbers have a meaning
      std::erase_if(data.predicted_types, [&](int64_t type) { return !contains(present, type); });
    } else {
      data.predicted_types = types_to_predict(dataset_, data.inputs, data.targets, over_time_);
      why = over_time_ ? "types at which a target changes; all others keep the values of the data"
                       : "types at which a target varies and is not given by an input";
    }
    if (data.predicted_types.empty()) {
      data.predicted_types = present;
      why = "all types of the data: leave out those whose values are prescribed";
    }
    if (single) why = "all nodes: without node types nothing tells walls and inflow from the rest";
    reason("data.predicted_types", why);
    choose_kinematic(present);
    data.noise_types = {data.predicted_types.front()};
    reason("data.noise_types", "nodes whose inputs get training noise");
  }

  /// Nodes that move without being predicted are moved by the data.
  void choose_kinematic(const std::vector<int64_t>& present) {
    DataConfig& data = first_.config.data;
    if (data.world_position.empty()) return;
    for (const int64_t type : present) {
      if (std::ranges::find(data.predicted_types, type) != data.predicted_types.end()) continue;
      const FieldStatistics change =
          dataset_.field_stats(data.world_position, NodeTypeSet{type}, Quantity::change);
      const auto moves = [](double value) { return value != 0; };
      if (!std::ranges::any_of(change.mean, moves) && !std::ranges::any_of(change.std, moves)) continue;
      data.kinematic_types.push_back(type);
      reason("data.kinematic_types", "nodes of this type move and are not predicted: the data move them");
    }
    if (!data.kinematic_types.empty()) choose_world_edges();
  }

  /// A body that the data move meets the others.
  void choose_world_edges() {
    DataConfig& data = first_.config.data;
    data.world_radius = rounded(dataset_.edge_stats().mean.back());
    data.world_pairs = WorldPairs::other_type;
    reason("data.world_radius",
           "the mean length of an edge: nearer nodes of two types exchange messages; 0 for MeshPredictor");
    const std::vector<double> counts =
        world_edges_per_node(dataset_, &dataset_.field(data.world_position), {data.world_radius, true});
    if (counts.empty() || counts.back() == 0.0) return;
    data.world_edges_per_node = rounded(1.5 * counts.back());
    reason("data.world_edges_per_node", "1.5 times the most in some frames of the data");
  }

  void choose_network() {
    ModelConfig& model = first_.config.model;
    const double rows = static_cast<double>(frames_) *
                        static_cast<double>(dataset_.largest_mesh(first_.config.data.train_split).nodes);
    const int size = rows < 1e5 ? 0 : rows < 1e7 ? 1 : 2;
    model.width = size == 0 ? 32 : size == 1 ? 64 : 128;
    model.blocks = size == 0 ? 6 : size == 1 ? 8 : 15;
    reason("model.width", fmt::format("for about {:.1g} frames x nodes; the paper has 128", rows));
  }

  void note_reach() {
    const std::optional<MeshReach> reach = mesh_reach(first_.config, dataset_);
    if (!reach) return;
    reason("model.blocks", reach_text(*reach) + "; the paper has 15");
    if (const std::optional<Finding> far = reach_finding(first_.config, *reach))
      first_.notes.push_back(fmt::format("{}: {}. To fix it, {}.", far->what, far->why, far->remedy));
  }

  int64_t samples() const { return std::max<int64_t>(1, over_time_ ? samples_in_time_ : frames_); }

  void choose_steps() {
    TrainConfig& train = first_.config.train;
    train.batch = 1;
    set_steps(1);
    first_.config.optimizer.lr = 1e-3;
    first_.config.schedule.final_lr = 1e-5;
    reason("optimizer.lr", "falls to schedule.final_lr; for 10^5 steps and more 1e-4 is usual");
    reason("schedule.final_lr", "");
  }

  void set_steps(int64_t batch) {
    TrainConfig& train = first_.config.train;
    constexpr int64_t kRound = 500;
    const int64_t wanted = kEpochs * samples() / batch / kRound * kRound;
    train.steps = std::clamp(wanted, kFewestSteps, kMostSteps);
    train.validate_every = train.steps / 10;
    train.checkpoint_every = train.validate_every;
    train.validate_samples = 100;
    reason("train.steps", fmt::format("{} to train on", counted(samples(), "sample")));
    reason("train.validate_every", "");
    reason("train.checkpoint_every", "");
    reason("train.validate_samples", "");
  }

  void choose_noise() {
    Config& config = first_.config;
    config.train.noise = 0;
    if (!over_time_) {
      config.data.noise_types.clear();
      reason("data.noise_types", "a steady solution needs no noise");
      reason("train.noise", "");
      return;
    }
    const bool second = config.data.predict == Prediction::second_change;
    const Quantity quantity = second ? Quantity::second_change : Quantity::change;
    for (const std::string& name : config.data.targets) {
      const bool read = name == config.data.world_position ||
                        std::ranges::find(config.data.inputs, name) != config.data.inputs.end();
      if (!read) continue;
      const FieldStatistics stats =
          dataset_.field_stats(name, NodeTypeSet(std::span(config.data.predicted_types)), quantity);
      double square = 0;
      for (const double deviation : stats.std) square += deviation * deviation;
      const double change = std::sqrt(square / static_cast<double>(std::max<size_t>(stats.std.size(), 1)));
      if (change > 0) config.train.field_noise.push_back({name, rounded(kNoiseShare * change)});
    }
    if (config.train.field_noise.empty()) return;
    const std::string kind = second ? "second change" : "change";
    if (config.train.field_noise.size() > 1) {
      reason("train.noise", fmt::format("in each field's unit; 0.3 times its {} over a frame", kind));
    } else {
      const FieldNumber only = std::exchange(config.train.field_noise, {}).front();
      config.train.noise = only.value;
      const std::string& unit = dataset_.field(only.field).unit;
      reason("train.noise", fmt::format("{}{}0.3 times the {} of {} over a frame", unit,
                                        unit.empty() ? "" : "; ", kind, only.field));
    }
    if (!second) return;
    config.train.gamma = kSecondChangeGamma;
    reason("train.gamma", "the paper's for second changes: most of the noise stays in the target");
  }

  /// To two digits.
  static double rounded(double value) {
    const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1);
    return parse_number(fmt::format("{:.1e}", std::round(value / unit) * unit)).value();
  }

  void choose_batch() {
    Config& config = first_.config;
    const Device device = planned_device(config, PlanMode::predicted);
    const StepProbe probe(dataset_, device);
    const int64_t nodes = dataset_.largest_mesh(config.data.train_split).nodes;
    const int64_t wanted = std::clamp(kNodesPerBatch / std::max<int64_t>(nodes, 1), int64_t{1},
                                      std::min<int64_t>(32, samples()));
    config.plan.max_batch = wanted;
    const int64_t fits = memory_budget(probe, config, memory_room(config, device)).batch_size;
    config.plan.max_batch = PlanConfig().max_batch;
    config.train.batch = std::clamp<int64_t>(fits, 1, wanted);
    reason("train.batch", fmt::format("meshes of up to {} nodes; see meshgrad plan", nodes));
    set_steps(config.train.batch);
    if (fits > 0) return;
    config.recompute.mode = RecomputeMode::block;
    reason("recompute.mode", "a sample does not fit otherwise");
    first_.notes.push_back("Memory is short: see meshgrad plan for what fits.");
  }

  const Dataset& dataset_;
  const std::vector<std::string>& targets_;  // given; empty: chosen here
  FirstConfig first_;
  int64_t frames_ = 0;           // of the training split
  int64_t samples_in_time_ = 0;  // pairs of its frames
  int64_t longest_ = 0;
  bool over_time_ = false;
};

}  // namespace

void choose_precision(FirstConfig& first) {
  const Device device = planned_device(first.config, PlanMode::predicted);
  first.config.precision = precision_for(device);
  if (first.config.precision == DType::f32) return;
  first.reasons["precision"] =
      fmt::format("what suits {}; \"f32\" has more digits and takes longer", name_of(device));
}

void mark_presets(FirstConfig& first, const std::vector<Preset>& chosen) {
  for (const Preset& preset : chosen)
    for (const std::string_view setting : preset.settings)
      first.reasons[std::string(setting.substr(0, setting.find('=')))] =
          fmt::format("preset {}", preset.name);
}

FirstConfig first_config(const Dataset& dataset, const std::vector<Preset>& chosen,
                         const std::vector<std::string>& targets) {
  if (is_for_graphs(dataset, targets)) return first_graph_config(dataset, chosen, targets);
  return Guess(dataset, targets).run(chosen);
}

std::string to_toml(const FirstConfig& first) {
  const Config defaults;
  std::string text =
      "# Written by meshgrad init. `meshgrad check` examines it, `meshgrad train` trains with it;\n"
      "# `meshgrad config default` prints every key.\n";
  for (const std::string& note : first.notes) text += wrapped("TO DO: " + note, 100, "# ", "#   ") + "\n";
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const auto reason = first.reasons.find(full_name(key));
    const std::string literal = toml_literal(key, first.config);
    if (reason == first.reasons.end() && literal == toml_literal(key, defaults)) continue;
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    const bool why = reason != first.reasons.end() && !reason->second.empty();
    text += fmt::format("{} = {}{}{}\n", key.name, literal, why ? "  # " : "", why ? reason->second : "");
  }
  return text;
}

}  // namespace meshgrad
