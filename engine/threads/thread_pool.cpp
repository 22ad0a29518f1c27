// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/cpu_affinity.h>
#include <meshgrad/engine/threads/thread_team.h>

#include <exception>

namespace meshgrad {
namespace {

std::vector<int> cpus_to_pin(int threads) {
  std::vector<int> cpus = allowed_cpus();
  if (threads > static_cast<int>(cpus.size())) {
    throw ThreadsRefused(
        ThreadsRefused::Asked::pin,
        "no more threads than the " + std::to_string(cpus.size()) + " CPUs that this process may use",
        std::to_string(threads));
  }
  return cpus;
}

}  // namespace

ThreadPool::ThreadPool(int threads, Work work, Pin pin)
    : threads_(threads > 0 ? threads : available_cpus()), work_(work) {
  if (leaves_out()) return;
  const std::vector<int> cpus = pin == Pin::workers ? cpus_to_pin(threads_) : std::vector<int>();
  if (!cpus.empty()) caller_ = std::make_unique<PinnedThread>(cpus.front());
  if (threads_ > 1) {
    team_ = ThreadTeam::of_process();
    helpers_ = team_->helpers(threads_ - 1);
    if (!cpus.empty()) team_->pin(cpus);
  }
}

ThreadPool::~ThreadPool() {
  if (team_ != nullptr && pinned()) team_->unpin();
}

int ThreadPool::worker() { return working_on().worker; }

ThreadCounters ThreadPool::counters() const {
  return team_ != nullptr ? team_->counters() : ThreadCounters{};
}

void ThreadPool::run_inline(int64_t tasks, TaskRef body) {
  const WorkingOn before = working_on();
  // Inside a task of this pool the thread keeps its number; elsewhere it is this pool's only worker.
  if (before.pool != this) working_on() = {this, 0};
  std::exception_ptr error;
  for (int64_t i = 0; i < tasks; ++i) {
    try {
      body(i);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  working_on() = before;
  if (error) std::rethrow_exception(error);
}

void ThreadPool::parallel_for(int64_t tasks, TaskRef body) {
  if (tasks <= 0 || leaves_out()) return;
  if (working_on().pool != nullptr || helpers_.empty() || tasks == 1) return run_inline(tasks, body);
  team_->run(helpers_, tasks, body, this);
}

}  // namespace meshgrad
