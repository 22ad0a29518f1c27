// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/task/mesh_task.h>
#include <meshgrad/train/learn/task/world_edge_search.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace meshgrad {
namespace {

void need_defaults(const Config& config, std::initializer_list<const char*> keys, const char* fix) {
  for (const char* name : keys) {
    const ConfigKey& key = *find_key(name);
    const std::string needed = toml_literal(key, Config{}), got = toml_literal(key, config);
    if (got != needed) throw config_error(name, needed + " with OnlineTrainer", got, fix);
  }
}

}  // namespace

Config checked_for_given_meshes(Config config) {
  if (!config.data.edge_inputs.empty()) {
    throw config_error("data.edge_inputs", "[] for meshes that a program gives",
                       listed(config.data.edge_inputs),
                       "pack the meshes with these fields, and use the commands of meshgrad");
  }
  if (config.data.world_radius > 0.0 && config.data.world_position.empty()) {
    throw config_error("data.world_radius", "0 for meshes that a program gives and that do not move",
                       fmt::format("{}", config.data.world_radius),
                       "pack the meshes, and use the commands of meshgrad");
  }
  return config;
}

Config online_config(Config config) {
  if (!find_key("data.hops")->applies_to(config.task.name))
    throw config_error("task.name", "a task on meshes with OnlineTrainer",
                       toml_quoted(name_of(config.task.name)), "pack the data, and use meshgrad train");
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 0;
  config.train.validate_samples = 0;
  if (config.train.batch == kAutoBatch)
    throw config_error("train.batch", "a number of samples", "\"auto\"", "set it, for example to 2");
  need_defaults(config, {"train.batch_nodes"}, "set train.batch");
  if (config.train.accumulate != 1)
    throw config_error("train.accumulate", "1 with OnlineTrainer", fmt::format("{}", config.train.accumulate),
                       "raise train.batch instead");
  need_defaults(config,
                {"recompute.mode", "train.init", "train.freeze", "train.ema", "ranks.reduction", "graphs",
                 "distill.teacher", "curriculum.score"},
                "leave it out");
  config = checked_for_given_meshes(std::move(config));
  if (edge_options(config.data) != MeshEdgeOptions{})
    need_defaults(config, {"data.hops", "data.period"}, "leave it out, or train on a packed file");
  need_defaults(config, {"train.epochs", "train.patience"},
                "leave it out; when to stop is the solver's choice, by held_out_loss");
  if (config.ranks.partition != MeshPartition::none || config.ranks.parts_in_turn != 1)
    throw config_error("ranks.partition, ranks.parts_in_turn", "whole meshes with OnlineTrainer",
                       "meshes that meshgrad cuts", "leave them out, or give the solver's parts by set_mesh");
  return config;
}

Dataset empty_dataset(const OnlineOptions& options, const Config& config) {
  auto data = std::make_shared<MemoryData>();
  data->dim = options.dim;
  data->dt = options.dt;
  data->node_types = config.data.node_types;
  data->fields = options.fields;
  data->splits = {{.name = config.data.train_split}};
  return Dataset::over(std::move(data));
}

OnlineOptions with_used_fields(OnlineOptions options, const Config& config) {
  if (!std::isfinite(options.dt) || options.dt < 0) {
    throw invalid_argument("OnlineOptions: dt", "seconds between frames, or 0", fmt::format("{}", options.dt),
                           "0 where they are unknown");
  }
  for (FieldInfo& field : options.fields) {
    field.dynamic = true;
    field.dtype = DType::f32;
    field.offset.clear();
    if (field.components < 1) {
      throw invalid_argument(fmt::format("OnlineOptions: field {}", field.name), "1 component or more",
                             fmt::format("{}", field.components));
    }
  }
  options.fields = training_data(empty_dataset(options, config), config.data).fields;
  return options;
}

std::vector<std::string> learned_scale_warnings(const FieldSelection& fields, const Normalizers& learned) {
  std::vector<std::string> warnings;
  const auto check = [&](const Normalizer& columns, size_t first, const FieldInfo& field, const char* what) {
    const std::vector<double> squares = columns.squared_deviations();
    const auto own = std::span(squares).subspan(first, static_cast<size_t>(field.components));
    const double largest = *std::max_element(own.begin(), own.end());
    if (largest <= 0 || std::sqrt(largest / columns.count()) > Normalizer::kSmallestDeviation) return;
    warnings.push_back(fmt::format(
        "{} less than {:g} so far; such values count as constant and are not normalised: append the "
        "field in a smaller unit",
        field.name + what, Normalizer::kSmallestDeviation));
  };
  size_t column = 0;
  for (const FieldSelection::Input& input : fields.inputs) {
    check(learned.nodes, column, input.field, " has varied by");
    column += static_cast<size_t>(input.field.components);
  }
  column = 0;
  for (const FieldInfo& target : fields.targets) {
    check(learned.targets, column, target, ": what is predicted of it has varied by");
    column += static_cast<size_t>(target.components);
  }
  return warnings;
}

std::vector<std::string> learned_noise_warnings(const FieldSelection& fields, const Normalizers& learned,
                                                const NoiseOptions& noise) {
  std::vector<std::string> warnings;
  const double kept = noise_in_targets(fields, noise.gamma);
  const std::vector<double> squares = learned.targets.squared_deviations();
  size_t column = 0;
  for (const FieldInfo& target : fields.targets) {
    double variance = 0;
    for (int64_t c = 0; c < target.components; ++c, ++column)
      variance += squares[column] / (learned.targets.count() * static_cast<double>(target.components));
    const double added = noise.of(target.name);
    const Quantity quantity = fields.predicted_quantity(target.name);
    if (added <= 0 || learned.targets.count() == 0 || quantity == Quantity::value ||
        !fields.reads(target.name))
      continue;
    // The deviation of the change alone, but for what rounding leaves where the noise is much larger.
    const double change = std::sqrt(std::max(variance - std::pow(kept * added, 2), 0.0));
    if (added >= 0.01 * change && added <= change) continue;
    warnings.push_back(
        fmt::format("train.noise is {:.3g}{}, {} the standard deviation of {}'s {} over a frame so far; 0.01 "
                    "to 1 times is "
                    "usual",
                    added, target.unit.empty() ? "" : " " + target.unit,
                    added > change ? "more than" : "less than a hundredth of", target.name,
                    fields.second_change() ? "second change" : "change"));
  }
  return warnings;
}

}  // namespace meshgrad
