// SPDX-License-Identifier: Apache-2.0
// What a benchmark is: a named piece of work that counts its own FLOPs and bytes, and says whether its
// results are right before they are timed.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace meshgrad::bench {

/// How large the work of a row is. Inputs repeat every `period` nodes, so that the judge answers for all rows
/// (see inputs.h).
struct Scale {
  int64_t period = 127;
  int64_t copies = 14;
  int64_t width = 128;
  int64_t blocks = 15;
  bool square = false;  ///< the period is a square with borders, and there is one copy
  int64_t side() const { return std::lround(std::sqrt(static_cast<double>(square ? period : nodes()))); }
  int64_t nodes() const { return period * copies; }
  int64_t edges() const { return copies * base_edges(); }
  int64_t base_edges() const {
    return square ? 2 * (2 * side() * (side() - 1) + (side() - 1) * (side() - 1)) : 6 * period;
  }
};

/// The size classes, with their part of a row's name: the standard step of 11k edges has none.
struct SizeClass {
  std::string name;
  Scale scale;
};
/// `quick`: one tiny class, for a look at whether everything runs.
std::vector<SizeClass> size_classes(bool quick);

/// What a step takes, at most.
struct StepBytes {
  int64_t activations = 0;  ///< requested for what is kept, and for what is computed again, together
  int64_t reserved = 0;     ///< mapped, with all else that the step needs
  int64_t offloaded = 0;    ///< that wait elsewhere
};

/// A prepared workload. `run` does it once.
struct Workload {
  std::function<void()> run;
  double flops = 0.0;       ///< useful floating-point operations of one run (a multiply-add counts two)
  double bytes = 0.0;       ///< bytes that one run must read and write at least; 0: not counted
  int warm_runs = 1;        ///< before anything is timed
  std::string description;  ///< sizes, for people
  bool cold = false;        ///< one kernel: what it reads is not left in the cache by the run before
  std::function<std::string()>
      check;  ///< runs, and tells how the result differs from the judge's; none: nothing to judge
  std::function<void()> randomise;  ///< fills the inputs for the timing, after the check
  /// Of a run of its own; none: what the allocator counted while it was timed, of activations alone.
  std::function<StepBytes()> step_bytes{};
};

/// What a row reports that is no timing of one workload: names as in docs/benchmarks.md, with their values.
struct Figures {
  std::string description;
  std::vector<std::pair<std::string, double>> values;
};

/// One row. Those with an `other` time two workloads in turns and report how many times longer it takes.
struct Benchmark {
  std::string name;  ///< "step/train/f32"
  std::function<Workload(Runtime&)> prepare;
  std::function<Workload(Runtime&)> other{};
  bool on_host = false;  ///< work of the host's alone: timed by its clock, beside no yardstick
  std::function<Figures(Runtime&)> figures{};  ///< measures by itself, instead of `prepare`
};

/// What a list of benchmarks is made for.
struct Selection {
  DeviceKind device = DeviceKind::cpu;
  bool quick = false;
};

/// All benchmarks of this program, in the order of `list`.
std::vector<Benchmark> all_benchmarks(const Selection& selection);
std::vector<Benchmark> step_benchmarks(const Selection& selection);
/// One call of each kernel. Throws InternalError when one has no row.
std::vector<Benchmark> kernel_benchmarks(const Selection& selection);
std::vector<Benchmark> memory_benchmarks(const Selection& selection);
std::vector<Benchmark> recompute_benchmarks(const Selection& selection);
std::vector<Benchmark> data_benchmarks(const Selection& selection);
std::vector<Benchmark> scaling_benchmarks(const Selection& selection);
std::vector<Benchmark> size_benchmarks(const Selection& selection);

/// The storage types that a device's kernels have and that are worth a row.
std::vector<DType> timed_types();

/// "kernel/FAMILY[/SIZE]/DTYPE"
std::string row_name(const std::string& family, const SizeClass& size, DType dtype);

}  // namespace meshgrad::bench
