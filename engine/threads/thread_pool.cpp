// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/thread_team.h>

#include <exception>
#include <string>

namespace meshgrad {

ThreadPool::ThreadPool(int threads, Work work)
    : threads_(threads > 0 ? threads : available_cpus()), work_(work) {
  if (threads < 0)
    throw invalid_argument("threads", "0 or more", std::to_string(threads),
                           "0 takes all that the process may use");
  if (skips_work() || threads_ == 1) return;
  team_ = ThreadTeam::of_process();
  helpers_ = team_->helpers(threads_ - 1);
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::worker() { return current_worker().number; }

ThreadCounters ThreadPool::counters() const {
  return team_ != nullptr ? team_->counters() : ThreadCounters{};
}

void ThreadPool::run_inline(int64_t tasks, TaskRef body) {
  const CurrentWorker before = current_worker();
  // Inside a task of this pool the thread keeps its number; elsewhere it is this pool's only worker.
  if (before.pool != this) current_worker() = {this, 0};
  std::exception_ptr error;
  for (int64_t i = 0; i < tasks; ++i) {
    try {
      body(i);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  current_worker() = before;
  if (error) std::rethrow_exception(error);
}

void ThreadPool::parallel_for(int64_t tasks, TaskRef body) {
  if (tasks <= 0 || skips_work()) return;
  if (current_worker().pool != nullptr || helpers_.empty() || tasks == 1) return run_inline(tasks, body);
  team_->run(helpers_, tasks, body, this);
}

}  // namespace meshgrad
