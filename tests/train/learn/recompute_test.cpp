// SPDX-License-Identifier: Apache-2.0
// Runs with recomputed blocks: bit-identical, in less memory.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/make_model.h>

#include <algorithm>

#include "model_case.h"
#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;
using test::ScratchDirectory;
using test::tensors_of;

Model model_of(int64_t blocks) { return test::make_model(test::model_case(2, 2, 4, blocks)); }

std::vector<RecomputedStages> segments(int64_t blocks, RecomputeMode mode, int64_t every = 4,
                                       const std::vector<std::string>& include = {"processor"}) {
  Config config;
  config.recompute.mode = mode;
  config.recompute.every = every;
  config.recompute.include = include;
  return uniform_segments(config, model_of(blocks));
}

using Stages = std::vector<RecomputedStages>;

TEST_CASE("modes cut the included blocks; the last segment is kept") {
  CHECK(segments(15, RecomputeMode::off).empty());
  const Stages blocks = segments(15, RecomputeMode::block);
  REQUIRE(blocks.size() == 14);
  CHECK(blocks.front() == RecomputedStages{1, 2});
  CHECK(blocks.back() == RecomputedStages{14, 15});
  CHECK(segments(15, RecomputeMode::every, 4) == Stages{{1, 5}, {5, 9}, {9, 13}});
  CHECK(segments(15, RecomputeMode::every, 1) == blocks);
  CHECK(segments(15, RecomputeMode::every, 15).empty());
  CHECK(segments(15, RecomputeMode::sqrt) == segments(15, RecomputeMode::every, 4));
  CHECK(segments(9, RecomputeMode::sqrt) == Stages{{1, 4}, {4, 7}});
  CHECK(segments(1, RecomputeMode::block).empty());
  // Encoder and decoder are segments of their own; what is left out cuts.
  CHECK(segments(4, RecomputeMode::every, 3, {"*"}) == Stages{{0, 1}, {1, 4}, {4, 5}});
  CHECK(segments(6, RecomputeMode::every, 4, {"processor.0", "processor.1", "processor.3", "*.5"}) ==
        Stages{{1, 3}, {4, 5}});
  CHECK(segments(12, RecomputeMode::every, 9, {"processor.1*"}) == Stages{{2, 3}});
  CHECK(segments(12, RecomputeMode::block, 1, {"*co*"}) == Stages{{0, 1}});
  CHECK(segments(6, RecomputeMode::block, 1, {"encoder"}) == Stages{{0, 1}});
  CHECK(segments(6, RecomputeMode::block, 1, {"processor.0", "processor.3"}) == Stages{{1, 2}, {4, 5}});
  CHECK(contains(message_of([] {
                   segments(3, RecomputeMode::block, 1, {"processor", "proc"});
                 }),
                 "[recompute.include] needed names of parts of the model, got \"proc\"; fix: name encoder, "
                 "processor, processor.2 or decoder"));
}

/// The tensors of a run's last checkpoint, by name.

Config with(Config config, const std::string& name, RecomputeMode mode,
            const std::vector<std::string>& keep = RecomputeConfig().keep) {
  config.run.dir = (std::filesystem::path(config.run.dir).parent_path() / name).string();
  config.recompute.mode = mode;
  config.recompute.keep = keep;
  return config;
}

TEST_CASE("a recomputed run has the same bits") {
  for (const DType precision : {DType::f32, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      const ScratchDirectory scratch;
      Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
      config.model.blocks = 3;
      config.train.steps = 6;
      config.train.validate_every = 3;
      config.precision = precision;
      config.model.path = path;
      CAPTURE(name_of(precision));
      test::train_here(config);
      const auto plain = tensors_of(config);
      REQUIRE(plain.size() > 10);
      Config block = with(config, "block", RecomputeMode::block);
      block.recompute.check = true;
      test::train_here(block);
      CHECK(tensors_of(block) == plain);
      CHECK(test::lasting_metrics(block.run.dir) == test::lasting_metrics(config.run.dir));
      Config changed = with(config, "changed", RecomputeMode::sqrt, {"linear", "mlp", "norm", "concat"});
      int64_t left = 3 * config.train.accumulate;
      test::train_here(changed, false, [&] { return --left <= 0; });
      changed = with(config, "changed", RecomputeMode::every);
      changed.recompute.every = 1;
      changed.recompute.include = {"*"};
      test::train_here(changed, true);
      CHECK(tensors_of(changed) == plain);
    }
  }
}

