// SPDX-License-Identifier: Apache-2.0
// A pool of threads that run numbered tasks. The process has one team of helper threads (thread_team.h),
// which all pools share: several pools together start no more threads than the largest of them needs.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

class ThreadTeam;
struct TeamHelper;

/// A reference to a callable `void(int64_t task)`: not owning, two pointers. The callable must outlive the
/// call that the TaskRef is passed to.
class TaskRef {
 public:
  template <class Body>
  requires std::invocable<Body&, int64_t> &&(!std::same_as<std::remove_cvref_t<Body>, TaskRef>)
      TaskRef(Body&& body)  // NOLINT(*-explicit-*,*-forwarding-reference-*): stands in for the callable
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(body)))),
        call_([](void* object, int64_t task) {
          (*static_cast<std::remove_reference_t<Body>*>(object))(task);
        }) {}
  void operator()(int64_t task) const { call_(object_, task); }

 private:
  void* object_;
  void (*call_)(void*, int64_t);
};

/// Counts of all pools of the process, since its first pool was made or since all pools were gone.
struct ThreadCounters {
  int64_t calls = 0;   ///< of parallel_for that used helpers
  int64_t tasks = 0;   ///< of those calls
  int64_t sleeps = 0;  ///< times that a thread blocked in the kernel after it had spun in vain
  int64_t waits = 0;   ///< calls that waited for another caller's parallel_for to end
};

/// Runs tasks 0..n-1, each exactly once, on the calling thread and `threads - 1` helpers. Thread-safe.
///
/// Scheduling: worker w starts with the w-th of equal shares, then steals from the others. So a caller that
/// cuts its work the same way in every call mostly finds the same rows on the same thread (first touch,
/// caches). Which thread runs a task is not fixed, though: for results that do not depend on the number of
/// threads, cut the work and its partial sums only by task number.
class ThreadPool {
 public:
  enum class Work : uint8_t {
    run,
    skip  ///< for dry runs: no threads are started and parallel_for calls nothing
  };
  /// `threads` >= 1 counts the calling thread; 0 means available_cpus(). Throws ThreadsUnavailable when the
  /// system starts no more threads.
  explicit ThreadPool(int threads = 0, Work work = Work::run);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }
  bool skips_work() const { return work_ == Work::skip; }

  /// Blocks until every task is done. The first exception that a task throws is rethrown here, after the
  /// other tasks have ended. Concurrent callers run one after the other, whichever pools they use; a call
  /// from inside a task runs its tasks on that thread. Makes no heap allocation. Idle helpers spin for 50
  /// microseconds, then sleep.
  void parallel_for(int64_t tasks, TaskRef body);

  /// Inside a task: the number, in [0, threads()), of the thread that runs it, as an index into per-thread
  /// scratch memory. 0 outside of tasks.
  static int worker();

  /// All zero for a pool of one thread, which uses no helpers.
  ThreadCounters counters() const;

 private:
  void run_inline(int64_t tasks, TaskRef body);

  int threads_;
  Work work_;
  std::shared_ptr<ThreadTeam> team_;  // null for one thread
  std::vector<TeamHelper*> helpers_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
