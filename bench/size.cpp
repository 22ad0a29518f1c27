// SPDX-License-Identifier: Apache-2.0
// What an edge costs as meshes grow: training steps of the standard model on triangulated squares of ever
// more edges. A cost that rises with the mesh is memory that caches no longer hold, or work that is not in
// proportion.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "machine_peak.h"
#include "standard_step.h"
#include "timing.h"

namespace meshgrad::bench {
namespace {

constexpr double kSeconds = 20.0;  // for the steps of a size
constexpr size_t kLeastRuns = 2, kMostRuns = 9;
constexpr double kHeadroom = 1.1;  // what is mapped may be more than what is handed out

Scale square(int64_t side) { return {.period = side * side, .copies = 1, .square = true}; }
std::vector<SizeClass> squares(bool quick) {
  if (!quick) return {{"10k", square(43)}, {"100k", square(130)}, {"1M", square(409)}};
  std::vector<SizeClass> tiny{{"64_nodes", square(8)}, {"576_nodes", square(24)}};
  for (SizeClass& size : tiny) size.scale.width = 64, size.scale.blocks = 2;
  return tiny;
}

std::vector<double> step_ms(Runtime& runtime, const Workload& work) {
  Timer timer(runtime, 4096);
  std::vector<double> ms;
  for (const auto begin = std::chrono::steady_clock::now();
       ms.size() < kLeastRuns || (ms.size() < kMostRuns && seconds_since(begin) < kSeconds);) {
    ms.push_back(timer.run(work.run, 1, false).front());
  }
  return ms;
}

/// Adds the figures of one size, computed one way; nanoseconds an edge.
double measure(Runtime& runtime, const Workload& work, const std::string& name, int64_t edges,
               Figures& figures) {
  // Checked at this size. That run also warms the allocator, as a step may take a minute.
  const std::string difference = work.check();
  if (!difference.empty()) throw invalid_argument(name, "the reference's result", difference);
  work.randomise();
  runtime.allocator().reset_peak();
  const double before = fma_peak(runtime.threads());
  const std::vector<double> ms = step_ms(runtime, work);
  const double median = median_interval(ms).median;
  const double ns = 1e6 * median / static_cast<double>(edges);
  const auto add = [&](const char* what, double value) {
    figures.values.emplace_back(name + "_" + what, value);
  };
  add("ns_per_edge", ns);
  add("ms", median);
  add("ms_min", *std::min_element(ms.begin(), ms.end()));
  add("repeats", static_cast<double>(ms.size()));
  add("peak_gflops", std::max(before, fma_peak(runtime.threads())));
  add("memory_peak_mib", mebibytes(runtime.allocator().stats().allocated.peak));
  return ns;
}

Figures cost_per_edge(Runtime& runtime, DType dtype, bool quick) {
  Figures figures{"training steps on triangulated squares of", {}};
  for (const SizeClass& size : squares(quick)) {
    figures.description += fmt::format("{} {}", figures.values.empty() ? "" : ",", size.scale.edges());
    figures.values.emplace_back(size.name + "_edges", static_cast<double>(size.scale.edges()));
  }
  figures.description += " edges";
  std::string left_out;
  for (const auto& [way, kind] : {std::pair{"kept", StepKind{}}, {"block", {.recompute_blocks = true}}}) {
    std::vector<double> ns;
    for (const SizeClass& size : squares(quick)) {
      const std::string name = size.name + "_" + way;
      const double needed = kHeadroom * mebibytes(step_bytes(runtime, size.scale, kind, dtype));
      const double room = mebibytes(runtime.allocator().stats().capacity);
      if (needed > room) {
        left_out += fmt::format("{} {} (needs {:.0f} MiB, of {:.0f})", left_out.empty() ? "" : ",", name,
                                needed, room);
        continue;
      }
      ns.push_back(measure(runtime, step_workload(runtime, size.scale, kind, dtype, name), name,
                           size.scale.edges(), figures));
      runtime.allocator().release_cached();
    }
    if (ns.empty()) continue;
    const auto [least, most] = std::minmax_element(ns.begin(), ns.end());
    figures.values.emplace_back(fmt::format("{}_most_over_least", way), *most / *least);
  }
  if (!left_out.empty()) figures.description += "; left out, as memory is short:" + left_out;
  return figures;
}

}  // namespace

std::vector<Benchmark> size_benchmarks(const Selection& selection) {
  if (selection.device != DeviceKind::cpu) return {};
  std::vector<Benchmark> list;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    list.push_back({.name = fmt::format("size/train/{}", name_of(dtype)),
                    .prepare = {},
                    .on_host = true,
                    .figures = [dtype, quick = selection.quick](Runtime& runtime) {
                      return cost_per_edge(runtime, dtype, quick);
                    }});
  }
  return list;
}

}  // namespace meshgrad::bench