/// Eight blocks, so that most of the memory is activations.
Config deep_config(const std::filesystem::path& folder) {
  Config config = test::small_config(folder, test::pack_waves(folder, 12));
  config.model.blocks = 8;
  config.model.width = 32;
  config.train.steps = 2;
  config.train.batch = 4;
  config.train.accumulate = 1;
  config.train.validate_every = 0;
  return config;
}

TEST_CASE("a run that does not fit says that recomputation helps") {
  const ScratchDirectory scratch;
  Config config = deep_config(scratch.path);
  const auto peak = [&](const Config& one) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = one.memory});
    train(runtime, one, {});
    return runtime.allocator().stats().reserved.peak;
  };
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    config.model.path = path;
    const std::string name = path == ComputePath::fused ? "fused" : "op_by_op";
    const int64_t all = peak(with(config, name, RecomputeMode::off));
    const int64_t block = peak(with(config, name + "_block", RecomputeMode::block));
    CHECK(block < all * 3 / 4);
    Config limited = with(config, name + "_limited", RecomputeMode::off);
    limited.memory.memory_limit = (all + block) / 2;
    const std::string message = message_of([&] { test::train_here(limited); });
    CHECK(contains(message, "recompute.mode = "));
    limited = with(limited, name + "_limited_block", RecomputeMode::block);
    CHECK(test::train_here(limited).state.step == 2);
    CHECK(tensors_of(limited) == tensors_of(with(config, name, RecomputeMode::off)));
  }
}

TEST_CASE("a budget is kept to by the fastest plan") {
  const ScratchDirectory scratch;
  Config config = deep_config(scratch.path);
  /// What steps take beside what the run keeps.
  const auto taken = [](const Config& one) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = one.memory});
    TrainOptions options;
    int64_t most = 0;
    options.observer.progress = [&](const TrainObserver::Progress& progress) {
      most = std::max(most, progress.memory_peak - progress.memory_now);
      runtime.allocator().reset_peak();
    };
    train(runtime, one, options);
    return most;
  };
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    config.model.path = path;
    const std::string name = path == ComputePath::fused ? "fused" : "op_by_op";
    const Config off = with(config, name, RecomputeMode::off);
    const int64_t all = taken(off);
    for (const int percent : {90, 60, 45}) {
      Config budget = with(config, name + std::to_string(percent), RecomputeMode::budget);
      budget.recompute.budget = all * percent / 100;
      CAPTURE(percent);
      CHECK(taken(budget) <= budget.recompute.budget);
      CHECK(tensors_of(budget) == tensors_of(off));
    }
    Config small = with(config, name + "_small", RecomputeMode::budget);
    small.recompute.budget = all / 100;
    const std::string message = message_of([&] { test::train_here(small); });
    CHECK(contains(message, "[recompute.budget] needed at least "));
  }
}

TEST_CASE("auto recomputes only as much as needed") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4));
  config.model.width = 32;
  config.model.blocks = 8;
  const Task task = make_task(config, Dataset::open(config.data.path));
  const Model model = make_model(config.model, task.sizes());
  config.recompute.mode = RecomputeMode::automatic;
  const auto choose = [&](int64_t limit) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = {.memory_limit = limit}});
    return choose_recomputation(runtime, config, task, {.nodes = 700, .edges = 4000}, model);
  };
  const Recomputation roomy = choose(int64_t{1} << 30);
  CHECK(roomy.stages.empty());
  const Recomputation tight = choose(int64_t{16} << 20);
  CHECK_FALSE(tight.stages.empty());
  CHECK(tight.predicted_bytes > 0);
  CHECK(tight.predicted_bytes <= int64_t{16} << 20);
  config.recompute.include = {"decoder"};
  CHECK(choose(int64_t{16} << 20).stages.size() <= 1);
}

