// SPDX-License-Identifier: Apache-2.0
// A benchmark: a named workload that counts its FLOPs and bytes, and whose results are checked before it is
// timed.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace meshgrad::bench {

/// The size of a row's workload. Inputs repeat every `period` nodes, so that the slow reference
/// implementation can check rows of any size (see inputs.h).
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

/// A size class and its part of a row's name, which is empty for the standard step of 11k edges.
struct SizeClass {
  std::string name;
  Scale scale;
};
/// `quick`: one tiny class, to see whether everything runs.
std::vector<SizeClass> size_classes(bool quick);

/// Peak memory of a step.
struct StepBytes {
  int64_t activations = 0;  ///< requested for saved and recomputed activations together
  int64_t reserved = 0;     ///< reserved from the system, for all that the step needs
  int64_t offloaded = 0;    ///< moved to host memory or a file
};

/// A prepared workload. `run` runs it once.
struct Workload {
  std::function<void()> run;
  /// Of a kernel its work (kernels/work.h). Of a step the FLOPs that a model's forward and backward need,
  /// without recomputation; its bytes are 0: not counted.
  double flops = 0.0, bytes = 0.0;
  int warm_runs = 1;                   ///< untimed runs before the first timed one
  std::string description;             ///< sizes, for the reader
  bool cold = false;                   ///< a single kernel: caches are flushed before each run
  std::function<std::string()> check;  ///< runs once; empty, or how the result differs from the reference's
  std::function<void()> randomise;  ///< fills the inputs with random values for the timing, after the check
  /// Measured in a separate run. Unset: the allocator's peaks of the timed runs.
  std::function<StepBytes()> step_bytes{};
};

/// Figures of a row other than the time of one workload: names as in docs/benchmarks.md, with their values.
struct Figures {
  std::string description;
  std::vector<std::pair<std::string, double>> values;
};

/// One row. With `other`, two workloads are timed interleaved, and the row reports other / prepare.
struct Benchmark {
  std::string name;  ///< "step/train/f32"
  std::function<Workload(Runtime&)> prepare;
  std::function<Workload(Runtime&)> other{};
  bool on_host = false;  ///< only work of the host: timed by its clock, with no measured peak to compare with
  std::function<Figures(Runtime&)> figures{};  ///< measures by itself, instead of `prepare`
};

/// The options that decide which benchmarks there are.
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
std::vector<Benchmark> partition_benchmarks(const Selection& selection);

/// The storage types that get a row each.
std::vector<DType> timed_types();

/// "kernel/FAMILY[/SIZE]/DTYPE"
std::string row_name(const std::string& family, const SizeClass& size, DType dtype);

}  // namespace meshgrad::bench
