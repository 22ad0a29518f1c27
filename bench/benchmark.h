// SPDX-License-Identifier: Apache-2.0
// What a benchmark is: a named piece of work that counts its own FLOPs and bytes.
#pragma once
#include <meshgrad/engine/runtime.h>

#include <functional>
#include <string>
#include <vector>

namespace meshgrad::bench {

/// A prepared workload. `run` does it once.
struct Workload {
  std::function<void()> run;
  double flops = 0.0;       ///< useful floating-point operations of one run (a multiply-add counts two)
  double bytes = 0.0;       ///< bytes that one run must read and write at least; 0: not counted
  std::string description;  ///< sizes, for people
};

struct Benchmark {
  std::string name;  ///< "step/train/f32"
  std::function<Workload(Runtime&)> prepare;
};

/// One measured row.
struct Result {
  std::string name, description;
  int threads = 0;
  int repeats = 0;
  double ms_min = 0.0, ms = 0.0, ms_max = 0.0;  ///< ms is the median
  double gflops = 0.0;                          ///< at the median
  double gbytes = 0.0;                          ///< GB/s at the median
  double peak_gflops =
      0.0;  ///< fused multiply-adds of this machine, measured around this row; 0: not f32 or f64
  double peak_fraction = 0.0;    ///< gflops / peak_gflops
  double memory_peak_mib = 0.0;  ///< allocator's peak of all tags
};

/// All benchmarks of this program, in the order of `list`.
std::vector<Benchmark> all_benchmarks();
std::vector<Benchmark> step_benchmarks();
std::vector<Benchmark> family_benchmarks();
std::vector<Benchmark> memory_benchmarks();

/// FMA throughput of `threads` threads in f32, GFLOP/s, best of a few short bursts.
double fma_peak(ThreadPool& pool);

}  // namespace meshgrad::bench
