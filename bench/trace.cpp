// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/launch_trace.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "timing.h"

namespace meshgrad::bench {
namespace {

constexpr int kTracedRuns = 5;

using Times = std::map<std::string, std::vector<double>>;  // by kernel, of each run

}  // namespace

double Trace::traced_ms() const {
  double sum = 0.0;
  for (const TracedKernel& kernel : kernels) sum += kernel.ms;
  return sum;
}

Trace trace_launches(const Benchmark& benchmark, Runtime& runtime, bool quick) {
  if (!benchmark.prepare || !runtime.stream().on_gpu())
    throw invalid_argument("meshgrad-bench trace", "a workload on a GPU", benchmark.name,
                           "trace a step/ row");
  const Workload work = benchmark.prepare(runtime);
  if (work.randomise) work.randomise();
  Trace trace{.name = benchmark.name, .description = work.description, .runs = quick ? 1 : kTracedRuns};
  Timer timer(runtime, 1);
  timer.run(work.run, std::max(work.warm_runs, quick ? 1 : 2), false);
  trace.run_ms = median_interval(timer.run(work.run, trace.runs, false)).median;
  Times times;
  std::map<std::string, int64_t> counts;
  LaunchTrace launches(runtime.stream());
  for (int run = 0; run < trace.runs; ++run) {
    work.run();
    for (const LaunchTrace::Launch& launch : launches.take()) {
      std::vector<double>& of_runs = times[launch.name];
      of_runs.resize(static_cast<size_t>(trace.runs));
      of_runs[static_cast<size_t>(run)] += launch.ms;
      if (run == 0) ++counts[launch.name];
    }
  }
  for (const auto& [name, of_runs] : times)
    trace.kernels.push_back({name, counts[name], median_interval(of_runs).median});
  if (trace.kernels.empty())
    throw invalid_argument("meshgrad-bench trace", "a workload that launches kernels", benchmark.name,
                           "a captured step is one launch: trace the step that is not captured");
  std::stable_sort(trace.kernels.begin(), trace.kernels.end(),
                   [](const TracedKernel& a, const TracedKernel& b) { return a.ms > b.ms; });
  return trace;
}

std::string to_text(const Trace& trace) {
  std::string text = fmt::format("{}: {}\n  {:<30} {:>8} {:>10} {:>10} {:>7}\n", trace.name,
                                 trace.description, "kernel", "launches", "ms", "us each", "share");
  const double all = trace.traced_ms();
  for (const TracedKernel& kernel : trace.kernels) {
    text += fmt::format("  {:<30} {:>8} {:>10.3f} {:>10.1f} {:>5.1f} %\n", kernel.name, kernel.launches,
                        kernel.ms, 1e3 * kernel.ms / static_cast<double>(kernel.launches),
                        all > 0.0 ? 100.0 * kernel.ms / all : 0.0);
  }
  return text +
         fmt::format("  {:.3f} ms in launches; a run without events takes {:.3f} ms\n", all, trace.run_ms);
}

void write_traces(const std::vector<Trace>& traces, const std::string& path) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Trace& trace : traces) {
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    for (const TracedKernel& kernel : trace.kernels)
      kernels.push_back({{"name", kernel.name}, {"launches", kernel.launches}, {"ms", kernel.ms}});
    list.push_back({{"name", "trace/" + trace.name},
                    {"description", trace.description},
                    {"runs", trace.runs},
                    {"run_ms", trace.run_ms},
                    {"traced_ms", trace.traced_ms()},
                    {"kernels", kernels}});
  }
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  if (!file.flush()) throw data_error(path, "a file that can be written", "none", "choose another --json");
}

}  // namespace meshgrad::bench
