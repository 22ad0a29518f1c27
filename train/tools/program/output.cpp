// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/output.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace meshgrad::cli {

void print_result(std::string_view result) {
  const std::string text = printable(result);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) {  // as in `meshgrad info | head -1`: ends as if the signal were not ignored
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
  }
  throw data_error("stdout", "to write the result", std::strerror(errno),
                   "free disk space or redirect the output to another disk");
}

size_t text_width() {
  constexpr size_t kLeast = 40;
  const char* columns = std::getenv("COLUMNS");
  const std::optional<double> given = columns == nullptr ? std::nullopt : parse_number(columns);
  if (given && *given >= kLeast && *given <= 1e4) return static_cast<size_t>(*given);
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kLeast;
  return known ? size.ws_col : kTextWidth;
}

void print_text(std::string_view text) { print_result(fitted(text, text_width())); }

void print_error(std::string_view error, bool color) {
  const std::string text = printable(error);
  const char* word = color ? "\033[1;31merror:\033[0m" : "error:";
  std::fprintf(stderr, "meshgrad: %s %s\n", word, text.c_str());
}

void print_note(std::string_view text) { std::fprintf(stderr, "meshgrad: %s\n", printable(text).c_str()); }

std::string log_line(LogLevel level, std::string_view text) {
  return (level == LogLevel::warning ? "warning: " : "") + std::string(text);
}

LogSink log_of(bool quiet) {
  if (quiet) return {};
  return [](LogLevel level, std::string_view text) { print_note(log_line(level, text)); };
}

std::function<void(int64_t, int64_t)> progress_lines(std::string unit) {
  using Clock = std::chrono::steady_clock;
  return [unit = std::move(unit), last = Clock::now()](int64_t done, int64_t total) mutable {
    if (Clock::now() - last < std::chrono::seconds(2)) return;
    last = Clock::now();
    print_note(unit + " " + std::to_string(done) + " of " + std::to_string(total));
  };
}

bool stderr_takes_color() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return isatty(STDERR_FILENO) == 1;
}

}  // namespace meshgrad::cli
