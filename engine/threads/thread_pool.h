// SPDX-License-Identifier: Apache-2.0
// A number of threads that run numbered tasks. A process has one team of helper threads, and every pool uses
// as many of them as it counts: pools do not add up to more threads than the largest of them has.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

class PinnedThread;
class ThreadTeam;
struct TeamHelper;

/// What is called for each task, by reference: it outlives the call that it is handed to, and is not copied.
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

/// What the process's threads did since its first pool was made, or since all pools were gone.
struct ThreadCounters {
  int64_t calls = 0;   ///< of parallel_for with helpers
  int64_t tasks = 0;   ///< of those calls
  int64_t sleeps = 0;  ///< times that a thread had to ask the system to be woken
  int64_t waits = 0;   ///< calls that began when another caller's was done
};

/// Runs tasks 0..n-1, each exactly once, on the calling thread and `threads - 1` helpers. Worker w begins
/// with the w-th of equal shares, then takes from the others': a caller that cuts its work alike from call to
/// call mostly finds the same rows on the same thread. But which thread runs which task is not fixed: a
/// caller that wants the same bits for any number of threads cuts its work, and its partial sums, by task
/// number alone.
class ThreadPool {
 public:
  enum class Work : uint8_t {
    run,
    leave_out  ///< the pool counts its threads and starts none; tasks are not called
  };
  enum class Pin : uint8_t {
    none,
    workers  ///< while the pool lives: worker i on the i-th CPU that the maker may use; worker 0 is the maker
  };
  /// `threads` >= 1 counts the caller; 0 means available_cpus(). Throws ThreadsRefused where the system
  /// starts no more threads, where more workers than CPUs are to be pinned, or one cannot be. Helpers serve
  /// all pools, so one that pins them does so for all.
  explicit ThreadPool(int threads = 0, Work work = Work::run, Pin pin = Pin::none);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }
  bool leaves_out() const { return work_ == Work::leave_out; }
  bool pinned() const { return caller_.get() != nullptr; }

  /// Blocks until every task is done. The first exception that a task throws is rethrown here, after the
  /// others have ended. Callers take turns, whichever pools they call; a call from inside a task runs its
  /// tasks on that thread. Allocates nothing. A helper that finds no work looks for it for some microseconds,
  /// then sleeps.
  void parallel_for(int64_t tasks, TaskRef body);

  /// Inside a task: the number, in [0, threads()), of the thread that runs it; for scratch memory that tasks
  /// on one thread share. 0 outside.
  static int worker();

  /// Of all pools with helpers together; a pool of one thread counts nothing, and has zeros.
  ThreadCounters counters() const;

 private:
  void run_inline(int64_t tasks, TaskRef body);

  int threads_;
  Work work_;
  std::shared_ptr<ThreadTeam> team_;  // none: the caller is alone
  std::vector<TeamHelper*> helpers_;
  std::unique_ptr<PinnedThread> caller_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
