// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/progress.h>
#include <meshgrad/train/tools/program/seen_ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace meshgrad::cli {
namespace {

std::string losses_text(const RunState& state, const Config& config) {
  std::string text;
  const auto add = [&](std::string_view name, double value, const std::string& more = "") {
    if (std::isfinite(value))
      text += fmt::format("{}{} {:.4g}{}", text.empty() ? "" : ", ", name, value, more);
  };
  add("training", state.optimizer.last_loss);
  add("validation", state.last_valid_loss);
  add("best validation", state.best_valid_loss, fmt::format(" (step {})", state.best_step));
  add("validation error", state.last_valid_error);
  const std::string metric = best_metric(config);
  if (!metric.empty()) add("validation " + metric, state.last_valid_metric);
  add("best", state.best_valid_error, fmt::format(" (step {})", state.best_step));
  add("rollouts", state.last_valid_rollout);
  if (text.empty()) text = "none yet";
  if (state.step > 0 && !std::isfinite(state.optimizer.last_loss)) text += ", the last one is not finite";
  return text;
}

/// "0 to 3.2", of each component.
std::string ranges_text(const FieldInfo& field, const TrainingRanges& ranges) {
  const auto found = ranges.fields.find(field.name);
  if (found == ranges.fields.end()) return "";
  std::string text;
  for (const SeenRange& range : found->second) text += (text.empty() ? "" : "; ") + range_text(range);
  return ": " + text + (field.unit.empty() ? "" : " " + field.unit);
}

std::string data_text(const TrainingData& data, const Config& config) {
  std::string text = fmt::format("data      {}, {}{}\n", config.data.path, dimensions_text(data.dim),
                                 data.dt > 0 ? fmt::format(", dt {} s", data.dt) : std::string());
  for (const FieldInfo& field : data.fields) {
    const bool target = std::ranges::find(config.data.targets, field.name) != config.data.targets.end();
    const bool input = std::ranges::find(config.data.inputs, field.name) != config.data.inputs.end();
    text += fmt::format("{:10}{}{}\n", target ? input ? "both" : "target" : "input", fields_text({field}),
                        data.ranges ? ranges_text(field, *data.ranges) : "");
  }
  if (!data.ranges) return text;
  return text + fmt::format("meshes    {} to {} nodes, edges {:.3g} long on average\n",
                            data.ranges->nodes.least, data.ranges->nodes.most, data.ranges->edge_length);
}

/// "30 steps of 40, epoch 3 of 4"; the epoch where the checkpoint says how many samples one has.
std::string trained_text(const SafetensorsView& view, const RunState& state, const TrainConfig& train) {
  const auto stored = [&](const char* name) {
    const auto at = view.metadata.find(name);
    return at == view.metadata.end() ? 0 : std::max(parse_number(at->second).value_or(0), 0.0);
  };
  const double samples = stored("samples_per_epoch"), steps = stored("steps");
  const auto epochs = static_cast<double>(train.epochs);
  std::string text = counted(state.step, "step");
  if (epochs == 0) text += fmt::format(" of {}", train.steps);
  if (epochs > 0 && steps > 0) text += fmt::format(" of {:.0f}", steps);
  // Checkpoints of earlier versions are of runs whose batches all had as many samples.
  const double drawn = view.metadata.contains("samples_drawn")
                           ? stored("samples_drawn")
                           : static_cast<double>(state.step * train.batch * train.accumulate);
  const double epoch = samples > 0 ? std::ceil(drawn / samples) : stored("epoch");  // of a curriculum
  const bool known = samples > 0 || view.metadata.contains("epoch");
  if (known) text += fmt::format(", epoch {:.0f}", epoch);
  if (epochs > 0) text += fmt::format("{} of {}", known ? "" : ", epochs:", train.epochs);
  return text;
}

}  // namespace

bool is_checkpoint(const SafetensorsView& view) {
  const auto format = view.metadata.find("format");
  return format != view.metadata.end() && format->second.starts_with("meshgrad checkpoint");
}

std::string describe_checkpoint(const std::string& path) {
  const SafetensorsFile file = open_checkpoint(path);
  const SafetensorsView& view = file.view();
  const Config config = checkpoint_config(path);
  const RunState state = read_run_state(view, config);
  uint64_t bytes = 0;
  int64_t weights = 0;
  for (const SafetensorsTensor& tensor : view.tensors) {
    bytes += tensor.bytes.size();
    if (!tensor.name.starts_with("model.")) continue;
    weights += std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  }
  std::string text = fmt::format("checkpoint  {} ({})\n", path, bytes_text(bytes));
  text += "trained   " + trained_text(view, state, config.train);
  if (state.optimizer.skipped > 0) text += fmt::format(", {} skipped", state.optimizer.skipped);
  if (state.micro > 0) text += fmt::format(", and {} of the next", counted(state.micro, "batch", "batches"));
  text += "\nlosses    " + losses_text(state, config) + "\n";
  text += fmt::format("task      {}\n", name_of(config.task.name));
  text += fmt::format("model     {}, width {}, {}, {} weights, {}\n", name_of(config.model.name),
                      config.model.width, counted(config.model.blocks, "block"), weights,
                      name_of(config.precision));
  if (const auto data = checkpoint_training_data(path)) text += data_text(*data, config);
  return text + "more      meshgrad info --all lists counters and tensors\n";
}

}  // namespace meshgrad::cli
