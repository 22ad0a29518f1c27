// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/tools/program/progress.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace meshgrad {
namespace {

// The rate looks back about this far: long enough to be steady, short enough to notice a change.
constexpr double kRateMemorySeconds = 20;

std::size_t columns_of(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 0;
}

/// Errors are ignored: a run does not end because its progress cannot be shown (a full disk, a closed
/// terminal).
void tell(std::FILE* out, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string duration_text(double seconds) {
  const auto total = static_cast<std::int64_t>(std::clamp(std::round(seconds), 0.0, 1e12));
  const std::int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60,
                     rest = total % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, rest);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
  return fmt::format("{}:{:02}", minutes, rest);
}

std::string progress_text(const ProgressState& state, double steps_per_second) {
  std::string text =
      fmt::format("step {:>{}}/{}  loss {:.3e}  lr {:.1e}", state.step, std::to_string(state.total).size(),
                  state.total, state.loss, state.learning_rate);
  if (steps_per_second > 0) {
    const auto left = static_cast<double>(std::max<std::int64_t>(state.total - state.step, 0));
    text += fmt::format("  {:.{}f} steps/s  ETA {}", steps_per_second, steps_per_second < 1 ? 3 : 1,
                        duration_text(left / steps_per_second));
  }
  return text +
         fmt::format("  memory {}, peak {}", bytes_text(state.memory_now), bytes_text(state.memory_peak));
}

bool is_terminal(std::FILE* out) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

double Progress::monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress::Progress(std::FILE* out, bool terminal, double interval, Clock clock)
    : out_(out), terminal_(terminal), interval_(interval), clock_(std::move(clock)) {}

void Progress::measure(std::int64_t step) {
  const double now = clock_();
  const double elapsed = now - last_time_;
  if (last_time_ >= 0 && elapsed > 0 && step > state_.step) {
    // An exponential mean over time; the weight makes it the plain mean at the start.
    const double keep = std::exp(-elapsed / kRateMemorySeconds);
    rate_weight_ = rate_weight_ * keep + (1 - keep);
    rate_ += (static_cast<double>(step - state_.step) / elapsed - rate_) * (1 - keep) / rate_weight_;
  }
  last_time_ = now;
}

void Progress::update(const ProgressState& state) {
  if (finished_) return;
  measure(state.step);
  state_ = state;
  pending_ = true;
  if (!ever_shown_ || last_time_ - shown_at_ >= interval_) show();
}

void Progress::show() {
  std::string text = progress_text(state_, rate_);
  if (terminal_) {
    // A line that wraps could not be redrawn in place.
    if (const std::size_t columns = columns_of(out_); columns > 1 && text.size() >= columns)
      text.resize(columns - 1);
    const std::size_t length = text.size();
    if (length < drawn_columns_) text.append(drawn_columns_ - length, ' ');
    drawn_columns_ = length;
    tell(out_, "\r" + text);
  } else {
    tell(out_, text + "\n");
  }
  shown_at_ = last_time_;
  ever_shown_ = true;
  pending_ = false;
}

void Progress::finish() {
  if (std::exchange(finished_, true) || !(ever_shown_ || pending_)) return;
  if (pending_ || (terminal_ && drawn_columns_ == 0)) show();
  if (terminal_) tell(out_, "\n");
}

void Progress::interrupt() {
  if (!terminal_ || drawn_columns_ == 0) return;
  tell(out_, "\r" + std::string(drawn_columns_, ' ') + "\r");
  drawn_columns_ = 0;
  ever_shown_ = false;  // the next update draws at once
  pending_ = true;
}

void Progress::skip_pause() { last_time_ = clock_(); }

}  // namespace meshgrad
