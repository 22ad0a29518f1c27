// SPDX-License-Identifier: Apache-2.0
// The progress line of a run.
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace meshgrad {

struct ProgressState {
  std::int64_t step = 0;   ///< finished so far
  std::int64_t total = 0;  ///< of the whole run
  double loss = 0;
  double learning_rate = 0;
  std::uint64_t memory_now = 0;  ///< bytes
  std::uint64_t memory_peak = 0;
};

/// "step 1200/3000  loss 1.234e-03  lr 1.0e-04  12.3 steps/s  ETA 2:26  memory 1.2 GiB, peak 1.5 GiB".
/// No rate and no ETA while `steps_per_second` is 0.
std::string progress_text(const ProgressState& state, double steps_per_second);

/// "850 B", "1.5 MiB", "12.0 GiB".
std::string bytes_text(std::uint64_t bytes);

/// "0:07", "2:26", "13:05:00", "3d 04:10:00"; rounds to seconds.
std::string duration_text(double seconds);

/// True when `out` is a terminal that understands a carriage return (TERM is set and not "dumb").
bool is_terminal(std::FILE* out);

/// Shows the progress on a stream the caller chose. On a terminal one line is redrawn in place, at most every
/// `interval` seconds; elsewhere (a file, a pipe, a job's log) a line is printed at most every `interval`
/// seconds, and no control character ever. The first and the last state are always shown. No colours.
class Progress {
 public:
  /// Seconds from any fixed origin; must not go back. Replaced in tests.
  using Clock = std::function<double()>;

  Progress(std::FILE* out, bool terminal, double interval, Clock clock = monotonic_seconds);

  void update(const ProgressState& state);
  /// Shows the last state, if it has not been, and ends the line. Further calls do nothing.
  void finish();
  /// Clears the line on a terminal, so that something else can be printed; the next update redraws it.
  void interrupt();
  /// Forgets the time since the last update, so that a pause (validation, a checkpoint) does not count as
  /// slowness.
  void skip_pause();

  static double monotonic_seconds();

 private:
  void show();
  void measure(std::int64_t step);

  std::FILE* out_;
  bool terminal_;
  double interval_;
  Clock clock_;
  ProgressState state_;
  double rate_ = 0;
  double rate_weight_ = 0;
  double last_time_ = -1;
  double shown_at_ = 0;
  bool ever_shown_ = false;
  bool pending_ = false;
  bool finished_ = false;
  std::size_t drawn_columns_ = 0;
};

}  // namespace meshgrad
