// SPDX-License-Identifier: Apache-2.0
// meshgrad-bench: times what the engine does, beside a yardstick measured in the same run.
#include "benchmark.h"

#include <meshgrad/engine/error.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace meshgrad::bench {

std::vector<Benchmark> all_benchmarks() {
  std::vector<Benchmark> list = step_benchmarks();
  for (const std::vector<Benchmark>& more : {family_benchmarks(), memory_benchmarks()})
    list.insert(list.end(), more.begin(), more.end());
  return list;
}

namespace {

struct Options {
  std::string pattern;
  std::string json;
  int threads = 0;
  double seconds = 3.0;
};

/// A pattern is a part of the name; `*` stands for anything.
bool matches(const std::string& name, const std::string& pattern) {
  size_t position = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const std::string part = pattern.substr(begin, end - begin);
    const size_t found = name.find(part, position);
    if (found == std::string::npos) return false;
    position = found + part.size();
    begin = end + 1;
  }
  return true;
}

Result measure(const Benchmark& benchmark, const Options& options) {
  Runtime runtime(
      {.device = {}, .threads = options.threads, .allocator = allocator_options_from_environment()});
  const Workload work = benchmark.prepare(runtime);
  const bool f32 = benchmark.name.ends_with("/f32");
  const double peak_before = f32 && work.flops > 0.0 ? fma_peak(runtime.threads()) : 0.0;
  work.run();  // warms caches, the allocator and the pages
  runtime.allocator().reset_peak();
  std::vector<double> ms;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  while (ms.size() < 3 || (elapsed(begin) < options.seconds && ms.size() < 10000)) {
    const auto start = std::chrono::steady_clock::now();
    work.run();
    ms.push_back(1e3 * elapsed(start));
  }
  const double peak = f32 && work.flops > 0.0 ? std::max(peak_before, fma_peak(runtime.threads())) : 0.0;
  std::sort(ms.begin(), ms.end());
  Result result{.name = benchmark.name, .description = work.description};
  result.threads = runtime.threads().threads();
  result.repeats = static_cast<int>(ms.size());
  result.ms_min = ms.front();
  result.ms = ms[ms.size() / 2];
  result.ms_max = ms.back();
  result.gflops = work.flops / result.ms / 1e6;
  result.gbytes = work.bytes / result.ms / 1e6;
  result.peak_gflops = peak;
  result.peak_fraction = peak > 0.0 ? result.gflops / peak : 0.0;
  result.memory_peak_mib = static_cast<double>(runtime.allocator().stats().allocated.peak) / (1 << 20);
  return result;
}

void write_json(const std::vector<Result>& results, const std::string& path) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Result& r : results) {
    rows.push_back({{"name", r.name},
                    {"description", r.description},
                    {"threads", r.threads},
                    {"repeats", r.repeats},
                    {"ms", r.ms},
                    {"ms_min", r.ms_min},
                    {"ms_max", r.ms_max},
                    {"gflops", r.gflops},
                    {"gbytes_per_s", r.gbytes},
                    {"peak_gflops", r.peak_gflops},
                    {"peak_fraction", r.peak_fraction},
                    {"memory_peak_mib", r.memory_peak_mib}});
  }
  std::ofstream file(path);
  file << rows.dump(2) << "\n";
  if (!file)
    throw meshgrad::data_error(path, "a file that can be written", "an error",
                               "name a file in a folder that exists");
}

int run(const Options& options) {
  std::vector<Result> results;
  fmt::print("{:<36}{:>9}{:>11}{:>11}{:>10}{:>9}{:>9}{:>10}\n", "name", "threads", "ms median", "ms min",
             "GFLOP/s", "of peak", "GB/s", "peak MiB");
  for (const Benchmark& benchmark : all_benchmarks()) {
    if (!matches(benchmark.name, options.pattern)) continue;
    const Result r = measure(benchmark, options);
    fmt::print("{:<36}{:>9}{:>11.3f}{:>11.3f}{:>10.1f}{:>9}{:>9}{:>10.1f}\n", r.name, r.threads, r.ms,
               r.ms_min, r.gflops,
               r.peak_fraction > 0.0 ? fmt::format("{:.0f} %", 100.0 * r.peak_fraction) : "-",
               r.gbytes > 0.0 ? fmt::format("{:.1f}", r.gbytes) : "-", r.memory_peak_mib);
    std::fflush(stdout);
    results.push_back(r);
  }
  if (results.empty()) {
    throw meshgrad::invalid_argument("meshgrad-bench run", "a pattern that a name contains",
                                     "\"" + options.pattern + "\"", "see meshgrad-bench list");
  }
  if (!options.json.empty()) write_json(results, options.json);
  return 0;
}

}  // namespace
}  // namespace meshgrad::bench

int main(int argc, char** argv) {
  using namespace meshgrad::bench;
  CLI::App app("Times kernels and whole steps; FLOPs are those of the matrix products in the split form");
  app.require_subcommand(1);
  CLI::App* list = app.add_subcommand("list", "Names of all benchmarks");
  CLI::App* run_command =
      app.add_subcommand("run", "Run the benchmarks whose name contains PATTERN (* is a wildcard)");
  Options options;
  run_command->add_option("PATTERN", options.pattern, "Part of a name")->required();
  run_command->add_option("--json", options.json, "Also write the rows to this file")->type_name("FILE");
  run_command->add_option("--threads", options.threads, "CPU threads, 0 for all")->check(CLI::Range(0, 4096));
  run_command->add_option("--seconds", options.seconds, "Time to spend on each row")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
    if (*list) {
      for (const Benchmark& benchmark : all_benchmarks()) fmt::print("{}\n", benchmark.name);
      return 0;
    }
    return run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "meshgrad-bench: error: %s\n", error.what());
    return 2;
  }
}
