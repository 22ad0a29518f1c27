// SPDX-License-Identifier: Apache-2.0
// Training on several ranks, which are threads here: the same run on any number of them.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <random>

#include "simulated_ranks.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Endings;
using test::ScratchDirectory;
using test::SimulatedNetwork;

/// `stop` is asked as (rank, call).
using StopOn = std::function<bool(int, int64_t)>;

struct RanksRun {
  Endings endings;
  TrainResult first;  // of rank 0
  std::vector<std::string> messages;

  bool failed() const {
    return std::any_of(endings.begin(), endings.end(), [](const std::string& text) { return !text.empty(); });
  }
};

RanksRun try_training(const SimulatedNetwork& network, const Config& config, bool resume = false,
                      const StopOn& stop = nullptr) {
  RanksRun run;
  run.endings = test::try_on_ranks(network, [&](Ranks& ranks) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    TrainOptions options;
    options.resume = resume;
    options.ranks = &ranks;
    int64_t calls = 0;
    if (stop) options.observer.stop = [&, rank = ranks.rank()] { return stop(rank, calls++); };
    options.observer.event = [&](const RunEvent& event) { run.messages.push_back(event.text); };  // rank 0's
    const TrainResult result = train(runtime, config, options);
    if (ranks.first()) run.first = result;
  });
  return run;
}

TrainResult train_on(int ranks, const Config& config, bool resume = false, const StopOn& stop = nullptr) {
  const RanksRun run =
      try_training({.ranks = ranks, .latest = 20us, .timeout = 60s, .loss = {}}, config, resume, stop);
  for (const std::string& ending : run.endings) CHECK(ending == "");
  return run.first;
}

/// 50 windows of 5 samples of two sizes of mesh.
Config ranks_config(const fs::path& folder, const fs::path& data) {
  Config config = test::small_config(folder, data);
  config.model.width = 8;
  config.train.steps = 50;
  config.train.batch = 5;
  config.train.accumulate = 1;
  config.train.validate_every = 20;
  config.train.checkpoint_every = 0;
  config.ranks.reduction = RankReduction::ordered;
  return config;
}

/// The same with fast sums of gradients, in several buckets.
Config buckets_config(const fs::path& folder, int64_t steps) {
  Config config = ranks_config(folder, test::pack_waves(folder));
  config.ranks.reduction = RankReduction::fast;
  config.model.width = 64;
  config.train.steps = steps;
  config.train.validate_every = 0;
  return config;
}

std::map<std::string, std::string> trained_tensors(int ranks, const ScratchDirectory& scratch,
                                                   Config config) {
  config.run.dir = (scratch.path / ("on_" + std::to_string(ranks))).string();
  train_on(ranks, config);
  return test::tensors_of(config);
}

TEST_CASE("ordered sums give the same bits on 1, 2, 3 and 4 ranks: f32") {
  const ScratchDirectory scratch;
  const Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  const auto one = trained_tensors(1, scratch, config);
  for (const int ranks : {2, 3, 4}) CHECK_MESSAGE(trained_tensors(ranks, scratch, config) == one, ranks);
}

TEST_CASE("ordered sums keep the bits: sampled nodes and penalty") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 10;
  config.loss = {
      .name = LossName::relative_l2, .type_weights = {{"5", 2.0}}, .sample = 0.4, .change_penalty = 0.1};
  const auto one = trained_tensors(1, scratch, config);
  CHECK(trained_tensors(3, scratch, config) == one);
  const auto terms_on = [&](int ranks) {
    std::vector<double> terms;
    const fs::path folder = scratch.path / ("on_" + std::to_string(ranks));
    for (const auto& row : read_metrics(folder / "metrics.jsonl"))
      if (row.count("loss_change_penalty") > 0) terms.push_back(row.at("loss_change_penalty"));
    return terms;
  };
  REQUIRE(!terms_on(1).empty());
  REQUIRE(terms_on(3).size() == terms_on(1).size());
  for (size_t i = 0; i < terms_on(1).size(); ++i)
    CHECK(terms_on(3)[i] == doctest::Approx(terms_on(1)[i]).epsilon(1e-12));
}

