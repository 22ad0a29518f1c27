// SPDX-License-Identifier: Apache-2.0
// The helper threads of the process, shared by all its ThreadPools.
//
// A call offers its work to helpers one by one. A helper that is awake accepts; when the work is done, the
// caller withdraws the offers that were not accepted. So a call never waits for a helper that the system has
// not scheduled. Threads spin before they sleep, so that short gaps between calls cost no system calls.
#pragma once
#include <meshgrad/engine/threads/thread_pool.h>

#include <sys/types.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

namespace meshgrad {

/// The tasks that one worker starts with: [next, end). Others steal by advancing `next`.
struct alignas(64) TaskShare {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

/// One helper thread. The other threads touch only `call`, `asleep` and the share.
struct TeamHelper {
  enum Call : uint32_t { none, offered, accepted, stop };
  TaskShare share;
  alignas(64) std::atomic<uint32_t> call{none};
  std::atomic<bool> asleep{false};
  int worker = 0;
  std::thread thread;
};

class ThreadTeam {
 public:
  /// The team of this process; created on first use, ends with its last owner. A child made by fork() has one
  /// of its own: its copy of the parent's has no threads, and runs all tasks on the calling one.
  static std::shared_ptr<ThreadTeam> of_process();
  ThreadTeam();
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// The first `count` helpers; starts those that do not exist yet. They inherit the CPU affinity of the
  /// thread that starts them. Throws ThreadsUnavailable.
  std::vector<TeamHelper*> helpers(int count);
  /// See ThreadPool::parallel_for. `pool` identifies the caller's pool for nested calls.
  void run(std::span<TeamHelper* const> helpers, int64_t tasks, TaskRef body, const void* pool);
  ThreadCounters counters() const;

 private:
  bool is_copy() const;
  struct Job {
    const TaskRef* body = nullptr;
    const void* pool = nullptr;
    std::span<TeamHelper* const> helpers;
  };
  TaskShare& share(int worker);
  void offer(TeamHelper& helper);
  void work(int worker);
  void helper_loop(TeamHelper& helper);
  template <class Done>
  bool spin_until(const Done& done) const;

  pid_t process_;          // whose threads the helpers are
  std::mutex call_mutex_;  // held by the running call; guards job_
  Job job_;
  TaskShare caller_share_;
  alignas(64) std::atomic<uint32_t> busy_{0};  // helpers that may still work on the job
  std::atomic<bool> caller_asleep_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<int64_t> spin_nanoseconds_{0};
  std::atomic<int64_t> calls_{0}, tasks_{0}, sleeps_{0}, waits_{0};

  std::mutex helpers_mutex_;  // guards helpers_
  std::vector<std::unique_ptr<TeamHelper>> helpers_;
};

/// The task that the calling thread is inside of, so that a nested parallel_for does not wait for the call
/// that it is part of.
struct CurrentWorker {
  const void* pool = nullptr;  // null outside of tasks
  int number = 0;
};
CurrentWorker& current_worker();

}  // namespace meshgrad
