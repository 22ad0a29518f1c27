// SPDX-License-Identifier: Apache-2.0
// A run's numbers as JSON lines: one flat object a line, readable by jq, pandas and a human, also while
// training runs.
#pragma once
#include <meshgrad/train/learn/run/append_file.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace meshgrad {

using MetricValue = std::variant<bool, std::int64_t, double, std::string>;

/// One line: keys and values in the order written. Every line of a log has an integer "step".
using MetricsRow = std::vector<std::pair<std::string, MetricValue>>;

/// One line of JSON without its newline. Doubles are written with as many digits as read back the same value;
/// a double that is not finite becomes null, because JSON has no other word for it.
std::string metrics_line(const MetricsRow& row);

/// Appends rows to a file. Each line reaches the operating system, in one write, before `write` returns, so
/// that a killed process leaves at most one incomplete line, the last.
class MetricsLog {
 public:
  /// A fresh log: an existing file is emptied. DataError when the file cannot be written.
  static MetricsLog create(const std::filesystem::path& path);
  /// Continues a log: keeps the rows before the first that has a "step" beyond `last_step`, or the key
  /// `repeated` at that step, so that the resumed run repeats the others. Lines that are no rows are left
  /// out. A missing file is created.
  static MetricsLog resume(const std::filesystem::path& path, std::int64_t last_step,
                           const std::string& repeated = {});

  /// Appends one line; DataError when the disk is full. InvalidArgument for a row without an integer "step".
  void write(const MetricsRow& row);

  /// Whole lines before the last kept row that `resume` left out, because they were no rows.
  std::int64_t damaged_lines() const { return damaged_lines_; }

 private:
  explicit MetricsLog(AppendFile file, std::int64_t damaged_lines = 0)
      : file_(std::move(file)), damaged_lines_(damaged_lines) {}

  AppendFile file_;
  std::int64_t damaged_lines_ = 0;
};

/// The numbers of a log, a map a line: numbers as they are, true and false as 1 and 0, null as NaN; strings
/// are left out. Lines that are no rows are passed over; `damaged`, unless null, is their number, without an
/// incomplete last line. DataError when the file cannot be read.
std::vector<std::map<std::string, double>> read_metrics(const std::filesystem::path& path,
                                                        std::int64_t* damaged = nullptr);

}  // namespace meshgrad
