// SPDX-License-Identifier: Apache-2.0
// Training with each mesh cut into parts, on several ranks (threads here) or in turn: the run of the whole
// mesh.
#include <doctest/doctest.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/nn/partition/owners.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "simulated_ranks.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

Config parts_config(const ScratchDirectory& scratch, const std::string& name) {
  const fs::path data = scratch.path / "waves.mgd";
  Config config = test::small_config(scratch.path, fs::exists(data) ? data : test::pack_waves(scratch.path));
  config.run.dir = (scratch.path / name).string();
  config.train.steps = 12;
  config.train.accumulate = 2;
  config.train.log_every = 1;
  config.train.validate_every = 6;
  config.train.checkpoint_every = 0;
  return config;
}

/// Largest difference of two runs' losses, in shares of the loss.
double difference_of_losses(const Config& a, const Config& b) {
  const std::vector<double> first = test::losses_of(a.run.dir), second = test::losses_of(b.run.dir);
  REQUIRE(first.size() == second.size());
  REQUIRE(first.size() >= 12);
  double largest = 0.0;
  for (size_t i = 0; i < first.size(); ++i)
    largest = std::max(largest, std::abs(first[i] - second[i]) / std::abs(second[i]));
  return largest;
}

}  // namespace

TEST_CASE("2 and 3 ranks train each mesh as one does") {
  const ScratchDirectory scratch;
  for (const bool deep : {false, true}) {
    const auto with = [&](const std::string& name) {
      Config config = parts_config(scratch, name + (deep ? "_deep" : ""));
      if (!deep) return config;
      config.unroll.steps = 2;
      config.recompute.mode = RecomputeMode::block;
      config.normalize.mode = NormalizeMode::online;
      config.normalize.warmup_steps = 2;
      config.loss.name = LossName::huber;
      config.loss.delta = 0.5;
      config.loss.type_weights = {{"5", 3.0}};
      config.loss.field_weights = {{"velocity", 0.7}};
      config.loss.sample = 0.5;
      config.loss.change_penalty = 0.2;
      return config;
    };
    const Config whole = with("whole");
    const TrainResult expected = test::train_here(whole);
    for (const MeshPartition method : {MeshPartition::rcb, MeshPartition::metis}) {
      if (method == MeshPartition::metis && !metis_available()) continue;
      for (const int ranks : {2, 3}) {
        Config config =
            with(std::string(method == MeshPartition::rcb ? "rcb" : "metis") + std::to_string(ranks));
        config.ranks.partition = method;
        const TrainResult result = test::train_on_ranks(ranks, config);
        CAPTURE(ranks);
        CAPTURE(deep);
        // 12 steps of Adam amplify the roundings of f32.
        CHECK(difference_of_losses(config, whole) < 2e-4);
        CHECK(result.state.best_valid_loss == doctest::Approx(expected.state.best_valid_loss).epsilon(2e-4));
      }
    }
  }
}

TEST_CASE("recomputed frames on parts exchange again") {
  const ScratchDirectory scratch;
  const auto tensors_with = [&](const std::string& name, const RecomputeConfig& recompute, int ranks) {
    Config config = parts_config(scratch, name);
    config.ranks.partition = ranks == 1 ? MeshPartition::none : MeshPartition::rcb;
    config.model.width = 64;  // several buckets
    config.train.steps = 2;
    config.train.accumulate = 1;
    config.train.validate_every = 0;
    config.unroll.steps = 3;
    config.recompute = recompute;
    const TrainResult result = test::train_on_ranks(ranks, config);
    CHECK(result.state.step == 2);
    return std::pair(test::tensors_of(config), test::losses_of(config.run.dir));
  };
  const auto whole = tensors_with("whole", {}, 1), plain = tensors_with("plain", {}, 2);
  REQUIRE(whole.second.size() == 2);
  for (size_t i = 0; i < whole.second.size(); ++i)
    CHECK(plain.second.at(i) == doctest::Approx(whole.second[i]).epsilon(1e-5));
  for (const SegmentUnit unit : {SegmentUnit::frame, SegmentUnit::sequence}) {
    RecomputeConfig recompute;
    recompute.mode = RecomputeMode::block;
    recompute.segments = unit;
    CHECK(tensors_with(unit == SegmentUnit::frame ? "frame" : "sequence", recompute, 2) == plain);
  }
}