TEST_CASE("ordered sums keep the bits: f16 with skipped steps") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.precision = DType::f16;
  config.train.clip_norm = 0.5;
  config.loss_scale.rule.interval = 5;  // grows until a gradient overflows
  config.loss_scale.rule.growth = 64;
  config.loss_scale.rule.cap = 1e12;
  config.run.dir = (scratch.path / "one").string();
  const TrainResult result = train_on(1, config);
  CHECK(result.state.optimizer.skipped > 0);
  CHECK(result.state.optimizer.skipped < 25);
  const auto one = test::tensors_of(config);
  for (const int ranks : {2, 3, 4}) {
    config.run.dir = (scratch.path / std::to_string(ranks)).string();
    const TrainResult several = train_on(ranks, config);
    CHECK(several.state.optimizer.skipped == result.state.optimizer.skipped);
    CHECK(several.state.optimizer.loss_scale == result.state.optimizer.loss_scale);
    CHECK(several.state.best_valid_loss == result.state.best_valid_loss);
    CHECK_MESSAGE(test::tensors_of(config) == one, ranks);
  }
}

TEST_CASE("ordered sums keep the bits: online normalisers") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 20;
  config.train.accumulate = 2;
  config.train.batch = 3;
  config.train.free_gradients = true;
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 3;
  config.normalize.max_samples = 50;
  const auto one = trained_tensors(1, scratch, config);
  for (const int ranks : {2, 3}) CHECK_MESSAGE(trained_tensors(ranks, scratch, config) == one, ranks);
}

/// The largest difference of two runs' weights, over the largest weight.
double relative_deviation(const std::map<std::string, std::string>& a,
                          const std::map<std::string, std::string>& b) {
  double most = 0.0;
  double largest = 0.0;
  for (const auto& [name, bytes] : a) {
    if (!name.starts_with("model.")) continue;
    const std::string& others = b.at(name);
    CHECK(bytes.size() == others.size());
    for (size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
      float x = 0.0f;
      float y = 0.0f;
      std::memcpy(&x, bytes.data() + i, sizeof x);
      std::memcpy(&y, others.data() + i, sizeof y);
      most = std::max(most, static_cast<double>(std::abs(x - y)));
      largest = std::max(largest, static_cast<double>(std::abs(x)));
    }
  }
  return most / largest;
}

TEST_CASE("fast sums are those of one rank, rounded") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.ranks.reduction = RankReduction::fast;
  config.optimizer.name = OptimizerKind::sgd;  // adam turns rounding of tiny gradients into whole steps
  for (const int64_t accumulate : {1, 2}) {
    config.train.batch = 6 / accumulate;
    config.train.accumulate = accumulate;
    config.run.dir = (scratch.path / ("fast_" + std::to_string(accumulate))).string();
    train_on(1, config);
    const auto one = test::tensors_of(config);
    for (const int ranks : {2, 3, 8}) {  // of 8, two have nothing to do
      config.run.dir = (scratch.path / ("f" + std::to_string(accumulate) + std::to_string(ranks))).string();
      train_on(ranks, config);
      const double deviation = relative_deviation(test::tensors_of(config), one);
      CHECK(deviation <= 1e-6);
      CHECK(deviation > 0.0);
    }
  }
}

TEST_CASE("gradients leave during backward") {
  const ScratchDirectory scratch;
  Config config = buckets_config(scratch.path, 6);
  config.optimizer.name = OptimizerKind::sgd;
  const auto on = [&](int ranks, const std::string& name) {
    config.run.dir = (scratch.path / name).string();
    train_on(ranks, config);
    return test::tensors_of(config);
  };
  const auto one = on(1, "one");
  const auto plain = on(3, "plain");
  const double deviation = relative_deviation(plain, one);
  CHECK(deviation <= 1e-6);
  CHECK(deviation > 0.0);
  config.recompute.mode = RecomputeMode::block;
  CHECK(on(3, "recomputed") == plain);
  config.recompute.offload = OffloadTo::host;
  CHECK(on(3, "offloaded") == plain);
  config.recompute = {};
  config.unroll.steps = 2;
  config.train.batch = 2;
  CHECK(relative_deviation(on(2, "unrolled"), on(1, "unrolled_one")) <= 1e-6);
}

