// SPDX-License-Identifier: Apache-2.0
// Runs that start from the weights of another, train only some of them, average them, or end early.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::ScratchDirectory;

/// 5 windows of 1 batch without validations.
Config short_config(const fs::path& folder, const fs::path& data) {
  Config config = test::small_config(folder, data);
  config.train.steps = 5;
  config.train.accumulate = 1;
  config.train.validate_every = 0;
  return config;
}

/// A second run, which starts from the first.
Config continued(const Config& first) {
  Config config = first;
  config.run.dir += "_2";
  config.run.seed = 8;
  config.train.init = first.run.dir + "/checkpoints/last.safetensors";
  return config;
}

std::string train_error(const Config& config) {
  try {
    test::train_here(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Names of the checkpoint's tensors with this prefix whose bytes differ.
std::vector<std::string> changed_tensors(const std::map<std::string, std::string>& before,
                                         const std::map<std::string, std::string>& after,
                                         const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : before)
    if (name.starts_with(prefix) && bytes != after.at(name)) names.push_back(name);
  return names;
}

TEST_CASE("a run starts from weights trained on other data") {
  const ScratchDirectory scratch;
  const Config first = short_config(scratch.path, test::pack_waves(scratch.path));
  test::train_here(first);
  const auto trained = test::tensors_of(first);
  fs::create_directory(scratch.path / "other");
  Config config = continued(first);
  config.data.path = test::pack_waves(scratch.path / "other", 5, 9).string();
  config.optimizer.lr = 0.0;
  config.schedule.name = RateCurve::constant;

  test::train_here(config);
  CHECK(changed_tensors(trained, test::tensors_of(config), "model.").empty());
  CHECK(changed_tensors(trained, test::tensors_of(config), "normalizer.").empty());
  config.run.dir += "_refit";
  config.train.init = first.run.dir;  // a run: its best checkpoint, or the last
  config.train.init_normalizers = InitNormalizers::refit;
  test::train_here(config);
  CHECK(changed_tensors(trained, test::tensors_of(config), "model.").empty());
  CHECK(changed_tensors(trained, test::tensors_of(config), "normalizer.").size() > 3);

  // Kept normalisers do not learn, and need no warm-up.
  config.run.dir += "_online";
  config.train.init_normalizers = InitNormalizers::keep;
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 4;
  const TrainResult result = test::train_here(config);
  CHECK(changed_tensors(trained, test::tensors_of(config), "normalizer.").empty());
  CHECK(result.state.optimizer.steps == 5);
  CHECK(result.state.learned == 0);
}

TEST_CASE("a run that started from weights resumes without them") {
  const ScratchDirectory scratch;
  const Config first = short_config(scratch.path, test::pack_waves(scratch.path));
  test::train_here(first);
  const Config config = continued(first);
  test::train_here(config);
  const auto straight = test::tensors_of(config);
  fs::rename(config.run.dir, scratch.path / "straight");
  int calls = 0;
  CHECK(test::train_here(config, false, [&] { return ++calls == 3; }).stopped);
  fs::remove_all(first.run.dir);
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == straight);
}

TEST_CASE("weights of another model or dt are refused") {
  const ScratchDirectory scratch;
  const Config first = short_config(scratch.path, test::pack_waves(scratch.path));
  test::train_here(first);
  Config config = continued(first);
  config.model.width = 12;
  const std::string width = train_error(config);
  CHECK(contains(width, config.train.init));
  CHECK(contains(width, "node_encoder.linear_0.weight"));
  CHECK(contains(width, "[12, 11]"));
  CHECK(contains(width, "[16, 11]"));
  config = continued(first);
  config.run.dir += "_blocks";
  config.model.blocks = 3;
  CHECK(contains(train_error(config), "processor.2."));
  config = continued(first);
  config.run.dir += "_order";
  config.model.concat_order = ConcatOrder::edge_sender_receiver;
  CHECK(contains(train_error(config), "edge_sender_receiver"));
  config = continued(first);
  config.run.dir += "_none";
  config.train.init = "nowhere.safetensors";
  CHECK(contains(train_error(config),
                 "[train.init] needed a checkpoint, or the folder of a run, got "
                 "\"nowhere.safetensors\", which does not exist"));
}

TEST_CASE("frozen parameters keep their bits") {
  const ScratchDirectory scratch;
  Config first = short_config(scratch.path, test::pack_waves(scratch.path));
  first.train.ema = 0.5;
  test::train_here(first);
  const auto trained = test::tensors_of(first);
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::sgd}) {
    Config config = continued(first);
    config.run.dir += std::to_string(static_cast<int>(kind));
    config.optimizer.name = kind;
    config.optimizer.weight_decay = 0.1;
    config.train.freeze = {"node_encoder", "processor.*.norm.*"};
    test::train_here(config);
    const auto now = test::tensors_of(config);
    for (const auto& [name, bytes] : now) {
      if (!name.starts_with("model.")) continue;
      CAPTURE(name);
      const std::string parameter = name.substr(6);
      const bool frozen = parameter.starts_with("node_encoder.") ||
                          (parameter.starts_with("processor.") && contains(parameter, ".norm."));
      // The new run starts from the average.
      CHECK((bytes == trained.at("ema." + parameter)) == frozen);
      CHECK((now.at("ema." + parameter) == trained.at("ema." + parameter)) == frozen);
    }
  }
  Config config = continued(first);
  config.train.freeze = {"node_encoder", "nothing.*"};
  CHECK(contains(train_error(config), "[train.freeze] needed names of parameters, got \"nothing.*\""));
  config.run.dir += "_all";
  config.train.freeze = {"*"};
  CHECK(contains(train_error(config), "[train.freeze] needed patterns that leave something to train"));
}

