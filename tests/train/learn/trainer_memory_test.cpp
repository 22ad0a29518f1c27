// SPDX-License-Identifier: Apache-2.0
// What training does to memory: nothing leaks, nothing creeps, and running out of it is survivable.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;

/// Trains and returns the statistics after every step.
std::vector<MemoryStats> stats_of(const Config& config) {
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory});
  std::vector<MemoryStats> stats;
  TrainOptions options;
  options.observer.progress = [&](const TrainObserver::Progress&) {
    stats.push_back(runtime.allocator().stats());
  };
  train(runtime, config, options);
  return stats;
}

struct MemoryFixture {
  test::ScratchDirectory scratch;
  Config config;
  explicit MemoryFixture(int side = 7) {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path, side, 6));
    config.train.steps = 8;
    config.train.checkpoint_every = 0;
    config.train.validate_every = 0;
  }
  Config in(const std::string& run) {
    Config changed = config;
    changed.run.dir = (scratch.path / run).string();
    return changed;
  }
};

TEST_CASE("memory after a step is the same after every step") {
  MemoryFixture f;
  f.config.train.validate_every = 2;
  f.config.train.checkpoint_every = 3;
  const std::vector<MemoryStats> stats = stats_of(f.config);
  REQUIRE(stats.size() == 8);
  std::set<int64_t> live, allocated;
  for (const MemoryStats& after : stats) {
    live.insert(after.live_allocations);
    allocated.insert(after.allocated.current);
  }
  CHECK(live.size() == 1);
  CHECK(allocated.size() == 1);
  CHECK(stats.back().by_tag[static_cast<size_t>(Tag::activations)].allocated.current == 0);
  CHECK(stats.back().reserved.current == stats[3].reserved.current);
  CHECK(stats.back().growths == stats[3].growths);
}

TEST_CASE("saving checkpoints adds nothing to the peak") {
  MemoryFixture f(20);
  Config saving = f.in("saving");
  saving.train.checkpoint_every = 1;
  const auto peak = [](const std::vector<MemoryStats>& stats) {
    int64_t most = 0;
    for (const MemoryStats& after : stats) most = std::max(most, after.allocated.peak);
    return most;
  };
  CHECK(peak(stats_of(saving)) == peak(stats_of(f.in("quiet"))));
}

