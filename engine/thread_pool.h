// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that run numbered tasks.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace meshgrad {

/// Runs tasks 0..n-1, each exactly once, on the calling thread and `threads - 1` helpers. Which thread runs
/// which task is not fixed: a caller that wants the same bits for any number of threads cuts its work, and
/// its partial sums, by task number alone.
class ThreadPool {
 public:
  enum class Work : uint8_t {
    run,
    leave_out  ///< the pool counts its threads and starts none; tasks are not called
  };
  /// `threads` >= 1 counts the caller; 0 means available_cpus().
  explicit ThreadPool(int threads = 0, Work work = Work::run);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }
  bool leaves_out() const { return work_ == Work::leave_out; }

  /// Blocks until every task is done. The first exception that a task throws is rethrown here, after the
  /// others have ended. A call from inside a task runs its tasks on that thread.
  void parallel_for(int64_t tasks, const std::function<void(int64_t)>& body);

  /// Inside a task: the number, in [0, threads()), of the thread that runs it; for scratch memory that tasks
  /// on one thread share. 0 outside.
  static int worker();

 private:
  void run_inline(int64_t tasks, const std::function<void(int64_t)>& body);
  void helper_loop(int worker);
  void run_tasks();

  int threads_;
  Work work_;
  std::vector<std::thread> helpers_;
  std::mutex call_mutex_;  // one parallel_for at a time
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace meshgrad
