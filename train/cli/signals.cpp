// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/cli/signals.h>
#include <signal.h>

#include <atomic>

namespace meshgrad::cli {
namespace {

// A signal handler can access static data only.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void handle_stop(int signal_number) {
  if (stop_flag.exchange(true)) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);  // delivered when this handler returns
  }
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = handle_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
}

bool stop_requested() { return stop_flag.load(std::memory_order_relaxed); }

void ignore_file_size_signal() { signal(SIGXFSZ, SIG_IGN); }

}  // namespace meshgrad::cli
