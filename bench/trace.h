// SPDX-License-Identifier: Apache-2.0
// meshgrad-bench trace: the time of each launch of a step, by events around it (engine/launch_trace.h).
#pragma once
#include <string>
#include <vector>

#include "benchmark.h"

namespace meshgrad::bench {

/// The launches of one kernel in one run.
struct TracedKernel {
  std::string name;
  int64_t launches = 0;
  double ms = 0.0;  ///< all of them together; the median over the runs
};

struct Trace {
  std::string name, description;  ///< of the benchmark
  int runs = 0;
  double run_ms = 0.0;                ///< of a run without events, the median
  std::vector<TracedKernel> kernels;  ///< the longest first
  double traced_ms() const;           ///< of all kernels; less than run_ms by the gaps between launches
};

/// Checks nothing: `run` rows do. Throws InvalidArgument for a workload that launches nothing of its own,
/// such as a captured step.
Trace trace_launches(const Benchmark& benchmark, Runtime& runtime, bool quick);

/// A table, one line per kernel.
std::string to_text(const Trace& trace);
/// Throws DataError when the file cannot be written.
void write_traces(const std::vector<Trace>& traces, const std::string& path);

}  // namespace meshgrad::bench
