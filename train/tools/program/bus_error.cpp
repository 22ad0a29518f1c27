// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/tools/program/bus_error.h>
#include <signal.h>

#include <cerrno>

namespace meshgrad::cli {
namespace {

void handle_bus_error(int number, siginfo_t* info, void*) {
  const int saved = errno;
  const bool by_hardware = info->si_code > 0;  // otherwise sent by a process, and without an address
  if (!by_hardware || !replace_lost_pages(info->si_addr)) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
  errno = saved;
}

}  // namespace

void catch_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace meshgrad::cli
