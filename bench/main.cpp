// SPDX-License-Identifier: Apache-2.0
// meshgrad-bench: times the engine, next to the machine's peaks measured in the same run. A row is
// against the reference first; one that is wrong is not timed.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "bound.h"
#include "machine_peak.h"
#include "report.h"
#include "trace.h"

namespace meshgrad::bench {

std::vector<SizeClass> size_classes(bool quick) {
  const Scale tiny{.period = 31, .copies = 2, .width = 64, .blocks = 2};
  if (quick) return {{"", tiny}};
  return {{"", {.copies = 14}}, {"100k", {.copies = 131}}, {"1M", {.copies = 1312}}};
}

std::vector<DType> timed_types() { return {DType::f32, DType::f16, DType::bf16}; }

std::string row_name(const std::string& family, const SizeClass& size, DType dtype) {
  return fmt::format("kernel/{}{}/{}", family, size.name.empty() ? "" : "/" + size.name, name_of(dtype));
}

std::vector<Benchmark> all_benchmarks(const Selection& selection) {
  std::vector<Benchmark> list = step_benchmarks(selection);
  for (const auto& more :
       {kernel_benchmarks(selection), memory_benchmarks(selection), recompute_benchmarks(selection),
        data_benchmarks(selection), scaling_benchmarks(selection), size_benchmarks(selection),
        partition_benchmarks(selection)})
    list.insert(list.end(), more.begin(), more.end());
  return list;
}

namespace {

constexpr int64_t kQuickFlushBytes = int64_t{1} << 12;
constexpr int kBlockRuns = 20;
constexpr int kBlockPairs = 10;
constexpr int kLeastBlockPairs = 6;  // fewer have no 95 % interval

struct Options {
  std::vector<std::string> patterns;
  std::string json, baseline;
  std::string device = "auto", gpu;
  int threads = 0;
  double seconds = 3.0;
  bool quick = false;
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

/// A mesh that does not fit must end a row, not the machine.
AllocatorOptions allocator_options(Device device) {
  AllocatorOptions options = allocator_options_from_environment();
  if (device.kind == DeviceKind::cpu && options.memory_limit == 0) options.memory_limit = available_memory();
  return options;
}
RuntimeOptions runtime_options(const Options& options, Device device) {
  return {.device = device,
          .threads = options.threads,
          .allocator = allocator_options(device),
          .log = [](LogLevel, std::string_view text) { fmt::print(stderr, "note: {}\n", text); }};
}

/// Checks the result, then fills the inputs for timing. Throws when the result differs from the reference's.
void make_ready(const Workload& work, bool check, Result& result) {
  if (check && work.check) {
    const std::string difference = work.check();
    if (!difference.empty()) throw std::runtime_error("wrong: " + difference);
    result.check = "reference";
  }
  if (work.randomise) work.randomise();
}

/// CPU time of `runs` runs, and the share of the time they were ready to run in which they ran.
void note_cpu(const CpuTime& before, size_t runs, Result& result) {
  const CpuTime after = cpu_time();
  const double ran = after.ran - before.ran, waited = after.waited - before.waited;
  result.cpu_s = ran / static_cast<double>(runs);
  if (after.counted && ran > 0.0) result.cpu_share = ran / (ran + waited);
}

void time_alone(const Workload& work, Runtime& runtime, Timer& timer, const Options& options,
                Result& result) {
  // Warms the allocator, the pages and the code. Times of quick runs mean nothing: one run after the check is
  // enough.
  if (!options.quick || work.warm_runs > 1) timer.run(work.run, work.warm_runs, work.cold);
  runtime.allocator().reset_peak();
  const auto started = [] { return gpu::counters().launches + gpu::counters().graph_launches; };
  const int64_t launches = started();
  std::vector<double> ms = timer.run(work.run, 1, work.cold);
  result.launches = started() - launches;
  const CpuTime cpu_before = cpu_time();
  const auto begin = std::chrono::steady_clock::now();
  const auto enough = [&] {
    if (options.quick) return true;
    return ms.size() > 3 && (seconds_since(begin) >= options.seconds || ms.size() >= 10000);
  };
  while (!enough()) {
    const double fits = options.seconds * 1e3 / 10.0 / std::max(ms.back(), 1e-3);
    const int count = static_cast<int>(std::clamp(fits, 1.0, double{kBlockRuns}));
    const std::vector<double> more = timer.run(work.run, count, work.cold);
    ms.insert(ms.end(), more.begin(), more.end());
  }
  if (!options.quick) ms.erase(ms.begin());  // the one whose launches were counted also set the batch size
  if (!runtime.stream().on_gpu() && !work.cold) note_cpu(cpu_before, ms.size(), result);
  const Interval interval = median_interval(ms);
  result.repeats = static_cast<int>(ms.size());
  result.ms_min = *std::min_element(ms.begin(), ms.end());
  result.ms_max = *std::max_element(ms.begin(), ms.end());
  result.ms = interval.median;
  result.ms_low = interval.low;
  result.ms_high = interval.high;
  result.gflops = work.flops / result.ms / 1e6;
  result.gbytes = work.bytes / result.ms / 1e6;
  const MemoryStats stats = runtime.allocator().stats();
  result.memory_peak_mib = static_cast<double>(stats.allocated.peak) / (1 << 20);
  const StepBytes bytes = work.step_bytes
                              ? work.step_bytes()
                              : StepBytes{stats.by_tag[static_cast<size_t>(Tag::activations)].allocated.peak,
                                          stats.reserved.peak};
  result.activations_mib = mebibytes(bytes.activations);
  result.reserved_mib = mebibytes(bytes.reserved);
  result.offloaded_mib = mebibytes(bytes.offloaded);
}

/// Interleaved blocks of runs of both workloads, so that other load on the machine affects both alike.
Ratio time_interleaved(const Workload& work, const Workload& other, Timer& timer, const Options& options) {
  Ratio ratio{.times = {}, .blocks = 0, .block_runs = options.quick ? 1 : kBlockRuns};
  std::vector<double> ratios;
  timer.run(work.run, work.warm_runs, work.cold);
  timer.run(other.run, other.warm_runs, other.cold);
  const auto begin = std::chrono::steady_clock::now();
  const int most = options.quick ? 1 : kBlockPairs;
  for (int pair = 0; pair < most; ++pair) {
    if (pair >= kLeastBlockPairs && seconds_since(begin) > 10.0 * options.seconds) break;
    const double one = median_interval(timer.run(work.run, ratio.block_runs, work.cold)).median;
    const double two = median_interval(timer.run(other.run, ratio.block_runs, other.cold)).median;
    ratios.push_back(two / one);
  }
  ratio.blocks = static_cast<int>(ratios.size());
  ratio.times = median_interval(ratios);
  return ratio;
}

Result measure(const Benchmark& benchmark, Device device, const Options& options, const MachinePeaks& peaks) {
  Result result{.name = benchmark.name, .description = {}};
  try {
    Runtime runtime(runtime_options(options, device));
    if (benchmark.figures) {
      const Figures figures = benchmark.figures(runtime);
      result.description = figures.description;
      result.figures = figures.values;
      return result;
    }
    const Workload work = benchmark.prepare(runtime);
    result.description = work.description;
    // Both sides of a ratio are rows of their own: quick runs check each of them once.
    const bool check = !options.quick || !benchmark.other;
    make_ready(work, check, result);
    Timer timer(runtime, options.quick ? kQuickFlushBytes : kFlushBytes, benchmark.on_host);
    if (benchmark.other) {
      const Workload other = benchmark.other(runtime);
      make_ready(other, check, result);
      result.ratio = time_interleaved(work, other, timer, options);
      return result;
    }
    // A shared CPU's peak varies with time, so it is measured right before and after the row.
    const bool cpu_peak =
        device.kind == DeviceKind::cpu && benchmark.name.ends_with("/f32") && work.flops > 0.0;
    const double before = cpu_peak ? fma_peak(runtime.threads()) : 0.0;
    time_alone(work, runtime, timer, options, result);
    if (cpu_peak) {
      result.peak_gflops = std::max(before, fma_peak(runtime.threads()));
    } else if (device.kind == DeviceKind::cuda && work.flops > 0.0) {
      result.peak_gflops = peaks.gflops;
    }
    if (result.peak_gflops > 0.0) result.peak_fraction = result.gflops / result.peak_gflops;
    if (work.bytes > 0.0 && !benchmark.on_host && !options.quick) {
      result.copy_gbytes = peaks.gbytes;
      result.copy_fraction = result.gbytes / peaks.gbytes;
    }
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

/// The machine's peaks as rows of their own.
std::vector<Result> peak_rows(const MachinePeaks& y, Device device, const std::string& when) {
  const bool gpu = device.kind == DeviceKind::cuda;
  Result gemm{.name = (gpu ? "peak/gemm_f16/" : "peak/fma_f32/") + when,
              .description = gpu ? "the library's f16 GEMM, 8192^3" : "multiply-adds in registers"};
  gemm.gflops = gemm.peak_gflops = y.gflops;
  Result copy{.name = "peak/copy/" + when, .description = "bytes read and written"};
  copy.gbytes = copy.copy_gbytes = y.gbytes;
  return {gemm, copy};
}

/// The benchmarks that the patterns name, in the order of the patterns, so that a run that is stopped has the
/// rows named first.
std::vector<Benchmark> chosen_benchmarks(const Options& options, Device device, const char* command) {
  std::vector<Benchmark> chosen = all_benchmarks({device.kind, options.quick});
  // A whole name is only that row, though others may end in it.
  std::set<std::string> whole;
  for (const Benchmark& b : chosen) whole.insert(b.name);
  const auto chooses = [&](const std::string& pattern, const Benchmark& b) {
    return whole.contains(pattern) ? b.name == pattern : matches(b.name, pattern);
  };
  for (const std::string& pattern : options.patterns) {
    if (std::any_of(chosen.begin(), chosen.end(), [&](const Benchmark& b) { return chooses(pattern, b); }))
      continue;
    throw invalid_argument(command, "a name, or a part of one", "\"" + pattern + "\"",
                           "see meshgrad-bench list");
  }
  const auto first_pattern = [&](const Benchmark& b) {
    return std::find_if(options.patterns.begin(), options.patterns.end(),
                        [&](const std::string& pattern) { return chooses(pattern, b); });
  };
  std::erase_if(chosen, [&](const Benchmark& b) { return first_pattern(b) == options.patterns.end(); });
  std::stable_sort(chosen.begin(), chosen.end(), [&](const Benchmark& a, const Benchmark& b) {
    return first_pattern(a) < first_pattern(b);
  });
  return chosen;
}

int trace(const Options& options, Device device) {
  std::vector<Trace> traces;
  for (const Benchmark& benchmark : chosen_benchmarks(options, device, "meshgrad-bench trace")) {
    Runtime runtime(runtime_options(options, device));
    traces.push_back(trace_launches(benchmark, runtime, options.quick));
    fmt::print("{}\n", to_text(traces.back()));
    std::fflush(stdout);
    if (!options.json.empty()) write_traces(traces, options.json);
  }
  return 0;
}

int bound(const Options& options) {
  const gpu::Card& card = gpu::card(options.gpu);
  std::vector<Bound> bounds;
  for (const Benchmark& benchmark :
       chosen_benchmarks(options, {DeviceKind::cuda, 0}, "meshgrad-bench bound")) {
    bounds.push_back(bound_of(benchmark, card));
    fmt::print("{}\n", to_text(bounds.back()));
  }
  if (!options.json.empty()) write_bounds(bounds, options.json);
  return 0;
}

int run(const Options& options, Device device) {
  const std::vector<Benchmark> chosen = chosen_benchmarks(options, device, "meshgrad-bench run");
  const std::string device_name =
      device.kind == DeviceKind::cpu ? "cpu" : cuda_devices().at(static_cast<size_t>(device.index)).name;
  const bool with_peaks =
      std::any_of(chosen.begin(), chosen.end(), [](const Benchmark& b) { return !b.on_host; });
  std::vector<Result> results;
  const int threads = options.threads > 0 ? options.threads : available_cpus();
  const auto add = [&](Result result) {
    result.device = device_name;
    result.threads = threads;
    print_row(result);
    results.push_back(std::move(result));
    if (!options.json.empty()) write_json(results, options.json);  // a run that is stopped leaves what it has
  };
  MachinePeaks peaks;
  const auto measure_again = [&](const std::string& when) {
    if (!with_peaks) return;
    RuntimeOptions best = runtime_options(options, device);
    best.autotune = !options.quick;  // the best that the library has
    Runtime runtime(best);
    peaks = measure_machine_peaks(runtime, options.quick);
    for (const Result& row : peak_rows(peaks, device, when)) add(row);
  };
  print_header();
  measure_again("before");
  for (const Benchmark& benchmark : chosen) add(measure(benchmark, device, options, peaks));
  measure_again("after");
  const auto failed =
      std::count_if(results.begin(), results.end(), [](const Result& r) { return !r.error.empty(); });
  const int slower = options.baseline.empty() ? 0 : compare(results, options.baseline);
  return failed > 0 || slower > 0 ? 1 : 0;
}

/// The CPU's multiply-add rate at this moment, to put other measurements in proportion.
int peak(const Options& options) {
  meshgrad::Runtime runtime({.device = {}, .threads = options.threads});
  fmt::print("{:.1f} GFLOP/s, multiply-adds in f32 on {} threads\n", fma_peak(runtime.threads()),
             runtime.threads().threads());
  return 0;
}

}  // namespace
}  // namespace meshgrad::bench

int main(int argc, char** argv) {
  using namespace meshgrad::bench;
  CLI::App app(
      "Times kernels and whole steps; FLOPs are those of the matrix multiplications in the split form");
  app.name("meshgrad-bench");
  app.set_version_flag("--version", "meshgrad-bench " MESHGRAD_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  Options options;
  CLI::App* list = app.add_subcommand("list", "Names of all benchmarks of a device");
  CLI::App* run_command = app.add_subcommand(
      "run", "Run the benchmark named PATTERN, or those whose name contains it (* is a wildcard)");
  CLI::App* trace_command =
      app.add_subcommand("trace", "The time of each kernel of a run, by events around each launch; GPU only");
  CLI::App* bound_command = app.add_subcommand(
      "bound", "The least time of each kernel of a run at a GPU's stated peaks, which need not be there");
  bound_command->add_option("--gpu", options.gpu, "See meshgrad plan --help")
      ->required()
      ->check(meshgrad::cli::one_of(meshgrad::gpu::card_names()));
  for (CLI::App* command : {list, run_command, trace_command})
    command->add_option("--device", options.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  for (CLI::App* command : {run_command, trace_command, bound_command}) {
    command->add_option("PATTERN", options.patterns, "A name or part of one, or several")->required();
    command->add_option("--json", options.json, "Also write the rows to this file")->type_name("FILE");
    command->add_flag("--quick", options.quick, "Tiny sizes, few repeats: does everything run?");
  }
  run_command
      ->add_option("--baseline", options.baseline,
                   "Rows of an earlier run to compare with; exits 1 when slower")
      ->type_name("FILE");
  CLI::App* peak_command = app.add_subcommand("peak", "The CPU's multiply-adds a second, at this moment");
  for (CLI::App* command : {run_command, peak_command})
    command->add_option("--threads", options.threads, "CPU threads, 0 for all")
        ->check(meshgrad::cli::whole_number(0, 4096));
  run_command->add_option("--seconds", options.seconds, "Time to spend on each row")
      ->check(meshgrad::cli::positive_number());
  try {
    app.parse(argc, argv);
    if (*peak_command) return peak(options);
    if (*bound_command) return bound(options);
    const meshgrad::Device device = meshgrad::resolve_device(options.device, nullptr, "--device");
    if (*list) {
      for (const Benchmark& benchmark : all_benchmarks({device.kind, false}))
        fmt::print("{}\n", benchmark.name);
      return 0;
    }
    return *trace_command ? trace(options, device) : run(options, device);
  } catch (const CLI::Success& asked) {
    if (dynamic_cast<const CLI::CallForHelp*>(&asked) == nullptr) return app.exit(asked);  // version
    fmt::print("{}", meshgrad::fitted(app.help(), meshgrad::kTextWidth));
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words(argv + 1, argv + std::max(argc, 1));
    if (words.empty()) {
      fmt::print("{}", meshgrad::fitted(app.help(), meshgrad::kTextWidth));
    } else {
      std::fprintf(stderr, "meshgrad-bench: error: %s\n",
                   meshgrad::cli::usage_error(app, words, error).c_str());
    }
    return 2;
  } catch (const meshgrad::DeviceError& error) {
    std::fprintf(stderr, "meshgrad-bench: error: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "meshgrad-bench: error: %s\n", error.what());
    return 2;
  }
}
