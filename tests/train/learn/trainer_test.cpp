// SPDX-License-Identifier: Apache-2.0
// The trainer: accumulation equals the large batch, and a run leaves what it promises.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/metrics_log.h>

#include <algorithm>
#include <cmath>

#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

/// Largest deviation of a tensor of two checkpoints, relative to the tensor's largest value.
double deviation(const fs::path& a, const fs::path& b, const std::string& prefix) {
  const SafetensorsFile first(a), second(b);
  double worst = -1.0;
  for (const SafetensorsTensor& tensor : first.view().tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    const std::vector<double> x = to_f64(tensor), y = to_f64(second.at(tensor.name));
    REQUIRE(x.size() == y.size());
    double largest = 0.0, difference = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(x[i]));
      difference = std::max(difference, std::abs(x[i] - y[i]));
    }
    worst = std::max(worst, difference == 0.0 ? 0.0 : difference / largest);
  }
  return worst;
}

/// Trains with so large a batch, accumulated so often, in a folder of that name.
fs::path checkpoint_of(Config config, const fs::path& folder, int64_t batch, int64_t accumulate) {
  config.run.dir = (folder / ("batch-" + std::to_string(batch))).string();
  config.train.batch = batch;
  config.train.accumulate = accumulate;
  return test::train_here(config).checkpoint;
}

/// The lines of a run's metrics that have a loss.
std::vector<std::map<std::string, double>> losses_of(const fs::path& checkpoint) {
  std::vector<std::map<std::string, double>> rows;
  for (const auto& row : read_metrics(checkpoint.parent_path().parent_path() / "metrics.jsonl"))
    if (row.count("loss") > 0) rows.push_back(row);
  return rows;
}

Config double_config(const fs::path& folder) {
  Config config = test::small_config(folder, test::pack_waves(folder));
  config.precision = DType::f64;
  config.train.steps = 3;
  config.train.validate_every = 0;
  config.train.log_every = 1;
  return config;
}

TEST_CASE("a configuration made in C++ is checked like a file's") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.optimizer.momentum = 0.5;
  const std::string error = test::message_of([&] { test::train_here(config); });
  const char* const text = "[optimizer.momentum] needed 0 unless optimizer.name is \"sgd\", got 0.5";
  CHECK(test::contains(error, text));
  config.data.path = "/nowhere.mgd";  // found before any member is made
  CHECK(test::contains(test::message_of([&] { test::train_here(config); }), text));
}

TEST_CASE("accumulation equals the large batch") {
  const ScratchDirectory scratch;
  const Config config = double_config(scratch.path);
  const fs::path whole = checkpoint_of(config, scratch.path, 6, 1);
  for (const auto& [batch, accumulate] : {std::pair{2, 3}, std::pair{1, 6}}) {
    CAPTURE(batch);
    const fs::path parts = checkpoint_of(config, scratch.path, batch, accumulate);
    CHECK(deviation(whole, parts, "model.") >= 0.0);
    CHECK(deviation(whole, parts, "model.") < 1e-12);
    CHECK(deviation(whole, parts, "optimizer.first_moment.") < 1e-11);
    const auto a = losses_of(whole), b = losses_of(parts);
    REQUIRE(a.size() == 3);
    REQUIRE(b.size() == 3);
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"loss", "gradient_norm", "samples", "learning_rate"})
        CHECK(a[i].at(key) == doctest::Approx(b[i].at(key)).epsilon(1e-12));
    }
  }
  CHECK(deviation(whole, checkpoint_of(config, scratch.path, 5, 1), "model.") > 1e-6);
}

TEST_CASE("a pass over the data ends with a smaller window") {
  const ScratchDirectory scratch;
  Config config = double_config(scratch.path);
  config.train.epochs = 1;  // 26 samples: 4 windows of 6 and one of 2
  const fs::path whole = checkpoint_of(config, scratch.path, 6, 1);
  const fs::path parts = checkpoint_of(config, scratch.path, 2, 3);
  CHECK(deviation(whole, parts, "model.") < 1e-11);
  const auto metrics = losses_of(parts);
  CHECK(metrics.back().at("step") == 5.0);
  CHECK(metrics.back().at("samples") == 26.0);
}

TEST_CASE("a run learns, and leaves its folder in order") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 40;
  config.train.checkpoint_every = 10;
  config.train.keep_checkpoints = 2;
  config.train.log_every = 10;
  std::vector<int64_t> progress;
  Runtime runtime({.device = {}, .threads = 2});
  TrainOptions options;
  options.observer.progress = [&](const TrainObserver::Progress& p) { progress.push_back(p.step); };
  const TrainResult result = train(runtime, config, options);
  CHECK(progress.size() == 40);
  CHECK_FALSE(result.stopped);
  const fs::path run = config.run.dir;
  for (const char* file :
       {"config.resolved.toml", "environment.json", "metrics.jsonl", "checkpoints/last.safetensors",
        "checkpoints/best.safetensors", "checkpoints/step-000000040.safetensors",
        "checkpoints/step-000000030.safetensors"}) {
    CAPTURE(file);
    CHECK(fs::exists(run / file));
  }
  CHECK_FALSE(fs::exists(run / "checkpoints/step-000000020.safetensors"));
  CHECK(to_toml(load_config((run / "config.resolved.toml").string())) == to_toml(config));
  std::map<double, double> valid, loss;
  for (const auto& row : read_metrics(run / "metrics.jsonl")) {
    if (row.contains("valid_loss")) valid[row.at("step")] = row.at("valid_loss");
    if (row.contains("loss")) loss[row.at("step")] = row.at("loss");
  }
  CHECK(valid.size() == 5);  // before the first step, and every tenth
  CHECK(loss.size() == 5);   // the first, and every tenth
  CHECK(loss.at(40) < 0.7 * loss.at(1));
  const double best = std::min_element(valid.begin(), valid.end(), [](auto a, auto b) {
                        return a.second < b.second;
                      })->second;
  CHECK(result.state.best_valid_loss == best);
}

TEST_CASE("while online normalisers warm up the model waits") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 4;
  config.train.steps = 5;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 1;
  config.train.keep_checkpoints = 5;
  const fs::path folder = test::train_here(config).checkpoint.parent_path();
  const auto at = [&](int64_t step) {
    return folder / ("step-00000000" + std::to_string(step) + ".safetensors");
  };
  CHECK(deviation(at(1), at(4), "model.") == 0.0);
  CHECK(deviation(at(4), at(5), "model.") > 1e-4);
  CHECK(deviation(at(1), at(2), "normalizer.targets.") > 0.0);
}

}  // namespace
}  // namespace meshgrad