TEST_CASE("rank 0 says what it sent in a step") {
  const ScratchDirectory scratch;
  Config config = parts_config(scratch, "sent");
  config.ranks.partition = MeshPartition::rcb;
  config.model.width = 16;
  config.train.validate_every = 0;
  std::atomic<int64_t> sent = 0;
  double said = 0.0;  // bytes a step
  const test::SimulatedNetwork network{
      .ranks = 2, .loss = {}, .observer = [&](int rank, int64_t bytes) { sent += rank == 0 ? bytes : 0; }};
  test::on_ranks(network, [&](Ranks& own) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    TrainOptions options;
    options.ranks = &own;
    options.observer.event = [&](const RunEvent& event) {
      if (event.kind == RunEventKind::bytes_sent) said = std::get<double>(event.fields.front().second);
    };
    train(runtime, config, options);
  });
  const double expected = static_cast<double>(sent) / static_cast<double>(config.train.steps);
  // What is sent before the first step is not counted.
  CHECK(std::abs(said - expected) <= 2000.0 / static_cast<double>(config.train.steps));
  CHECK(expected > 10'000.0);
}

TEST_CASE("a run in parts repeats, and resumes on other ranks") {
  const ScratchDirectory scratch;
  const auto of = [&](const std::string& name, int64_t steps) {
    Config config = parts_config(scratch, name);
    config.ranks.partition = MeshPartition::rcb;
    config.train.steps = steps;
    config.train.validate_every = 0;
    config.schedule.name = RateCurve::constant;
    return config;
  };
  const Config first = of("first", 12), second = of("second", 12);
  test::train_on_ranks(3, first);
  test::train_on_ranks(3, second);
  CHECK(test::tensors_of(first) == test::tensors_of(second));
  Config resumed = of("resumed", 6);
  test::train_on_ranks(2, resumed);
  resumed.train.steps = 12;
  test::train_on_ranks(3, resumed, true);
  CHECK(difference_of_losses(resumed, first) < 2e-4);
}

TEST_CASE("parts in turn train and predict as the whole mesh") {
  const ScratchDirectory scratch;
  const Config whole = parts_config(scratch, "whole");
  Config turns = parts_config(scratch, "turns");
  turns.ranks.parts_in_turn = 5;
  const TrainResult expected = test::train_here(whole), result = test::train_here(turns);
  CHECK(difference_of_losses(turns, whole) < 2e-4);
  CHECK(result.state.best_valid_loss == doctest::Approx(expected.state.best_valid_loss).epsilon(2e-4));

  Runtime runtime({.device = {}, .threads = 1, .allocator = {}, .log = {}, .memory = {}});
  const fs::path checkpoint = fs::path(turns.run.dir) / "checkpoints/last.safetensors";
  const Predictor predictor(runtime, checkpoint, turns.data.path);
  TrainedModel in_turn = predictor.trained();
  REQUIRE(in_turn.parts != nullptr);
  const Evaluation parted = in_turn.task.evaluate(in_turn, {});
  in_turn.parts = nullptr;
  const Evaluation at_once = in_turn.task.evaluate(in_turn, {});
  REQUIRE(parted.fields.size() == at_once.fields.size());
  for (size_t i = 0; i < parted.fields.size(); ++i)
    CHECK(parted.fields[i].rmse == doctest::Approx(at_once.fields[i].rmse).epsilon(1e-5));
}