TEST_CASE("gradients leave before backward has freed its memory") {
  constexpr int kRanks = 2;
  constexpr int64_t kHalfBucket = 30'000;  // bytes: only gradients are larger
  const ScratchDirectory scratch;
  Config config = buckets_config(scratch.path, 3);
  config.train.log_every = 3;
  std::array<Runtime*, kRanks> runtimes{};
  std::array<std::vector<int64_t>, kRanks> held;  // bytes allocated when messages of gradients start
  SimulatedNetwork network{.ranks = kRanks, .timeout = 60s, .loss = {}};
  network.observer = [&](int rank, int64_t bytes) {
    const auto at = static_cast<size_t>(rank);
    if (runtimes[at] != nullptr && bytes > kHalfBucket)
      held[at].push_back(runtimes[at]->allocator().stats().allocated.current);
  };
  test::on_ranks(network, [&](Ranks& ranks) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    const auto at = static_cast<size_t>(ranks.rank());
    runtimes[at] = &runtime;
    TrainOptions options;
    options.ranks = &ranks;
    train(runtime, config, options);
    runtimes[at] = nullptr;
  });
  for (const std::vector<int64_t>& all : held) {
    // Of step 2: logged steps, the first and the last here, hold a rank's own gradient against the sum.
    const auto step = static_cast<std::ptrdiff_t>(all.size() / 3);
    const std::vector<int64_t> bytes(all.begin() + step, all.begin() + 2 * step);
    CAPTURE(bytes);
    const size_t buckets = bytes.size() / 2;  // each is reduced, then gathered
    REQUIRE(buckets >= 3);
    for (size_t i = 1; i < buckets; ++i) CHECK(bytes[i] < bytes[i - 1]);
    CHECK(bytes[buckets] < bytes[0]);
  }
}

TEST_CASE("recomputed frames and sequences send equal gradients") {
  const ScratchDirectory scratch;
  Config config = buckets_config(scratch.path, 3);
  config.train.log_every = 3;  // in step 2 gradients leave during the backward pass
  config.train.batch = 2;
  config.unroll.steps = 3;
  const auto on_two = [&](const std::string& name) {
    config.run.dir = (scratch.path / name).string();
    train_on(2, config);
    return test::tensors_of(config);
  };
  const auto plain = on_two("plain");
  config.recompute.mode = RecomputeMode::block;
  config.recompute.segments = SegmentUnit::frame;
  CHECK(on_two("frames") == plain);
  config.recompute.segments = SegmentUnit::sequence;
  CHECK(on_two("sequences") == plain);
  config.recompute = {};
  config.optimizer.name = OptimizerKind::sgd;  // adam turns rounding of tiny gradients into whole steps
  config.run.dir = (scratch.path / "one").string();
  train_on(1, config);
  const auto one = test::tensors_of(config);
  CHECK(relative_deviation(on_two("two"), one) <= 1e-6);
}

TEST_CASE("ordered sums keep the bits: frames and sequences") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 10;
  config.unroll.steps = 3;
  const auto plain = trained_tensors(1, scratch, config);
  config.recompute.mode = RecomputeMode::block;
  for (const SegmentUnit unit : {SegmentUnit::frame, SegmentUnit::sequence}) {
    const ScratchDirectory runs;
    config.recompute.segments = unit;
    for (const int ranks : {1, 2, 3, 4}) CHECK_MESSAGE(trained_tensors(ranks, runs, config) == plain, ranks);
  }
}

TEST_CASE("ranks stop early at the same step") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.validate_every = 1;
  config.train.patience = 1;
  config.train.ema = 0.8;
  config.optimizer.lr = 0.02;  // soon worse
  config.run.dir = (scratch.path / "one").string();
  const TrainResult one = train_on(1, config);
  CHECK(one.state.step < config.train.steps);
  const auto tensors = test::tensors_of(config);
  config.run.dir = (scratch.path / "three").string();
  CHECK(train_on(3, config).state.step == one.state.step);
  CHECK(test::tensors_of(config) == tensors);
}

TEST_CASE("a run may go on with another number of ranks") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 30;
  config.train.validate_every = 0;
  const auto straight = trained_tensors(1, scratch, config);
  config.run.dir = (scratch.path / "pieces").string();
  const auto stop_on = [](int which, int64_t at) {
    return [=](int rank, int64_t call) { return rank == which && call >= at; };
  };
  const TrainResult two = train_on(2, config, false, stop_on(1, 8));
  CHECK(two.stopped);
  CHECK(two.state.step == 9);
  CHECK(two.state.micro == 0);
  const TrainResult three = train_on(3, config, true, stop_on(2, 5));
  CHECK(three.stopped);
  CHECK(three.state.step == 15);
  CHECK_FALSE(train_on(1, config, true).stopped);
  CHECK(test::tensors_of(config) == straight);
}

