// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/blocked_signals.h>
#include <meshgrad/engine/threads/thread_team.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <system_error>

namespace meshgrad {
namespace {

// Longer than the gaps between parallel loops of a step; short enough that an idle process costs nothing.
constexpr int64_t kSpinNanoseconds = 50'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

CurrentWorker& current_worker() {
  thread_local CurrentWorker current;
  return current;
}

std::shared_ptr<ThreadTeam> ThreadTeam::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<ThreadTeam> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<ThreadTeam> team = known.lock();
  if (team == nullptr || team->is_copy()) known = team = std::make_shared<ThreadTeam>();
  return team;
}

namespace {
void stop(TeamHelper& helper) {
  helper.call.store(TeamHelper::stop);
  helper.call.notify_one();
}
}  // namespace

ThreadTeam::ThreadTeam() : process_(getpid()) {}

/// Of the parent's team, after fork().
bool ThreadTeam::is_copy() const { return process_ != getpid(); }

ThreadTeam::~ThreadTeam() {
  if (is_copy()) {
    // Its threads are not in this process, where a new thread may have got the handle of one of them: the
    // handle is forgotten, since to join or to detach it would join or detach that thread.
    for (const auto& helper : helpers_) std::construct_at(&helper->thread);
    return;
  }
  for (const auto& helper : helpers_) stop(*helper);
  for (const auto& helper : helpers_) helper->thread.join();
}

std::vector<TeamHelper*> ThreadTeam::helpers(int count) {
  const std::lock_guard lock(helpers_mutex_);
  while (static_cast<int>(helpers_.size()) < count) {
    auto started = std::make_unique<TeamHelper>();
    TeamHelper& helper = *started;
    helper.worker = static_cast<int>(helpers_.size()) + 1;
    helpers_.reserve(helpers_.size() + 1);
    try {
      const BlockedSignals blocked;
      helper.thread = std::thread([this, &helper] { helper_loop(helper); });
    } catch (const std::system_error& error) {
      throw ThreadsUnavailable(std::to_string(count + 1) + " threads", error.what());
    }
    helpers_.push_back(std::move(started));
  }
  // With more threads than CPUs a spinning thread would keep another from working.
  const bool fit = static_cast<int>(helpers_.size()) < available_cpus();
  spin_nanoseconds_.store(fit ? kSpinNanoseconds : 0, std::memory_order_relaxed);
  std::vector<TeamHelper*> first;
  first.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) first.push_back(helpers_[static_cast<size_t>(i)].get());
  return first;
}

TaskShare& ThreadTeam::share(int worker) {
  return worker == 0 ? caller_share_ : job_.helpers[static_cast<size_t>(worker) - 1]->share;
}

void ThreadTeam::run(std::span<TeamHelper* const> helpers, int64_t tasks, TaskRef body, const void* pool) {
  std::unique_lock turn(call_mutex_, std::try_to_lock);
  if (!turn.owns_lock()) {
    waits_.fetch_add(1, std::memory_order_relaxed);
    turn.lock();
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  tasks_.fetch_add(tasks, std::memory_order_relaxed);
  job_ = {
      &body, pool,
      helpers.first(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(helpers.size()), tasks - 1)))};
  const auto workers = static_cast<int64_t>(job_.helpers.size()) + 1;
  for (int64_t w = 0; w < workers; ++w) {
    TaskShare& mine = share(static_cast<int>(w));
    mine.next.store(tasks / workers * w + std::min(w, tasks % workers), std::memory_order_relaxed);
    mine.end = tasks / workers * (w + 1) + std::min(w + 1, tasks % workers);
  }
  busy_.store(static_cast<uint32_t>(workers - 1), std::memory_order_relaxed);
  for (TeamHelper* helper : job_.helpers) offer(*helper);
  const CurrentWorker before = current_worker();
  current_worker() = {pool, 0};
  work(0);
  current_worker() = before;
  for (TeamHelper* helper : job_.helpers) {
    uint32_t offered = TeamHelper::offered;
    if (helper->call.compare_exchange_strong(offered, TeamHelper::none))
      busy_.fetch_sub(1, std::memory_order_acq_rel);
  }
  if (!spin_until([this] { return busy_.load(std::memory_order_acquire) == 0; })) {
    caller_asleep_.store(true);
    uint32_t busy = busy_.load();
    if (busy != 0) sleeps_.fetch_add(1, std::memory_order_relaxed);
    for (; busy != 0; busy = busy_.load()) busy_.wait(busy);
    caller_asleep_.store(false, std::memory_order_relaxed);
  }
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadTeam::offer(TeamHelper& helper) {
  // Sequentially consistent with helper_loop(): the helper sees the offer, or is seen asleep here.
  helper.call.store(TeamHelper::offered);
  if (helper.asleep.load()) helper.call.notify_one();
}

/// Runs the worker's own share, then steals what is left of the others'.
void ThreadTeam::work(int worker) {
  const int workers = static_cast<int>(job_.helpers.size()) + 1;
  for (int i = 0; i < workers; ++i) {
    TaskShare& from = share((worker + i) % workers);
    while (from.next.load(std::memory_order_relaxed) < from.end) {
      const int64_t task = from.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= from.end) break;
      try {
        (*job_.body)(task);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
      }
    }
  }
}

template <class Done>
bool ThreadTeam::spin_until(const Done& done) const {
  using SteadyClock = std::chrono::steady_clock;
  if (done()) return true;
  const auto end =
      SteadyClock::now() + std::chrono::nanoseconds(spin_nanoseconds_.load(std::memory_order_relaxed));
  do {
    for (int i = 0; i < 16; ++i) {
      relax();
      if (done()) return true;
    }
  } while (SteadyClock::now() < end);
  return false;
}

void ThreadTeam::helper_loop(TeamHelper& helper) {
  for (;;) {
    if (!spin_until([&] { return helper.call.load(std::memory_order_relaxed) != TeamHelper::none; })) {
      helper.asleep.store(true);
      if (helper.call.load() == TeamHelper::none) sleeps_.fetch_add(1, std::memory_order_relaxed);
      helper.call.wait(TeamHelper::none);
      helper.asleep.store(false, std::memory_order_relaxed);
    }
    uint32_t offered = TeamHelper::offered;
    if (!helper.call.compare_exchange_strong(offered, TeamHelper::accepted)) {
      if (offered == TeamHelper::stop) return;
      continue;  // withdrawn
    }
    current_worker() = {job_.pool, helper.worker};
    work(helper.worker);
    // No stop request can be overwritten here: the team is destroyed only when no call is running.
    helper.call.store(TeamHelper::none);
    if (busy_.fetch_sub(1) == 1 && caller_asleep_.load()) busy_.notify_one();
  }
}

ThreadCounters ThreadTeam::counters() const {
  return {.calls = calls_.load(std::memory_order_relaxed),
          .tasks = tasks_.load(std::memory_order_relaxed),
          .sleeps = sleeps_.load(std::memory_order_relaxed),
          .waits = waits_.load(std::memory_order_relaxed)};
}

}  // namespace meshgrad
