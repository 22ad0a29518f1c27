// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/thread_pool.h>

namespace meshgrad {
namespace {

/// What the calling thread is doing, so that a task which calls parallel_for does not wait for the pool that
/// runs it.
struct Working {
  const ThreadPool* pool = nullptr;
  int worker = 0;
};
thread_local Working working;

}  // namespace

ThreadPool::ThreadPool(int threads, Work work)
    : threads_(threads > 0 ? threads : available_cpus()), work_(work) {
  if (leaves_out()) return;
  for (int i = 1; i < threads_; ++i) helpers_.emplace_back([this, i] { helper_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

int ThreadPool::worker() { return working.worker; }

void ThreadPool::run_inline(int64_t tasks, const std::function<void(int64_t)>& body) {
  const Working before = working;
  // Inside a task of this pool the thread keeps its number; elsewhere it is this pool's only worker.
  if (before.pool != this) working = {this, 0};
  std::exception_ptr error;
  for (int64_t i = 0; i < tasks; ++i) {
    try {
      body(i);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  working = before;
  if (error) std::rethrow_exception(error);
}

void ThreadPool::parallel_for(int64_t tasks, const std::function<void(int64_t)>& body) {
  if (tasks <= 0 || leaves_out()) return;
  if (working.pool != nullptr || helpers_.empty() || tasks == 1) return run_inline(tasks, body);
  const std::lock_guard call(call_mutex_);
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(helpers_.size());
    error_ = nullptr;
    ++generation_;
  }
  wake_.notify_all();
  working = {this, 0};
  run_tasks();
  working = {};
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(error_);
}

void ThreadPool::run_tasks() {
  for (int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) {
    try {
      (*body_)(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

void ThreadPool::helper_loop(int worker) {
  working = {this, worker};
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    run_tasks();
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace meshgrad