/// Of the run's last checkpoint.
std::vector<double> weights_of(const Config& config) {
  const SafetensorsFile file(fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  std::vector<double> all;
  for (const SafetensorsTensor& tensor : file.view().tensors) {
    if (!tensor.name.starts_with("model.")) continue;
    const std::vector<double> values = to_f64(tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_CASE("release_cached_every only releases memory") {
  MemoryFixture f;
  const Config plain = f.in("plain");
  Config releasing = f.in("releasing");
  releasing.memory.release_cached_every = 2;
  CHECK(stats_of(releasing).back().growths > stats_of(plain).back().growths);
  CHECK(weights_of(releasing) == weights_of(plain));
}

TEST_CASE("planned steps map little more than their peak") {
  constexpr int64_t kPage = int64_t{2} << 20;
  MemoryFixture f(30);
  f.config.model.width = 64;
  const Config plain = f.in("plain");
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    Config planned = f.in(recompute ? "recomputing" : "planned");
    planned.memory.plan_steps = true;
    if (recompute) planned.recompute.mode = RecomputeMode::block;
    const MemoryStats stats = stats_of(planned).back();
    const int64_t live = stats.allocated.peak;
    MESSAGE("live at most " << live << " bytes, reserved " << stats.reserved.current);
    CHECK(live > 10 * kPage);
    CHECK(stats.reserved.current <= live + std::max(live / 500, kPage));
    if (!recompute) static_cast<void>(stats_of(plain));
    CHECK(weights_of(planned) == weights_of(plain));
  }
}

TEST_CASE("a line at the end of an epoch, in the log and in the metrics") {
  MemoryFixture f;
  f.config.train.log_every = 1;
  std::vector<std::string> lines;
  Runtime runtime({.device = {}, .threads = 1});
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { lines.push_back(event.text); };
  train(runtime, f.config, options);
  // 8 steps of 6 samples; an epoch has 2 trajectories of 5 pairs of frames.
  std::vector<std::string> epochs;
  for (const std::string& line : lines)
    if (line.starts_with("epoch ")) epochs.push_back(line);
  REQUIRE(!epochs.empty());
  CHECK(epochs[0].starts_with("epoch 1: memory "));
  CHECK(contains(epochs[0], " external fragmentation "));
  CHECK(contains(epochs[0], " headroom "));
  // A line is printed when its figures have changed; the metrics have one for each epoch.
  for (size_t i = 1; i < epochs.size(); ++i)
    CHECK(epochs[i].substr(epochs[i].find(": ")) != epochs[i - 1].substr(epochs[i - 1].find(": ")));
  CHECK(epochs.size() < 5);
  const std::string metrics = test::read_text(fs::path(f.config.run.dir) / "metrics.jsonl");
  CHECK(test::count_of(metrics, "\"memory_headroom_bytes\"") == 5);
}

TEST_CASE("a run short of memory goes on after the advised change") {
  MemoryFixture f(40);
  f.config.model.width = 64;
  f.config.train.steps = 2;
  f.config.train.checkpoint_every = 1;
  const int64_t needed = stats_of(f.config).back().reserved.peak;
  const std::string last = test::checkpoint_bytes(f.config.run.dir, "last");
  const std::string file = test::write_config(f.scratch.path, f.config);
  const std::string limit = "memory.limit=" + std::to_string(needed * 6 / 10) + "B";
  std::vector<std::string> command = {"train", file, "--resume", "--set", "train.steps=4", "--set", limit};

  const test::Outcome failed = test::run_meshgrad(command);
  CAPTURE(failed.err);
  CHECK(failed.code == 1);
  for (const char* part : {"needed ", "capacity ", "allocated ", "reserved ", "activations",
                           "largest owner 1: ", "largest owner 5: ", "fragmentation: ", "fix: in this order",
                           "1. set model.keep_hidden = false", "raise memory.limit"})
    CHECK_MESSAGE(contains(failed.err, part), part);
  CHECK(test::checkpoint_bytes(f.config.run.dir, "last") == last);

  command.insert(command.end(), {"--set", "model.keep_hidden=false"});
  const test::Outcome resumed = test::run_meshgrad(command);
  CHECK_MESSAGE(resumed.code == 0, resumed.err);
  CHECK(contains(resumed.err + resumed.out, "4"));
  CHECK(test::checkpoint_bytes(f.config.run.dir, "last") != last);
}

TEST_CASE("memory.history leaves its files, also when memory runs out") {
  MemoryFixture f(30);
  f.config.memory.history = 1000;
  stats_of(f.config);
  const fs::path dir = fs::path(f.config.run.dir) / "memory";
  CHECK(fs::exists(dir / "history.json"));
  const std::string page = (f.scratch.path / "memory.html").string();
  const test::Outcome drawn = test::run_meshgrad({"memory", "page", f.config.run.dir, "-o", page});
  CHECK_MESSAGE(drawn.code == 0, drawn.err);
  CHECK(contains(test::read_text(page), "id=\"data\">{"));
  fs::remove_all(dir);
  const test::Outcome missing = test::run_meshgrad({"memory", "page", f.config.run.dir, "-o", page});
  CHECK(missing.code == 1);
  CHECK(contains(missing.err, "history.json"));
  f.config.run.dir = (f.scratch.path / "short").string();
  f.config.memory.memory_limit = int64_t{4} << 20;
  CHECK_THROWS_AS(stats_of(f.config), OutOfMemory);
  const auto history =
      nlohmann::json::parse(test::read_text(fs::path(f.config.run.dir) / "memory" / "history.json"));
  CHECK(history["events"].back()["kind"] == "out_of_memory");
}

TEST_CASE("MESHGRAD_ALLOC_CONF is obeyed and checked") {
  MemoryFixture f(30);
  const std::string file = test::write_config(f.scratch.path, f.config);
  const auto train_with = [&](const char* text) {
    setenv("MESHGRAD_ALLOC_CONF", text, 1);
    test::Outcome outcome = test::run_meshgrad({"train", file, "--quiet"});
    unsetenv("MESHGRAD_ALLOC_CONF");
    return outcome;
  };
  const test::Outcome small = train_with("memory_limit:2MiB");
  CHECK(small.code == 1);
  CHECK(contains(small.err, "capacity 2.0 MiB"));
  const test::Outcome foreign = train_with("max_split_size_mb:128");
  CHECK(foreign.code == 2);
  CHECK(contains(foreign.err, "MESHGRAD_ALLOC_CONF: max_split_size_mb"));
}

}  // namespace
}  // namespace meshgrad