TEST_CASE("keys of recomputation that contradict one another are errors") {
  const auto message = [](const std::string& text) {
    return message_of([&] { parse_config("[recompute]\n" + text, "config.toml"); });
  };
  CHECK(contains(message("mode = \"budget\"\n"), "[recompute.budget] needed a size"));
  CHECK(message("mode = \"budget\"\nbudget = \"1GiB\"\n").empty());
  CHECK(contains(message_of([] { parse_config("graphs = \"capture\"\n[recompute]\ncheck = true\n", "c"); }),
                 "[recompute.check] needed false with graphs"));
  CHECK(
      contains(message("offload = \"file\"\n"), "[recompute.offload] needed \"none\", as recompute.mode is"));
  CHECK(contains(message_of([] {
                   parse_config("graphs = \"capture\"\n[recompute]\nmode = \"block\"\noffload = \"file\"\n",
                                "c");
                 }),
                 "[recompute.offload] needed \"none\" or \"host\" with graphs = \"capture\""));
  CHECK(contains(message("keep = [\"lineer\"]\n"),
                 "[recompute.keep] needed \"auto\", \"none\", or a list of names, each once: linear, "
                 "activation, norm, add, concat, "
                 "segment_sum, mlp, edge_update, halo_exchange, weighted_sum, graph_pool, add_bias, dropout, "
                 "mean_of_heads, embedding, maximum, edge_attention, head_scores, sample_latent, "
                 "slice_tokens, slice_spread, token_attention, "
                 "got \"lineer\" in the list; fix: did you "
                 "mean \"linear\"?"));
  CHECK(kept_outputs(parse_config("[recompute]\nkeep = [\"linear\", \"concat\"]\n", "c").recompute) ==
        (SavePolicy::outputs_of("concat") | SavePolicy::outputs_of("linear")));
  const Config config =
      parse_config("[recompute]\nmode = \"auto\"\nkeep = \"none\"\ninclude = [\"processor.1\"]\n", "c");
  CHECK(config.recompute.mode == RecomputeMode::automatic);
  CHECK(kept_outputs(config.recompute) == SavePolicy::inputs);
  CHECK(contains(to_toml(config), "\nkeep = \"none\"\n"));
  CHECK(contains(to_toml(Config{}), "\nkeep = \"auto\"\n"));
  CHECK(parse_config("", "c", {"recompute.keep=none"}).recompute.keep == config.recompute.keep);
  CHECK(contains(message("keep = \"some\"\n"), "[recompute.keep] needed \"auto\", \"none\", or a list"));
  CHECK(contains(message("keep = [\"none\"]\n"), "got \"none\" in the list"));
  CHECK(
      contains(message("policy = \"products\"\n"),
               "[recompute.policy] needed no key of this name, as it was removed, got \"products\"; fix: set "
               "recompute.keep = [\"linear\", \"mlp\", \"edge_update\"]"));
  CHECK(message("policy = \"inputs\"\n").empty());
  CHECK(to_toml(parse_saved_config("[recompute]\npolicy = \"products\"\n", "c")) == to_toml(Config{}));
  CHECK(config.recompute.include == std::vector<std::string>{"processor.1"});
}

TEST_CASE("a run says what it recomputes") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.model.blocks = 5;
  config.train.steps = 1;
  config.recompute.mode = RecomputeMode::every;
  config.recompute.every = 2;
  std::vector<std::string> messages;
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { messages.push_back(event.text); };
  Runtime runtime({.device = {}, .threads = 1});
  train(runtime, config, options);
  CHECK(std::count(messages.begin(), messages.end(),
                   "recomputing 4 of 7 stages in backward, in 2 segments: "
                   "processor.0..processor.1, processor.2..processor.3") == 1);
}

TEST_CASE("a recomputed run on a device has the same bits" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4, 6));
  config.run.device = "cuda";
  config.model.width = 8;
  config.model.blocks = 3;
  config.train.steps = 4;
  config.train.accumulate = 2;
  config.train.validate_every = 0;
  const auto train_on_device = [](const Config& one) {
    Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 2, .allocator = one.memory});
    train(runtime, one, {});
  };
  for (const DType precision : {DType::f32, DType::f16, DType::bf16}) {
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      config.precision = precision;
      config.graphs = graphs;
      const std::string name =
          std::string(name_of(precision)) + (graphs == GraphsMode::off ? "" : "_captured");
      CAPTURE(name);
      const Config off = with(config, name, RecomputeMode::off);
      train_on_device(off);
      for (const bool products : {false, true}) {
        Config again = with(config, name + (products ? "_products" : "_inputs"), RecomputeMode::block);
        if (products) again.recompute.keep = {"linear", "mlp", "edge_update"};
        if (!products) again.recompute.offload = OffloadTo::host;
        train_on_device(again);
        CHECK(tensors_of(again) == tensors_of(off));
      }
    }
  }
}

}  // namespace
}  // namespace meshgrad
