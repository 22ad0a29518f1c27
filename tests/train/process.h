// SPDX-License-Identifier: Apache-2.0
// The program meshgrad as a child process: run to its end, or started, watched and killed.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paths.h"
#include "train/scratch_directory.h"

namespace meshgrad::test {

/// How a process ended: its exit code, or the negative number of the signal that killed it.
struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

inline int exit_code_of_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// `PROGRAM ARGUMENTS...` in the background; killed when the object goes.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, std::string program = test::program()) {
    std::vector<char*> argv{program.data()};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out().c_str(), kCreate, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err().c_str(), kCreate, 0600);
    if (posix_spawn(&child_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) child_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (running_) {
      send(SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal_number) const {
    if (child_ > 0) kill(child_, signal_number);
  }
  pid_t id() const { return child_; }
  std::string err_so_far() const { return read_text(err()); }
  bool running() {
    int status = 0;
    if (running_ && waitpid(child_, &status, WNOHANG) != 0) ended(status);
    return running_;
  }
  /// Whether it ends by itself by then; if not, it is killed.
  bool ends_by(std::chrono::steady_clock::time_point deadline) {
    while (running() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (!running_) return true;
    send(SIGKILL);
    return false;
  }
  Outcome wait() {
    int status = 0;
    if (running_) {
      if (child_ < 0 || waitpid(child_, &status, 0) != child_) status = -1;  // it never started
      ended(status);
    }
    return {code_, read_text(out()), read_text(err())};
  }

 private:
  std::string out() const { return (scratch_.path / "out").string(); }
  std::string err() const { return (scratch_.path / "err").string(); }
  void ended(int status) {
    running_ = false;
    code_ = exit_code_of_status(status);
  }

  ScratchDirectory scratch_;
  pid_t child_ = -1;
  bool running_ = true;
  int code_ = -1;
};

inline Outcome run_meshgrad(std::vector<std::string> arguments) {
  return Process(std::move(arguments)).wait();
}

/// The same where no file may grow beyond so many blocks of 512 bytes, as on a disk that is full.
inline Outcome run_meshgrad_with_file_limit(int blocks, std::vector<std::string> arguments) {
  std::vector<std::string> shell{"-c", "ulimit -f " + std::to_string(blocks) + "; exec \"$0\" \"$@\"",
                                 test::program()};
  shell.insert(shell.end(), arguments.begin(), arguments.end());
  return Process(std::move(shell), "/bin/sh").wait();
}

}  // namespace meshgrad::test
