// SPDX-License-Identifier: Apache-2.0
// A run's numbers in files that grow while it runs: JSON lines, one flat object a line, readable by jq,
// pandas and a human, and scalars for TensorBoard, which W&B and others read too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshgrad {

/// A file open for appending. Errors (no permission, disk full, ...) are DataErrors naming the file, the
/// system's reason and the fix. Use by one thread at a time.
class AppendFile {
 public:
  /// Opens or creates the file and cuts it to its first `keep_bytes` bytes.
  AppendFile(std::filesystem::path path, std::uint64_t keep_bytes);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  /// Returns when the operating system has all bytes: they survive the death of the process, though not that
  /// of the machine.
  void append(std::span<const std::byte> bytes);
  /// Returns when the disk has them: they survive a loss of power.
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

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
  /// The step of the last row that `resume` kept; 0 without one.
  std::int64_t last_kept_step() const { return last_kept_step_; }
  /// Before a checkpoint of the same steps: a loss of power leaves no log that is shorter than it.
  void sync() { file_.sync(); }

 private:
  explicit MetricsLog(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
  std::int64_t damaged_lines_ = 0, last_kept_step_ = 0;
};

/// The numbers of a log, a map a line: numbers as they are, true and false as 1 and 0, null as NaN; strings
/// are left out. Lines that are no rows are passed over; `damaged`, unless null, is their number, without an
/// incomplete last line. DataError when the file cannot be read.
std::vector<std::map<std::string, double>> read_metrics(const std::filesystem::path& path,
                                                        std::int64_t* damaged = nullptr);

/// Appends events to a new file `events.out.tfevents.SECONDS.HOST.PID` in `directory` (made when missing):
/// TFRecords of tensorflow.Event messages, fields as in tensorboard/compat/proto/event.proto and
/// summary.proto. A resumed run opens another file; cut_events keeps steps from being in both.
/// DataError when a file cannot be written.
class TensorboardWriter {
 public:
  /// Seconds since 1970; replaced in tests.
  using Clock = std::function<double()>;

  explicit TensorboardWriter(const std::filesystem::path& directory, Clock clock = wall_seconds);

  /// One event with these (tag, value) pairs, on disk when the call returns.
  void scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values);

  static double wall_seconds();

 private:
  Clock clock_;
  AppendFile file_;
};

/// Cuts from the event files in `directory` what a run that resumes after `last_step` writes again: from the
/// first event beyond that step, or at that step with the tag `repeated`, and from a record that a killed
/// process left incomplete. DataError when a file cannot be read or cut.
void cut_events(const std::filesystem::path& directory, std::int64_t last_step,
                std::string_view repeated = {});

}  // namespace meshgrad
