// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/tools/extras/config_check.h>
#include <meshgrad/train/tools/extras/field_roles.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

using Severity = Finding::Severity;

/// Samples of a split; trajectories that have none are a finding.
int64_t count_samples(const MeshTask& task, const std::string& split, std::vector<Finding>& findings) {
  const SplitSamples samples = task.samples(split);
  int64_t without = 0;
  std::string first;
  for (int64_t i = 0; i < task.dataset.size(split); ++i) {
    if (samples.in_trajectory(i) > 0 || without++ > 0) continue;
    first = std::string(task.dataset.trajectory(split, i).name());
  }
  const std::string needs = "a sample needs " + task.describe().sample;
  if (samples.size() == 0) {
    findings.push_back({Severity::error, "split " + split, "no trajectory has a sample", needs,
                        "lower unroll.steps or data.history, use longer trajectories, or set task.name = "
                        "\"steady_field\" for data without time"});
  } else if (without > 0) {
    findings.push_back(
        {Severity::warning, fmt::format("{} in split {}", first, split),
         fmt::format("{} too short for a sample", counted(without, "trajectory is", "trajectories are")),
         "they are not used: " + needs, "leave them out, or lower unroll.steps or data.history"});
  }
  return samples.size();
}

/// Types whose targets vary and are given by the data.
void check_given(const Dataset& dataset, const Config& config, std::vector<Finding>& findings) {
  const DataConfig& data = config.data;
  const bool over_time = config.task.name == TaskName::mesh_dynamics;
  const std::vector<int64_t> varying = types_to_predict(dataset, data.inputs, data.targets, over_time);
  const std::vector<std::string> given = held_types({varying.begin(), varying.end()}, data);
  if (given.empty()) return;
  findings.push_back(
      {Severity::note, "data.predicted_types",
       fmt::format("targets {} at nodes of type {}, which are not predicted",
                   over_time ? "change over time" : "vary", listed(given)),
       "there the values of the data are kept, and no error counts them; new data have to have "
       "them, too",
       fmt::format("add {} to data.predicted_types, unless they are prescribed", listed(given))});
}

void check_types(const Dataset& dataset, const DataConfig& data, ConfigSummary& summary) {
  std::vector<Finding>& findings = summary.findings;
  const std::vector<double>& counts = dataset.node_type_counts();
  const auto count = [&](int64_t type) {
    return static_cast<size_t>(type) < counts.size() ? counts[static_cast<size_t>(type)] : 0;
  };
  double predicted = 0;
  std::vector<std::string> absent, present;
  for (const int64_t type : data.predicted_types) {
    predicted += count(type);
    if (count(type) == 0) absent.push_back(fmt::format("{}", type));
  }
  for (size_t type = 0; type < counts.size(); ++type) {
    if (counts[type] > 0) present.push_back(fmt::format("{}", type));
  }
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (all > 0) summary.predicted_share = predicted / all;
  const std::string remedy = fmt::format("set data.predicted_types; the data has {}", listed(present));
  if (predicted == 0) {
    findings.push_back({Severity::error, "data.predicted_types",
                        "no node of the training split has such a type",
                        "the loss has no terms, so that nothing is learned", remedy});
  } else if (!absent.empty()) {
    findings.push_back({Severity::note, "data.predicted_types",
                        fmt::format("the training split has no node of type {}", listed(absent)),
                        "no harm here; in other data such nodes would be predicted untrained", remedy});
  }
}

/// Of data.hops and data.period, which change a mesh's degree.
void describe_edges(const Dataset& data, const Dataset& dataset, const std::string& split,
                    std::vector<Finding>& findings) {
  const int64_t ours = data.largest_mesh(split).edges, made = dataset.largest_mesh(split).edges;
  if (ours == made) return;
  findings.push_back({Severity::note, "data.hops, data.period",
                      fmt::format("the largest mesh has {} in place of {}", counted(made, "edge"), ours),
                      "time and memory of a step grow with the edges", "nothing, if that is what you want"});
}

/// Of data.world_radius: how many edges it makes of frames of the data. Noise moves nodes, so that a batch
/// may have some more.
void describe_world_edges(const MeshTask& task, std::vector<Finding>& findings) {
  const FieldSelection& fields = task.fields;
  const std::vector<double> counts =
      world_edges_per_node(task.dataset, fields.moving(), task.world.options());
  if (counts.empty()) return;
  const double room = fields.config.world_edges_per_node, most = counts.back();
  const std::string problem = fmt::format(
      "world edges a node, in {}: {:.3g} at least, {:.3g} median, {:.3g} at most",
      counted(static_cast<int64_t>(counts.size()), "frame"), counts.front(), counts[counts.size() / 2], most);
  if (most > room) {
    findings.push_back({Severity::error, "data.world_edges_per_node", problem,
                        fmt::format("a batch has room for {}", room),
                        "raise data.world_edges_per_node, or lower data.world_radius"});
  } else if (most == 0.0) {
    findings.push_back({Severity::warning, "data.world_radius", problem, "nothing is learned of contact",
                        "raise data.world_radius; about the length of an edge is usual"});
  } else {
    findings.push_back({Severity::note, "data.world_radius", problem,
                        "memory of a step grows with data.world_edges_per_node, its time with the edges",
                        fmt::format("{:.2g} a node would hold them with some to spare", 1.25 * most)});
  }
}

