// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/run/checkpoint.h>
#include <meshgrad/train/run/resume_check.h>

namespace meshgrad {

void check_same_run(const std::filesystem::path& checkpoint, const Config& config) {
  const Config saved = checkpoint_config(checkpoint);
  const ModelConfig& was = saved.model;
  const ModelConfig& now = config.model;
  const auto check = [&](std::string_view key, bool same) {
    if (same) return;
    throw config_error(key, "the value that " + checkpoint.string() + " was trained with", "another",
                       "use the run's config.resolved.toml, or start a new run with another run.dir");
  };
  check("precision", saved.precision == config.precision);
  check("model.width", was.width == now.width);
  check("model.blocks", was.blocks == now.blocks);
  check("model.hidden_layers", was.hidden_layers == now.hidden_layers);
  check("model.activation", was.activation == now.activation);
  check("model.norm", was.norm == now.norm);
  check("model.concat_order", was.concat_order == now.concat_order);
  check("model.aggregate", was.aggregate == now.aggregate);
  check("optimizer.name", saved.optimizer.name == config.optimizer.name);
  check("run.seed", saved.run.seed == config.run.seed);
  check("train.batch", saved.train.batch == config.train.batch);
  check("train.accumulate", saved.train.accumulate == config.train.accumulate);
  check("task.name", saved.task.name == config.task.name);
  check("train.noise", saved.train.noise == config.train.noise);
  check("train.gamma", saved.train.gamma == config.train.gamma);
  check("unroll.steps", saved.unroll.steps == config.unroll.steps);
  check("normalize.mode", saved.normalize.mode == config.normalize.mode);
  check("data.train_split", saved.data.train_split == config.data.train_split);
  check("data.inputs", saved.data.inputs == config.data.inputs);
  check("data.targets", saved.data.targets == config.data.targets);
  check("data.predict", saved.data.predict == config.data.predict);
  check("data.node_types", saved.data.node_types == config.data.node_types);
  check("data.predicted_types", saved.data.predicted_types == config.data.predicted_types);
  check("data.noise_types", saved.data.noise_types == config.data.noise_types);
}

}  // namespace meshgrad
