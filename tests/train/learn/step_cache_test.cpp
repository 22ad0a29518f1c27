// SPDX-License-Identifier: Apache-2.0
// Steady-state training steps make no system calls and no calls of the memory source.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "train/small_run.h"

namespace meshgrad {
namespace {

/// Training on waves of two mesh sizes, past its first steps: every size has come often enough to be planned.
struct Steady {
  test::ScratchDirectory scratch;
  Config config;
  Runtime runtime;
  Dataset dataset = Dataset::open(config.data.path);
  Task task = make_task(config, dataset);
  BatchLoader loader{runtime, config, task};
  Normalizers normalizers = task.dataset_normalizers(noise_of(config));
  Model model = make_model(runtime, config, task.sizes());
  std::optional<Optimizer> optimizer;
  std::optional<StepCache> cache;
  int64_t position = 0;

  explicit Steady(
      int threads, void (*change)(Config&) = [](Config&) {})
      : config(config_of(scratch.path, change)), runtime({.threads = threads}) {
    optimizer.emplace(runtime, model.parameters, config.optimizer, 1.0,
                      learning_rate(config.schedule, 1e-3, 1000));
    cache.emplace(runtime, config, task, model, *optimizer,
                  choose_recomputation(runtime, config, task, largest_batch(config, task), model));
    run(40);
  }
  static Config config_of(const std::filesystem::path& folder, void (*change)(Config&)) {
    Config config = test::small_config(folder, test::pack_waves(folder));
    config.train.accumulate = 1;
    config.train.steps = 1'000'000;
    change(config);
    return config;
  }
  void run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i, ++position) {
      const BatchLoader::Loaded loaded = loader.load({position, 0}, Normalizing::fixed, normalizers, *cache);
      cache->run(loaded.layout, [&](const StoragePtr& to) { return loader.upload(loaded, to); });
      cache->update();
    }
  }
};

/// System calls of a child process that runs `steps` steady steps; -1 where tracing is not allowed.
int64_t system_calls(Steady& steady, int64_t steps) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    syscall(SYS_kill, getpid(), SIGSTOP);
    steady.run(steps);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return -1;
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  int64_t stops = 0;
  for (int signal_number = 0;;) {
    ptrace(PTRACE_SYSCALL, child, nullptr, signal_number);
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) break;
    const bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
    stops += call ? 1 : 0;
    signal_number = call || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? stops : -1;
}

TEST_CASE("a steady step on one thread makes no system call") {
  Steady steady(1);
  const int64_t none = system_calls(steady, 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kMeasurable = false;  // sanitizers make calls of their own
#else
  constexpr bool kMeasurable = true;
#endif
  if (none < 0 || !kMeasurable) {
    MESSAGE("tracing is not allowed here");
    CHECK(steady.runtime.threads().threads() == 1);
    return;
  }
  CHECK(system_calls(steady, 20) == none);
}

TEST_CASE("a steady step calls neither memory source nor lock") {
  struct Case {
    const char* what;
    int threads;
    void (*change)(Config&);
  };
  const Case cases[] = {
      {"one thread", 1, [](Config&) {}},
      {"two threads", 2, [](Config&) {}},
      {"15 blocks", 1, [](Config& config) { config.model.blocks = 15; }},
      {"op by op", 1, [](Config& config) { config.model.path = ComputePath::op_by_op; }},
      {"recomputed blocks", 1, [](Config& config) { config.recompute.mode = RecomputeMode::block; }},
      {"segments of four blocks that keep products", 1,
       [](Config& config) {
         config.model.blocks = 15;
         config.recompute = {.mode = RecomputeMode::every, .keep = {"linear", "mlp", "edge_update"}};
       }},
      {"planned steps", 1, [](Config& config) { config.memory.plan_steps = true; }},
      {"three frames", 1, [](Config& config) { config.unroll.steps = 3; }},
      {"three frames, each recomputed", 1,
       [](Config& config) {
         config.unroll.steps = 3;
         config.recompute = {.mode = RecomputeMode::block, .segments = SegmentUnit::frame};
       }},
      {"three frames, in sequences", 1,
       [](Config& config) {
         config.unroll.steps = 3;
         config.recompute = {.mode = RecomputeMode::block, .segments = SegmentUnit::sequence};
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    Steady steady(c.threads, c.change);
    CHECK(has_segments(steady.cache->recomputation(), steady.config.unroll.steps) ==
          (steady.config.recompute.mode != RecomputeMode::off));
    const MemoryStats before = steady.runtime.allocator().stats();
    const ThreadCounters threads_before = steady.runtime.threads().counters();
    constexpr int64_t kSteps = 20;
    steady.run(kSteps);
    const MemoryStats after = steady.runtime.allocator().stats();
    CHECK(after.source_calls == before.source_calls);
    CHECK(after.reserved.current == before.reserved.current);
    CHECK(steady.runtime.threads().counters().waits == threads_before.waits);
  }
}

}  // namespace
}  // namespace meshgrad
