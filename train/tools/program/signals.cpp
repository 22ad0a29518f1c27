// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <meshgrad/train/tools/program/signals.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>

namespace meshgrad::cli {
namespace {

constexpr std::string_view kStopping =
    "\nmeshgrad: stopping with a checkpoint; Ctrl-C again ends the process at once, without one\n";
constexpr int64_t kOneInterruptMs = 200;  // a terminal and a wrapper may both send SIGINT for one Ctrl-C
constexpr int64_t kOneStopMs = 10'000;
constexpr int64_t kNever = -1;

// A signal handler can access static data only.
std::atomic<bool> stop_flag{false};
std::atomic<int64_t> first_stop_ms{kNever};
std::atomic<int64_t> first_interrupt_ms{kNever};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

/// The time of the first event, which is `now` for the first caller.
int64_t first_time(std::atomic<int64_t>& first, int64_t now) {
  int64_t seen = kNever;
  return first.compare_exchange_strong(seen, now) ? now : seen;
}

void handle_stop(int signal_number) {
  const int saved_errno = errno;
  const int64_t now = now_ms();
  bool ends = now - first_time(first_stop_ms, now) >= kOneStopMs;
  stop_flag = true;
  if (signal_number == SIGINT) {
    const bool first = first_interrupt_ms == kNever;
    ends = ends || now - first_time(first_interrupt_ms, now) >= kOneInterruptMs;
    if (first) [[maybe_unused]]
      const ssize_t told = write(STDERR_FILENO, kStopping.data(), kStopping.size());
  }
  if (ends) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);  // delivered when this handler returns
  }
  errno = saved_errno;
}

}  // namespace

void prepare_process() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest unused number is taken: this one, as those below it are open.
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR);
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = handle_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGUSR1}) sigaddset(&action.sa_mask, number);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGUSR1}) {
    struct sigaction before = {};
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

bool stop_requested() { return stop_flag.load(std::memory_order_relaxed); }

}  // namespace meshgrad::cli
