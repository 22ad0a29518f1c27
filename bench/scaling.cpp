// SPDX-License-Identifier: Apache-2.0
// How work and the multiply-add peak grow with threads, measured interleaved, so that other load on the
// machine affects all alike.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/cpu_affinity.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "machine_peak.h"
#include "timing.h"

namespace meshgrad::bench {
namespace {

constexpr int kRounds = 9;

/// One workload on some number of threads.
struct Lane {
  int threads;
  std::unique_ptr<Runtime> runtime;
  Workload work;
  std::unique_ptr<Timer> timer;
  std::vector<double> rate, peak;  // of each round: 1 / ms, GFLOP/s
};

/// 1, 2, 4, ... and all.
std::vector<int> thread_counts() {
  const int all = available_cpus();
  std::vector<int> counts;
  for (int threads = 1; threads < all; threads *= 2) counts.push_back(threads);
  counts.push_back(all);
  return counts;
}

Figures scale(const Benchmark& benchmark, bool quick) {
  std::vector<Lane> lanes;
  for (const int threads : thread_counts()) {
    Lane& lane = lanes.emplace_back(Lane{.threads = threads, .runtime = {}, .work = {}, .timer = {}});
    lane.runtime = std::make_unique<Runtime>(RuntimeOptions{.threads = threads});
    lane.work = benchmark.prepare(*lane.runtime);
    if (lane.work.check) {
      const std::string difference = lane.work.check();
      if (!difference.empty()) throw invalid_argument(benchmark.name, "the reference's result", difference);
    }
    if (lane.work.randomise) lane.work.randomise();
    lane.timer = std::make_unique<Timer>(*lane.runtime, quick ? 4096 : kFlushBytes);
    lane.timer->run(lane.work.run, lane.work.warm_runs, lane.work.cold);
  }
  Figures figures{lanes.front().work.description, {}};
  for (int round = 0; round < (quick ? 2 : kRounds); ++round) {
    for (Lane& lane : lanes) {
      const double before = fma_peak(lane.runtime->threads());
      const double ms = median_interval(lane.timer->run(lane.work.run, quick ? 1 : 3, lane.work.cold)).median;
      lane.peak.push_back(std::max(before, fma_peak(lane.runtime->threads())));
      lane.rate.push_back(1.0 / ms);
    }
  }
  const auto median_ratio = [](const std::vector<double>& of, const std::vector<double>& to) {
    std::vector<double> ratios(of.size());
    std::transform(of.begin(), of.end(), to.begin(), ratios.begin(), std::divides<>());
    return median_interval(ratios).median;
  };
  const Lane& one = lanes.front();
  for (const Lane& lane : lanes) {
    const auto add = [&](const char* name, double value) {
      figures.values.emplace_back(fmt::format("threads_{}_{}", lane.threads, name), value);
    };
    add("ms", 1.0 / median_interval(lane.rate).median);
    add("peak_gflops", median_interval(lane.peak).median);
    if (lane.threads == 1) continue;
    const double speedup = median_ratio(lane.rate, one.rate);
    const double peak = median_ratio(lane.peak, one.peak);
    add("speedup", speedup);
    add("peak_speedup", peak);
    add("speedup_of_peak", speedup / peak);
  }
  return figures;
}

}  // namespace

std::vector<Benchmark> scaling_benchmarks(const Selection& selection) {
  if (selection.device != DeviceKind::cpu) return {};
  std::vector<Benchmark> list;
  for (const auto& family : {step_benchmarks(selection), kernel_benchmarks(selection)}) {
    for (const Benchmark& benchmark : family) {
      for (const char* name : {"step/train/f32", "step/forward/f32", "kernel/linear/forward/f32",
                               "kernel/linear/backward/f32", "kernel/edge_update/forward/f32"}) {
        if (benchmark.name != name) continue;
        list.push_back({.name = "scaling/" + benchmark.name,
                        .prepare = {},
                        .on_host = true,
                        .figures = [benchmark, quick = selection.quick](const Runtime&) {
                          return scale(benchmark, quick);
                        }});
      }
    }
  }
  return list;
}

}  // namespace meshgrad::bench
