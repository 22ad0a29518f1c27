// SPDX-License-Identifier: Apache-2.0
// A thread inherits the signals that its creator blocks.
#pragma once
#include <csignal>

namespace meshgrad {

/// While it lives, the calling thread receives no signals but those of its own faults and of profilers, and
/// neither do the threads that it starts: a program that waits for signals in a thread of its own keeps
/// getting them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
      sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace meshgrad
