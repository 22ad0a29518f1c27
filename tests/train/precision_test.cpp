// SPDX-License-Identifier: Apache-2.0
// Training on the CPU with storage in 16 bits.
#include <doctest/doctest.h>
#include <meshgrad/train/report/metrics_log.h>

#include <algorithm>
#include <cmath>

#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

std::vector<double> losses_of(const fs::path& run) {
  std::vector<double> losses;
  for (const auto& row : read_metrics(run / "metrics.jsonl"))
    if (row.count("loss") > 0) losses.push_back(row.at("loss"));
  return losses;
}

Config config_of(const fs::path& folder, const fs::path& data, DType precision) {
  Config config = test::small_config(folder, data);
  config.precision = precision;
  config.run.dir = (folder / std::string(name_of(precision))).string();
  config.train.log_every = 1;
  return config;
}

// 30 steps of Adam move the weights by 30 learning rates at most, whatever the precision; what differs is the
// rounding of each loss and the side of relu on which a few pre-activations fall.
TEST_CASE("in 16 bits the CPU learns what it learns in f32, skips nothing and keeps f32 masters") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  const Config single = config_of(scratch.path, data, DType::f32);
  const TrainResult reference = test::train_here(single);
  const std::vector<double> expected = losses_of(single.run.dir);
  REQUIRE(expected.size() == 30);
  CHECK(expected.back() < 0.7 * expected.front());
  for (const DType precision : {DType::f16, DType::bf16}) {
    CAPTURE(name_of(precision));
    const Config config = config_of(scratch.path, data, precision);
    const TrainResult result = test::train_here(config);
    CHECK(result.state.optimizer.skipped == 0);
    const std::vector<double> losses = losses_of(config.run.dir);
    REQUIRE(losses.size() == expected.size());
    double largest = 0.0;
    for (size_t i = 0; i < losses.size(); ++i)
      largest = std::max(largest, std::abs(losses[i] / expected[i] - 1.0));
    CHECK(largest < (precision == DType::f16 ? 0.02 : 0.1));
    CHECK(largest > 0.0);
    CHECK(result.state.last_valid_loss == doctest::Approx(reference.state.last_valid_loss).epsilon(0.1));
    const SafetensorsFile checkpoint(fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
    CHECK(checkpoint.view().at("model.processor.0.edge_mlp.linear_0.weight").dtype == SafetensorsDtype::f32);
  }
}

TEST_CASE("a run in 16 bits does not depend on threads, nor on being stopped and resumed") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  for (const DType precision : {DType::f16, DType::bf16}) {
    CAPTURE(name_of(precision));
    Config config = config_of(scratch.path, data, precision);
    const std::string dir = config.run.dir;
    config.run.dir = dir + "-straight";
    test::train_here(config);
    const std::string straight = test::checkpoint_bytes(config.run.dir, "last");
    CHECK(!straight.empty());
    config.run.dir = dir + "-threads";
    test::train_here(config, false, nullptr, 3);
    CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(dir + "-straight"));
    config.run.dir = dir + "-stopped";
    int64_t batches = 0;
    CHECK(test::train_here(config, false, [&] { return ++batches == 40; }).stopped);
    CHECK_FALSE(test::train_here(config, true).stopped);
    CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(dir + "-straight"));
  }
}

TEST_CASE("what f16 cannot hold skips steps and lowers the loss scale; parameters stay") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch.path, test::pack_waves(scratch.path), DType::f16);
  config.train.noise = 1e6;
  config.train.steps = 3;
  config.train.validate_every = 0;
  const RunState state = test::train_here(config).state;
  CHECK(state.optimizer.skipped == 3);
  CHECK(state.optimizer.steps == 0);
}

}  // namespace
}  // namespace meshgrad
