// SPDX-License-Identifier: Apache-2.0
// meshgrad-bench bound: the least time of each benchmark on a GPU that need not be there, from the work of
// its kernel calls (kernels/work.h) in a dry run.
#pragma once
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/kernels/work.h>

#include <string>
#include <vector>

#include "benchmark.h"

namespace meshgrad::bench {

/// The calls of one kernel in one run.
struct BoundKernel {
  std::string name;
  int64_t calls = 0;
  Work work;        ///< of all of them
  double ms = 0.0;  ///< at least, all of them
};

struct Bound {
  std::string name, description;  ///< of the benchmark
  std::string gpu;                ///< whose stated peaks these are
  double ms = 0.0;                ///< at least
  std::vector<BoundKernel> kernels;
};

/// Throws InvalidArgument for a benchmark that is no workload of one storage type.
Bound bound_of(const Benchmark& benchmark, const gpu::Card& card);

/// A table, one line per kernel.
std::string to_text(const Bound& bound);
/// Throws DataError when the file cannot be written.
void write_bounds(const std::vector<Bound>& bounds, const std::string& path);

}  // namespace meshgrad::bench
