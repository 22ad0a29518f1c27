// SPDX-License-Identifier: Apache-2.0
// Rows as people and scripts read them, and beside those of an earlier run.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "timing.h"

namespace meshgrad::bench {

/// How many times longer one workload takes than another, timed in alternating blocks.
struct Ratio {
  Interval times;      ///< of the ratios of neighbouring blocks' medians
  int blocks = 0;      ///< of each of the two
  int block_runs = 0;  ///< runs in a block
};

/// One measured row.
struct Result {
  std::string name, description;
  std::string device;  ///< "cpu", or the GPU's name
  int threads = 0;
  int repeats = 0;
  double ms_min = 0.0, ms = 0.0, ms_max = 0.0;  ///< ms is the median
  double ms_low = 0.0, ms_high = 0.0;           ///< its 95 % interval (timing.h)
  double gflops = 0.0;                          ///< at the median
  double gbytes = 0.0;                          ///< GB/s at the median
  double peak_gflops = 0.0;      ///< the arithmetic yardstick of this run; 0: none that compares
  double peak_fraction = 0.0;    ///< gflops / peak_gflops
  double copy_gbytes = 0.0;      ///< the copy yardstick of this run
  double copy_fraction = 0.0;    ///< gbytes / copy_gbytes
  double cpu_s = 0.0;            ///< CPU seconds of a run, of all threads; work of the CPU's that is not cold
  double cpu_share = 0.0;        ///< of the CPU time that its threads asked for; 0: not counted
  double memory_peak_mib = 0.0;  ///< allocator's peak of all tags
  double activations_mib = 0.0;  ///< peak of activations, and of what is computed again (memory/recompute)
  double reserved_mib = 0.0;     ///< the most that was mapped
  double offloaded_mib = 0.0;    ///< that waited outside of the device's memory
  int64_t launches = 0;          ///< kernels and replays that one run starts, on a GPU
  std::string check;  ///< "judge": equal to the judge's result before it was timed; "" : nothing to judge
  std::optional<Ratio> ratio;
  std::vector<std::pair<std::string, double>> figures;  ///< of a row that measures by itself; else empty
  std::string error;                                    ///< why there are no figures
};

void print_header();
void print_row(const Result& result);

/// Throws DataError when the file cannot be written.
void write_json(const std::vector<Result>& results, const std::string& path);

/// A row is slower when its median is more than this many times the earlier one's, and the two intervals of
/// the medians do not touch.
inline constexpr double kSlower = 1.10;

/// Prints every row that both runs have, with the ratio of the medians; returns how many are slower. Rows of
/// another description or device are no comparison, and are said to be so. Throws DataError for a file that
/// holds no rows.
int compare(const std::vector<Result>& results, const std::string& baseline);

}  // namespace meshgrad::bench