TEST_CASE("a window of one process is finished by several ranks") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.ranks.reduction = RankReduction::fast;
  config.optimizer.name = OptimizerKind::sgd;
  config.train.steps = 2;
  config.train.batch = 1;
  config.train.accumulate = 4;
  config.train.validate_every = 0;
  const auto straight = trained_tensors(1, scratch, config);
  config.run.dir = (scratch.path / "begun").string();
  const TrainResult begun = train_on(1, config, false, [](int, int64_t call) { return call == 1; });
  CHECK(begun.state.micro == 2);
  CHECK_FALSE(train_on(3, config, true).stopped);
  CHECK(relative_deviation(test::tensors_of(config), straight) <= 1e-6);
}

TEST_CASE("a validation stopped on one rank is repeated") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 4;
  config.train.validate_every = 2;
  config.train.validate_samples = 6;
  const auto straight = trained_tensors(2, scratch, config);
  config.run.dir = (scratch.path / "pieces").string();
  // One call for the first validation's round of batches, one between the windows, then one for each round of
  // the validation: here one of two batches.
  const TrainResult stopped =
      train_on(3, config, false, [](int rank, int64_t call) { return rank == 1 && call == 2; });
  CHECK(stopped.stopped);
  CHECK(stopped.state.validation_due);
  train_on(2, config, true);
  CHECK(test::tensors_of(config) == straight);
}

TEST_CASE("rank 0 says what the ranks share, and whether it is enough") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.ranks.reduction = RankReduction::fast;
  const RanksRun run = try_training({.ranks = 7, .timeout = 60s, .loss = {}}, config);
  const auto said = [&](const std::string& text) {
    return std::any_of(run.messages.begin(), run.messages.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  CHECK(said("7 ranks: 5 samples a step, at most 5 at once on a rank; in the first step the rank with"));
  CHECK(said("5 samples a step do not give 7 ranks one each"));
}

TEST_CASE("ranks with different configurations name the key") {
  const ScratchDirectory scratch;
  const Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  const Endings endings = test::try_on_ranks({.ranks = 3, .timeout = 60s, .loss = {}}, [&](Ranks& ranks) {
    Config own = config;
    own.run.threads = ranks.rank() + 1;  // may differ
    if (ranks.rank() == 2) own.optimizer.lr *= 2.0;
    Runtime runtime({.device = {}, .threads = 1, .log = {}, .memory = {}});
    TrainOptions options;
    options.ranks = &ranks;
    train(runtime, own, options);
  });
  const std::string named =
      "[optimizer.lr] needed the same value on all ranks, got 0.002 on rank 0 and "
      "0.004 on rank 2";
  for (const std::string& ending : endings) CHECK_MESSAGE(ending.find(named) != std::string::npos, ending);
}

TEST_CASE("a lost rank ends the others, and the run resumes") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 20;
  config.train.validate_every = 5;
  config.train.checkpoint_every = 5;
  std::mt19937 random(11);
  for (int attempt = 0; attempt < 5; ++attempt) {
    config.run.dir = (scratch.path / ("lost_" + std::to_string(attempt))).string();
    const int ranks = 2 + attempt % 3;
    const SimulatedNetwork::Loss loss{static_cast<int>(random() % static_cast<unsigned>(ranks)),
                                      static_cast<int64_t>(random() % 60), attempt % 2 == 0};
    const RanksRun run = try_training({.ranks = ranks, .latest = 20us, .timeout = 2s, .loss = loss}, config);
    for (const std::string& ending : run.endings) CHECK(!ending.empty());
    if (!fs::exists(fs::path(config.run.dir) / "checkpoints/last.safetensors")) continue;
    CHECK(train_on(3, config, true).state.step == 20);
  }
}

TEST_CASE("a loss that is not finite is the error of one rank") {
  const ScratchDirectory scratch;
  Config config = ranks_config(scratch.path, test::pack_waves(scratch.path));
  config.optimizer.name = OptimizerKind::sgd;
  config.optimizer.lr = 1e3;
  config.train.clip_norm = 0.0;
  config.schedule.name = RateCurve::constant;
  const RanksRun run = try_training({.ranks = 3, .timeout = 60s, .loss = {}}, config);
  CHECK(run.endings[0].find("needed a finite loss") != std::string::npos);
  CHECK(run.endings[1].find("the end of rank 0") != std::string::npos);
  CHECK(run.endings[2].find("the end of rank 0") != std::string::npos);
}

}  // namespace
}  // namespace meshgrad