TEST_CASE("a run says how much of its model is frozen") {
  ParameterSet parameters;
  parameters.add("encoder.weight", {4, 3}, Initial::zero, 3);
  parameters.add("decoder.weight", {2, 4}, Initial::zero, 4);
  parameters.add("decoder.bias", {2}, Initial::zero, 4);
  CHECK(describe_frozen(parameters, {"decoder", "*.bias"}) ==
        "train.freeze: 2 of 3 parameters, 10 of 22 values, are not trained");
}

TEST_CASE("frozen parameters take no part in the gradient norm") {
  const ScratchDirectory scratch;
  Config config = short_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  const double all = test::train_here(config).state.optimizer.gradient_norm;
  config.run.dir += "_2";
  config.train.freeze = {"*encoder", "processor"};
  const double decoder = test::train_here(config).state.optimizer.gradient_norm;
  config.run.dir += "_3";
  config.train.freeze = {"node_decoder"};
  const double rest = test::train_here(config).state.optimizer.gradient_norm;
  CHECK(decoder > 0.0);
  CHECK(decoder * decoder + rest * rest == doctest::Approx(all * all).epsilon(1e-6));
}

TEST_CASE("the average of the weights is saved and predicts") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.ema = 0.9;
  for (const DType precision : {DType::f32, DType::bf16}) {
    config.precision = precision;
    config.run.dir += "_run";
    const TrainResult result = test::train_here(config);
    const auto straight = test::tensors_of(config);
    const std::string bytes = test::checkpoint_bytes(config.run.dir, "last");
    CHECK(straight.at("ema.node_decoder.linear_0.weight") !=
          straight.at("model.node_decoder.linear_0.weight"));

    fs::rename(config.run.dir, config.run.dir + "_straight");
    int calls = 0;
    CHECK(test::train_here(config, false, [&] { return ++calls == 40; }).stopped);
    test::train_here(config, true);
    CHECK(test::checkpoint_bytes(config.run.dir, "last") == bytes);

    // Without the average, the same run has the same weights and another validation loss.
    Config plain = config;
    plain.run.dir += "_plain";
    plain.train.ema = 0;
    const TrainResult without = test::train_here(plain);
    CHECK(changed_tensors(test::tensors_of(plain), straight, "model.").empty());
    CHECK(without.state.last_valid_loss != result.state.last_valid_loss);

    // A predictor has the average.
    const fs::path last = fs::path(config.run.dir) / "checkpoints/last.safetensors";
    Runtime runtime({.device = {}, .threads = 1, .allocator = {}, .log = {}, .memory = {}});
    const Predictor predictor(runtime, last);
    const ParameterSet& parameters = predictor.trained().model.parameters;
    const auto index = static_cast<size_t>(parameters.find("node_decoder.linear_0.bias"));
    CHECK(std::string(static_cast<const char*>(parameters.value(index).raw()),
                      straight.at("ema.node_decoder.linear_0.bias").size()) ==
          straight.at("ema.node_decoder.linear_0.bias"));
  }
}

TEST_CASE("a run without a new best ends early, and stays ended") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.validate_every = 2;
  config.train.patience = 3;
  config.optimizer.lr = 0.0;  // nothing improves after the first validation
  config.schedule.name = RateCurve::constant;
  const TrainResult result = test::train_here(config);
  CHECK_FALSE(result.stopped);
  CHECK(result.state.best_step == 2);
  CHECK(result.state.step == 8);
  const std::string bytes = test::checkpoint_bytes(config.run.dir, "last");
  CHECK(test::train_here(config, true).state.step == 8);
  CHECK(test::checkpoint_bytes(config.run.dir, "last") == bytes);
  config.train.patience = 5;
  CHECK(test::train_here(config, true).state.step == 12);
}

}  // namespace
}  // namespace meshgrad
