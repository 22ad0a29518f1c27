// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <meshgrad/engine/error.h>

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace meshgrad::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string share(double fraction) {
  return fraction > 0.0 ? fmt::format("{:.0f} %", 100.0 * fraction) : "-";
}

Json to_json(const Result& r) {
  Json row = {{"name", r.name}, {"description", r.description}, {"device", r.device}, {"threads", r.threads}};
  if (!r.error.empty()) {
    row["error"] = r.error;
    return row;
  }
  if (!r.figures.empty()) {
    for (const auto& [name, value] : r.figures) row[name] = value;
    return row;
  }
  row["check"] = r.check;
  if (r.ratio) {
    row.update({{"ratio", r.ratio->times.median},
                {"ratio_low", r.ratio->times.low},
                {"ratio_high", r.ratio->times.high},
                {"ratio_coverage", r.ratio->times.coverage},
                {"blocks", r.ratio->blocks},
                {"block_runs", r.ratio->block_runs}});
    return row;
  }
  row.update({{"repeats", r.repeats},
              {"ms", r.ms},
              {"ms_min", r.ms_min},
              {"ms_max", r.ms_max},
              {"ms_low", r.ms_low},
              {"ms_high", r.ms_high},
              {"gflops", r.gflops},
              {"gbytes_per_s", r.gbytes},
              {"peak_gflops", r.peak_gflops},
              {"peak_fraction", r.peak_fraction},
              {"copy_gbytes_per_s", r.copy_gbytes},
              {"copy_fraction", r.copy_fraction},
              {"cpu_s", r.cpu_s},
              {"cpu_share", r.cpu_share},
              {"memory_peak_mib", r.memory_peak_mib},
              {"activations_peak_mib", r.activations_mib},
              {"reserved_peak_mib", r.reserved_mib},
              {"offloaded_peak_mib", r.offloaded_mib},
              {"launches", r.launches}});
  return row;
}

/// The rows of a file: the array that --json writes, or the same under "rows".
Json read_rows(const std::string& path) {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  const Json rows = json.is_object() ? json.value("rows", Json()) : json;
  if (!rows.is_array()) {
    throw data_error(path, "rows that meshgrad-bench wrote", file ? "text that is not such JSON" : "no file",
                     "write one with --json");
  }
  return rows;
}

}  // namespace

namespace {

constexpr size_t kNameColumns = 28;

/// The name in its column, or on a line of its own when it is longer.
std::string name_column(const std::string& name) {
  if (name.size() < kNameColumns) return fmt::format("{:<{}}", name, kNameColumns);
  return fmt::format("{}\n{:<{}}", name, "", kNameColumns);
}

}  // namespace

void print_header() {
  fmt::print("{:<{}}{:>10}{:>8}{:>8}{:>6}{:>8}{:>5}{:>7}\n", "name", kNameColumns, "ms", "GFLOP/s", "of peak",
             "GB/s", "of copy", "runs", "MiB");
}

void print_row(const Result& r) {
  if (!r.error.empty()) {
    fmt::print("{} {}\n", r.name, r.error);
  } else if (!r.figures.empty()) {
    fmt::print("{}: {}\n", r.name, r.description);
    for (const auto& [name, value] : r.figures) fmt::print("  {:<40}{:>14.6g}\n", name, value);
  } else if (r.ratio) {
    fmt::print("{}{:.3f} times [{:.3f}, {:.3f}], {} pairs of {}\n", name_column(r.name),
               r.ratio->times.median, r.ratio->times.low, r.ratio->times.high, r.ratio->blocks,
               r.ratio->block_runs);
  } else {
    fmt::print("{}{:>10.4f}{:>8.1f}{:>8}{:>6}{:>8}{:>5}{:>7.1f}\n", name_column(r.name), r.ms, r.gflops,
               share(r.peak_fraction), r.gbytes > 0.0 ? fmt::format("{:.0f}", r.gbytes) : "-",
               share(r.copy_fraction), r.repeats, r.memory_peak_mib);
  }
  std::fflush(stdout);
}

void write_json(const std::vector<Result>& results, const std::string& path) {
  Json rows = Json::array();
  for (const Result& result : results) rows.push_back(to_json(result));
  std::ofstream file(path);
  file << rows.dump(1) << "\n";
  file.flush();
  if (!file)
    throw data_error(path, "a file that can be written", "an error", "name a file in a folder that exists");
}

int compare(const std::vector<Result>& results, const std::string& baseline) {
  const Json rows = read_rows(baseline);
  int slower = 0, compared = 0;
  fmt::print("\n{:<44}{:>11}{:>11}{:>9}\n", "beside " + baseline, "ms before", "ms now", "ratio");
  for (const Result& now : results) {
    for (const Json& before : rows) {
      if (before.value("name", "") != now.name || !before.contains("ms") || now.ms <= 0.0) continue;
      const bool same = before.value("description", now.description) == now.description &&
                        before.value("device", now.device) == now.device &&
                        before.value("threads", now.threads) == now.threads;
      const double ms = before["ms"].get<double>();
      const double ratio = now.ms / ms;
      const bool apart = now.ms_low > before.value("ms_high", before.value("ms_max", ms));
      const bool worse = same && ratio > kSlower && apart;
      fmt::print("{:<44}{:>11.4f}{:>11.4f}{:>9.3f}{}\n", now.name, ms, now.ms, ratio,
                 !same   ? "  another size, device or number of threads"
                 : worse ? "  slower"
                         : "");
      ++compared;
      slower += worse ? 1 : 0;
      break;
    }
  }
  if (compared == 0)
    throw data_error(baseline, "a row of this run", "none", "compare runs of the same pattern");
  fmt::print("{} of {} rows are slower (more than {:.2f} times, and the intervals apart)\n", slower, compared,
             kSlower);
  return slower;
}

}  // namespace meshgrad::bench
