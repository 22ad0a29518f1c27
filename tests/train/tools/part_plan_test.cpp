// SPDX-License-Identifier: Apache-2.0
// What meshgrad plan --ranks predicts, against what ranks take and send in a step.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/nn/partition/owners.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/tools/program/part_plan.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "simulated_ranks.h"
#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;
using test::ScratchDirectory;

constexpr int64_t kRankMemory = int64_t{8} << 30;

Config parts_plan_config(const ScratchDirectory& scratch, MeshPartition partition) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 21, 6, true));
  config.run.device = "cpu";
  config.run.threads = 1;
  config.train.accumulate = 1;
  config.model.width = 32;
  config.ranks.partition = partition;
  return config;
}

struct Taken {
  int64_t sent = 0, memory = 0;
};

/// What a rank takes of memory in three steps, and sends to others in the last one before gradients are
/// summed.
Taken step_on_rank(const Config& config, Ranks& ranks) {
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
  const Task task = make_task(config, Dataset::open(config.data.path));
  const Model model = make_model(runtime, config, task.sizes());
  const Optimizer optimizer(runtime, model.parameters, config.optimizer, config.train.clip_norm,
                            learning_rate(config.schedule, config.optimizer.lr, config.train.steps));
  std::optional<MeshParts> parts = make_mesh_parts(runtime, config, ranks);
  BatchLoader loader(runtime, config, task, RankShare(), &*parts);
  StepCache steps(runtime, config, task, model, optimizer,
                  choose_recomputation(runtime, config, task, largest_batch(config, task), model));
  Normalizers normalizers = task.dataset_normalizers({});
  Taken taken;
  runtime.allocator().reset_peak();
  for (int64_t step = 0; step < 3; ++step) {
    const BatchLoader::Loaded loaded = loader.load({step, 0}, Normalizing::fixed, normalizers, steps);
    const int64_t before = ranks.bytes_sent();
    steps.run(loaded.layout, [&](const StoragePtr& to) { return loader.upload(loaded, to); });
    taken.sent = ranks.bytes_sent() - before;
    steps.update();
  }
  taken.memory = runtime.allocator().stats().allocated.peak;
  return taken;
}

TEST_CASE("a plan of parts has each rank's bytes") {
  const ScratchDirectory scratch;
  for (const auto mode : {RecomputeMode::off, RecomputeMode::block}) {
    for (const DType precision : {DType::f32, DType::f16}) {
      Config config = parts_plan_config(scratch, MeshPartition::rcb);
      config.recompute.mode = mode;
      config.precision = precision;
      const PartsPlan plan = plan_parts(config, {.device_memory = kRankMemory}, 3);
      REQUIRE(plan.parts.size() == 3);
      CHECK(plan.fits);
      std::vector<Taken> taken(3);
      test::on_ranks(
          3, [&](Ranks& ranks) { taken[static_cast<size_t>(ranks.rank())] = step_on_rank(config, ranks); });
      int64_t nodes = 0;
      for (size_t rank = 0; rank < 3; ++rank) {
        const PlannedPart& part = plan.parts[rank];
        CAPTURE(name_of(precision));
        CAPTURE(rank);
        CHECK(part.halo_bytes == taken[rank].sent);
        const auto predicted = static_cast<double>(part.memory.live);
        CHECK(predicted >= 0.98 * static_cast<double>(taken[rank].memory));
        CHECK(predicted <= 1.10 * static_cast<double>(taken[rank].memory));
        if (mode == RecomputeMode::off) {
          // A row forward and one backward in each block.
          CHECK(part.halo_bytes ==
                config.model.blocks * (part.sent + part.ghosts) * config.model.width * size_of(precision));
        }
        nodes += part.nodes;
      }
      CHECK(nodes == 2 * 21 * 21);  // of a batch of 2 samples
    }
  }
}

TEST_CASE("meshgrad plan --ranks prints a line for each rank") {
  const ScratchDirectory scratch;
  const std::string file = test::write_config(scratch.path, parts_plan_config(scratch, MeshPartition::rcb));
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", file, "--device-memory", "8GiB", "--ranks", "4"});
    return test::run_meshgrad(words);
  };
  const test::Outcome text = plan({});
  CAPTURE(text.err);
  REQUIRE(text.code == 0);
  for (const char* part : {"static plan for 4 ranks on cpu, each with a part of every mesh", "fits in",
                           "halo, MB", "for the sum of gradients each rank sends"})
    CHECK_MESSAGE(contains(text.out, part), part);
  const auto json = nlohmann::json::parse(plan({"--json"}).out);
  CHECK(json["parts"].size() == 4);
  CHECK(json["parts"][0]["halo_bytes"].get<int64_t>() > 0);
  const auto says = [&](const std::vector<std::string>& words, const char* message) {
    const test::Outcome outcome = plan(words);
    CHECK(outcome.code != 0);
    CHECK_MESSAGE(contains(outcome.err, message), outcome.err);
  };
  says({"--set", "ranks.partition=none"}, "[ranks.partition] needed a way to cut meshes");
  says({"--set", "train.batch=auto"}, "[train.batch] needed a number");
  says({"--nodes", "9", "--edges", "9"}, "[--ranks] needed data");
  says({"--mode", "measured"}, "[--ranks] needed data, and --mode static");
}

}  // namespace
}  // namespace meshgrad
