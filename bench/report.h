// SPDX-License-Identifier: Apache-2.0
// Rows as a table and as JSON, and their comparison with an earlier run.
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
  double peak_gflops = 0.0;      ///< arithmetic peak measured in this run; 0: none that compares
  double peak_fraction = 0.0;    ///< gflops / peak_gflops
  double copy_gbytes = 0.0;      ///< copy bandwidth measured in this run
  double copy_fraction = 0.0;    ///< gbytes / copy_gbytes
  double cpu_s = 0.0;            ///< CPU seconds of a run, of all threads; on the CPU, without flushed caches
  double cpu_share = 0.0;        ///< of the CPU time that its threads asked for; 0: not counted
  double memory_peak_mib = 0.0;  ///< allocator's peak of all tags
  double activations_mib = 0.0;  ///< peak of activations, and of recomputed ones (memory/recompute)
  double reserved_mib = 0.0;     ///< peak of reserved memory
  double offloaded_mib = 0.0;    ///< moved out of device memory
  int64_t launches = 0;          ///< kernel and graph launches of one run, on a GPU
  std::string check;  ///< "reference": equal to the reference's result before it was timed; "": not checked
  std::optional<Ratio> ratio;
  std::vector<std::pair<std::string, double>> figures;  ///< of a row that measures by itself; else empty
  std::string error;                                    ///< why there are no figures; empty otherwise
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
