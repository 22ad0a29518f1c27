// SPDX-License-Identifier: Apache-2.0
// What a benchmark is: a named piece of work that counts its own FLOPs and bytes, and says whether its
// results are right before they are timed.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <functional>
#include <string>
#include <vector>

namespace meshgrad::bench {

/// How large the work of a row is. Inputs repeat every `period` nodes, so that the judge answers for all rows
/// (see inputs.h).
struct Scale {
  int64_t period = 127;
  int64_t copies = 14;
  int64_t width = 128;
  int64_t blocks = 15;
  int64_t nodes() const { return period * copies; }
  int64_t edges() const { return 6 * nodes(); }
};

/// The size classes, with their part of a row's name: the standard step of 11k edges has none.
struct SizeClass {
  std::string name;
  Scale scale;
};
/// `quick`: one tiny class, for a look at whether everything runs.
std::vector<SizeClass> size_classes(bool quick);

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
  /// The peak of activations and of what is computed again, together; none: of activations alone.
  std::function<int64_t()> activation_bytes{};
};

/// One row. Those with an `other` time two workloads in turns and report how many times longer it takes.
struct Benchmark {
  std::string name;  ///< "step/train/f32"
  std::function<Workload(Runtime&)> prepare;
  std::function<Workload(Runtime&)> other{};
  bool on_host = false;  ///< work of the host's alone: timed by its clock, beside no yardstick
};

/// What a list of benchmarks is made for.
struct Selection {
  DeviceKind device = DeviceKind::cpu;
  bool quick = false;
};

/// All benchmarks of this program, in the order of `list`.
std::vector<Benchmark> all_benchmarks(const Selection& selection);
std::vector<Benchmark> step_benchmarks(const Selection& selection);
std::vector<Benchmark> matrix_benchmarks(const Selection& selection);
std::vector<Benchmark> row_benchmarks(const Selection& selection);
std::vector<Benchmark> memory_benchmarks(const Selection& selection);
std::vector<Benchmark> recompute_benchmarks(const Selection& selection);

/// The storage types that a device's kernels have and that are worth a row.
std::vector<DType> timed_types(DeviceKind device);

/// "kernel/FAMILY[/SIZE]/DTYPE"
std::string row_name(const std::string& family, const SizeClass& size, DType dtype);

}  // namespace meshgrad::bench