TEST_CASE("ranks predict a mesh together, in the order of the data") {
  const ScratchDirectory scratch;
  Config config = parts_config(scratch, "run");
  config.ranks.partition = MeshPartition::rcb;
  SUBCASE("trained so") { test::train_on_ranks(2, config); }
  SUBCASE("trained by one process, which takes what training in parts refuses") {
    config.ranks.reduction = RankReduction::ordered;
    config.graphs = GraphsMode::capture;
    test::train_here(config);
  }
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints/last.safetensors";
  Runtime alone({.device = {}, .threads = 1, .allocator = {}, .log = {}, .memory = {}});
  const Evaluation expected = evaluate(Predictor(alone, checkpoint, config.data.path), {});
  test::on_ranks(3, [&](Ranks& ranks) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = {}, .log = {}, .memory = {}});
    const Evaluation got = evaluate(Predictor(runtime, checkpoint, config.data.path, &ranks), {});
    CHECK(got.fields.front().rmse == doctest::Approx(expected.fields.front().rmse).epsilon(1e-5));
    CHECK(got.dynamics->rollouts.back().fields.front().rmse ==
          doctest::Approx(expected.dynamics->rollouts.back().fields.front().rmse).epsilon(1e-4));
  });
}

TEST_CASE("a mesh is cut as a file says") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path, 7, 14, true), owners = scratch.path / "waves.part.3";
  const auto write_owners = [&](int nodes, int ranks, const char* last = "") {
    std::ofstream file(owners);
    for (int i = 0; i < nodes; ++i) file << (i * 7 / 3) % ranks << "\n";
    file << last;
  };
  const auto config_of = [&](const std::string& name) {
    Config config = test::small_config(scratch.path, data);
    config.run.dir = (scratch.path / name).string();
    config.train.steps = 12;
    config.train.log_every = 1;
    return config;
  };
  const Config whole = config_of("whole");
  test::train_here(whole);
  Config config = config_of("given");
  config.ranks.partition = MeshPartition::file;
  config.ranks.partition_file = owners.string();
  write_owners(49, 3);
  test::train_on_ranks(3, config);
  CHECK(difference_of_losses(config, whole) < 2e-4);

  const auto says = [&](const char* text) {
    Config refused = config;
    refused.run.dir = (scratch.path / "refused").string();
    CHECK_THROWS_WITH(test::train_on_ranks(3, refused), doctest::Contains(text));
  };
  write_owners(48, 3);
  says("[ranks.partition_file] needed a line for each of 49 nodes, got 48");
  write_owners(49, 4);
  says("[ranks.partition_file] needed ranks from 0 to 2, got 3");
  write_owners(48, 3, "1 2\n");
  says("waves.part.3:49] needed the number of a rank, and nothing else, got \"1 2\"");
  write_owners(48, 3, "-1");
  says("waves.part.3:49]");
  config.ranks.partition_file.clear();
  says("[ranks.partition_file] needed a file");
}

TEST_CASE("keys that do not go with parts are refused") {
  const ScratchDirectory scratch;
  const auto says = [&](const std::string& key, const std::function<void(Config&)>& change) {
    Config config = parts_config(scratch, "refused");
    config.ranks.parts_in_turn = 2;
    change(config);
    CHECK_THROWS_WITH_AS(test::train_here(config), doctest::Contains(key.c_str()), ConfigError);
  };
  says("[ranks.parts_in_turn]", [](Config& config) { config.unroll.steps = 2; });
  says("[ranks.reduction]", [](Config& config) { config.ranks.reduction = RankReduction::ordered; });
  says("[graphs]", [](Config& config) { config.graphs = GraphsMode::capture; });
  Config both = parts_config(scratch, "both");
  both.ranks.parts_in_turn = 2;
  CHECK_THROWS_WITH(test::train_on_ranks(2, both), doctest::Contains("[ranks.parts_in_turn]"));
}

}  // namespace meshgrad