void check_memory(const Config& config, const Dataset& data, ConfigSummary& summary) {
  try {
    summary.memory = plan_memory(config, {.data = data});
  } catch (const ConfigError& error) {
    summary.findings.push_back({Severity::note, "run.device",
                                "memory was not checked: " + std::string(error.what()), "a step may not fit",
                                "run this check where you train, or see meshgrad plan"});
    return;
  }
  const MemoryPlan& plan = *summary.memory;
  if (plan.fits) return;
  std::string remedy = "a smaller model, or smaller meshes";
  if (!plan.changes.empty()) remedy = plan.changes.front().line();
  if (plan.recommended >= 0) remedy = "set " + plan.choices[static_cast<size_t>(plan.recommended)].settings;
  summary.findings.push_back({Severity::error, "memory",
                              fmt::format("a step of batch {} needs {:.0f} MiB of {:.0f} that it may use",
                                          plan.batch, mebibytes(plan.step.reserved), mebibytes(plan.usable)),
                              "training ends in its first steps", remedy + "; meshgrad plan shows more"});
}

/// With few trajectories it is luck which of a run's models is the best on them.
void check_validation(const Dataset& dataset, const Config& config, std::vector<Finding>& findings) {
  constexpr int64_t kFew = 3, kEnough = 10;
  const int64_t trained = dataset.size(config.data.train_split);
  const int64_t validated = dataset.size(config.data.valid_split);
  if (config.train.validate_every == 0 || trained < kEnough || validated >= kFew) return;
  findings.push_back({Severity::warning, "data.valid_split",
                      fmt::format("{} to validate on, and {} to train on",
                                  counted(validated, "trajectory", "trajectories"), trained),
                      "which model is the best on so few is largely luck",
                      "convert with a larger share for validation, for example --split 0.7,0.15,0.15"});
}

}  // namespace

ConfigSummary check_config(const Config& config, const Dataset& data) {
  ConfigSummary summary;
  const Task task = make_task(config, data);
  const Dataset& dataset = task.dataset();
  summary.columns = task.describe();
  if (const MeshTask* mesh = task.find_mesh()) {
    summary.train_samples = count_samples(*mesh, config.data.train_split, summary.findings);
    if (config.train.validate_every > 0)
      summary.valid_samples =
          count_samples(mesh->for_validation(), config.data.valid_split, summary.findings);
    if (!mesh->fields.targets.empty()) check_types(dataset, config.data, summary);
    check_validation(dataset, config, summary.findings);
    if (summary.predicted_share.value_or(0.0) > 0.0) check_given(dataset, config, summary.findings);
    describe_edges(data, dataset, config.data.train_split, summary.findings);
    if (mesh->world.any()) describe_world_edges(*mesh, summary.findings);
    summary.reach = mesh_reach(config, data);
    const std::optional<Finding> far = summary.reach ? reach_finding(config, *summary.reach) : std::nullopt;
    if (far) summary.findings.push_back(*far);
  } else {
    summary.train_samples = task.samples(config.data.train_split).size();
    if (config.train.validate_every > 0) summary.valid_samples = task.samples(config.data.valid_split).size();
  }
  for (const TaskWarning& warning : task.validate(config)) {
    if (warning.key == "train.noise")
      summary.findings.push_back({Severity::warning, "train.noise", warning.text,
                                  "too little does not stop errors of a rollout from growing, too much hides "
                                  "what is to be learned",
                                  "set train.noise to 0.1 to 0.5 times that deviation"});
    else if (warning.key == "scale")
      summary.findings.push_back({Severity::warning, "scale", warning.text,
                                  "such values reach the model as zeros",
                                  "convert the data in a smaller unit"});
    else if (warning.key == "data.targets")
      summary.findings.push_back({Severity::warning, "data.targets", warning.text,
                                  "as a target it says nothing of the model",
                                  "leave it out of data.targets"});
    else if (warning.key != "data.path")
      summary.findings.push_back({Severity::note, std::string(warning.key), warning.text,
                                  "the run takes longer for it", fmt::format("change {}", warning.key)});
  }
  if (summary.train_samples > 0) check_memory(config, dataset, summary);
  sort_findings(summary.findings);
  return summary;
}

}  // namespace meshgrad
