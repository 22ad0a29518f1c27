// SPDX-License-Identifier: Apache-2.0
// The helper threads of the process, which all its ThreadPools share.
//
// A call is offered to helpers one by one; one that is awake takes it, and the caller withdraws what nobody
// took by the time the work is done. So a call never waits for a helper that the system does not run. Nothing
// goes through the kernel unless a thread was idle for longer than it looks for work.
#pragma once
#include <meshgrad/engine/threads/thread_pool.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

namespace meshgrad {

/// Tasks that one worker begins with: [next, end).
struct alignas(64) TaskShare {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

/// A thread of the team. All but `call`, `asleep` and the share is the team's.
struct TeamHelper {
  enum Call : uint32_t { none, offered, taken, stop };
  TaskShare share;
  std::vector<int> unpinned_cpus;  // of the thread that started it
  alignas(64) std::atomic<uint32_t> call{none};
  std::atomic<bool> asleep{false};
  int worker = 0;
  std::thread thread;
};

class ThreadTeam {
 public:
  /// The team of this process: made when there is none, gone when nobody holds it.
  static std::shared_ptr<ThreadTeam> of_process();
  ThreadTeam() = default;
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// The first `count` helpers; those that are missing are started. Throws ThreadsRefused where there is none
  /// to be had, or one cannot be held as the others are.
  std::vector<TeamHelper*> helpers(int count);
  /// Holds helper i, worker i + 1, on cpus[i + 1] until as many calls of unpin(); the first caller's `cpus`
  /// count. Throws ThreadsRefused where the system does not allow it; then nothing is held.
  void pin(const std::vector<int>& cpus);
  void unpin();

  void run(std::span<TeamHelper* const> helpers, int64_t tasks, TaskRef body, const void* pool);
  ThreadCounters counters() const;

 private:
  struct Job {
    const TaskRef* body = nullptr;
    const void* pool = nullptr;
    std::span<TeamHelper* const> helpers;
  };
  TaskShare& share(int worker);
  void offer(TeamHelper& helper);
  void work(int worker);
  void helper_loop(TeamHelper& helper);
  void place(TeamHelper& helper);
  template <class Done>
  bool look_for(const Done& done) const;

  std::mutex call_mutex_;  // held by the caller whose turn it is; guards job_
  Job job_;
  TaskShare callers_share_;
  alignas(64) std::atomic<uint32_t> busy_{0};  // helpers that may still work on the job
  std::atomic<bool> caller_asleep_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<int64_t> look_nanoseconds_{0};
  std::atomic<int64_t> calls_{0}, tasks_{0}, sleeps_{0}, waits_{0};

  std::mutex helpers_mutex_;  // guards what follows
  std::vector<std::unique_ptr<TeamHelper>> helpers_;
  int pins_ = 0;
  std::vector<int> cpus_;
};

/// What the calling thread works on, so that a task which calls parallel_for does not wait for the call that
/// it is part of.
struct WorkingOn {
  const void* pool = nullptr;
  int worker = 0;
};
WorkingOn& working_on();

}  // namespace meshgrad
