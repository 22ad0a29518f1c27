// SPDX-License-Identifier: Apache-2.0
// How many threads there are, where they run, and that a process has one team of them.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/engine/threads/cgroup.h>
#include <meshgrad/engine/threads/cpu_affinity.h>
#include <meshgrad/engine/threads/thread_team.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "counted_new.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// A machine's control groups, as files.
struct FakeGroups {
  fs::path root = fs::temp_directory_path() / ("meshgrad-groups-" + std::to_string(getpid()));
  FakeGroups() { fs::remove_all(root); }
  ~FakeGroups() { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  }
};

/// Threads of this process, as the system counts them.
std::set<std::string> threads_of_process() {
  std::set<std::string> threads;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) threads.insert(task.path().filename());
  return threads;
}

/// How many there are beside those of `before`, which others may have ended. One that was joined may still be
/// listed for a moment: it is waited for.
int64_t threads_beside(const std::set<std::string>& before, int64_t expected) {
  int64_t found = -1;
  for (int attempt = 0; attempt < 2000 && found != expected; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::set<std::string> now = threads_of_process();
    found = std::count_if(now.begin(), now.end(), [&](const auto& id) { return before.count(id) == 0; });
  }
  return found;
}

/// Runs `body` once on each worker at the same time.
void on_each_worker(ThreadPool& pool, const std::function<void(int)>& body) {
  std::atomic<int> begun{0};
  pool.parallel_for(pool.threads(), [&](int64_t) {
    for (++begun; begun < pool.threads();) std::this_thread::yield();
    body(ThreadPool::worker());
  });
}

TEST_CASE("control groups of version 2: the lowest limits on the way up") {
  FakeGroups groups;
  CHECK(cgroup_limits(groups.root).cpus == 0.0);
  groups.write("proc/self/cgroup", "0::/jobs/one");
  groups.write("sys/fs/cgroup/jobs/cpu.max", "250000 100000");
  groups.write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000");
  groups.write("sys/fs/cgroup/jobs/memory.max", "max");
  groups.write("sys/fs/cgroup/jobs/one/memory.max", "1073741824");
  const CgroupLimits limits = cgroup_limits(groups.root);
  CHECK(limits.cpus == 2.5);
  CHECK(limits.memory_bytes == int64_t{1} << 30);
  CHECK(limits.memory_file == (groups.root / "sys/fs/cgroup/jobs/one/memory.max").string());
  groups.write("sys/fs/cgroup/jobs/one/cpu.max", "50000 100000");
  groups.write("sys/fs/cgroup/memory.max", "4096");
  CHECK(cgroup_limits(groups.root).cpus == 0.5);
  CHECK(cgroup_limits(groups.root).memory_bytes == 4096);
}

TEST_CASE("cgroup v1 limits threads, also in a container") {
  FakeGroups groups;
  groups.write("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/");
  groups.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  groups.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  groups.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK(cgroup_limits(groups.root).cpus == 0.0);
  CHECK(cgroup_limits(groups.root).memory_bytes == 0);
  groups.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000");
  groups.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2097152");
  CHECK(cgroup_limits(groups.root).cpus == 1.5);
  CHECK(cgroup_limits(groups.root).memory_bytes == 2097152);
}

TEST_CASE("groups that are not understood limit nothing") {
  FakeGroups groups;
  groups.write("proc/self/cgroup", "nonsense\n::\n3:cpu\n0::/a");
  groups.write("sys/fs/cgroup/a/cpu.max", "many few");
  groups.write("sys/fs/cgroup/a/memory.max", "-5");
  CHECK(cgroup_limits(groups.root).cpus == 0.0);
  CHECK(cgroup_limits(groups.root).memory_bytes == 0);
}

/// Restricts the calling thread to these CPUs.
bool set_affinity(const std::vector<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus) CPU_SET(cpu, &mask);
  return pthread_setaffinity_np(pthread_self(), sizeof mask, &mask) == 0;
}

TEST_CASE("the thread count follows the affinity mask") {
  const std::vector<int> all = allowed_cpus();
  REQUIRE(!all.empty());
  CHECK(available_cpus() <= static_cast<int>(all.size()));
  std::thread restricted([&] {
    CHECK(set_affinity({all.back()}));
    CHECK(allowed_cpus() == std::vector<int>{all.back()});
    CHECK(available_cpus() == 1);
    CHECK(ThreadPool().threads() == 1);
    ThreadPool pool(2);
    std::vector<int> helper;
    on_each_worker(pool, [&](int worker) {
      if (worker == 1) helper = allowed_cpus();
    });
    CHECK(helper == std::vector<int>{all.back()});
  });
  restricted.join();
}

TEST_CASE("two Runtimes share one team of threads") {
  const std::set<std::string> before = threads_of_process();
  {
    Runtime one({.threads = 4});
    CHECK(threads_beside(before, 3) == 3);
    Runtime two({.threads = 4});
    Runtime small({.threads = 2});
    Runtime dry({.threads = 64, .dry = true});
    CHECK(threads_beside(before, 3) == 3);
    Runtime large({.threads = 6});
    CHECK(threads_beside(before, 5) == 5);
    std::set<std::thread::id> ids;
    std::mutex mutex;
    for (Runtime* runtime : {&one, &two, &small, &large}) {
      on_each_worker(runtime->threads(), [&](int) {
        const std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
      });
    }
    CHECK(ids.size() == 6);
  }
  CHECK(threads_beside(before, 0) == 0);
}

TEST_CASE("calls of two pools take turns") {
  Runtime one({.threads = 3});
  Runtime two({.threads = 3});
  std::atomic<int> working{0}, most{0};
  const auto drive = [&](Runtime& runtime) {
    for (int call = 0; call < 100; ++call) {
      runtime.stream().parallel_for(12, [&](int64_t) {
        const int now = ++working;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        --working;
      });
    }
  };
  std::thread other([&] { drive(two); });
  drive(one);
  other.join();
  CHECK(most <= 3);
  CHECK(one.threads().counters().waits > 0);
}

TEST_CASE("each worker begins with its own share of the tasks") {
  ThreadPool pool(4);
  for (int call = 0; call < 20; ++call) {
    std::atomic<int> begun{0};
    std::vector<int64_t> first(4, -1);
    pool.parallel_for(42, [&](int64_t task) {
      int64_t& mine = first[static_cast<size_t>(ThreadPool::worker())];
      if (mine >= 0) return;
      mine = task;
      for (++begun; begun < 4;) std::this_thread::yield();
    });
    CHECK(first == std::vector<int64_t>{0, 11, 22, 32});
  }
}

TEST_CASE("a large tensor is first touched by slabs, on all threads") {
  Runtime runtime({.threads = 2});
  constexpr int64_t kBytes = (int64_t{5} << 20) + 77;
  const int64_t before = runtime.threads().counters().tasks;
  const Tensor tensor = Tensor::zeros(runtime, Shape{kBytes}, DType::u8, Tag::data, "large");
  CHECK(runtime.threads().counters().tasks - before == 6);
  const auto* bytes = static_cast<const char*>(tensor.raw());
  CHECK(std::all_of(bytes, bytes + kBytes, [](char byte) { return byte == 0; }));
  std::fill_n(static_cast<char*>(tensor.raw()), kBytes, 'x');
  fill_zero(tensor, runtime.stream());
  CHECK(std::all_of(bytes, bytes + kBytes, [](char byte) { return byte == 0; }));
}

TEST_CASE("idle helpers burn no time, and wake again") {
  ThreadPool pool(2);
  std::atomic<int64_t> total{0};
  pool.parallel_for(8, [&](int64_t task) { total += task; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they go to sleep
  const auto cpu_time = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = cpu_time();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cpu_time() - before < 0.01);
  pool.parallel_for(8, [&](int64_t task) { total += task; });
  CHECK(total == 56);
}

TEST_CASE("a call with helpers allocates nothing") {
  struct Body {
    std::atomic<int64_t>* total;
    Body(std::atomic<int64_t>* t) : total(t) {}
    Body(const Body&) = delete;
    void operator()(int64_t task) const { *total += task; }
  };
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  const Body body(&total);
  allocations = 0;
  counting = true;
  for (int call = 0; call < 10; ++call) pool.parallel_for(10, body);
  counting = false;
  CHECK(allocations == 0);
  CHECK(total == 450);
  counting = true;
  pool.parallel_for(10, std::function<void(int64_t)>([body = std::vector<int64_t>(10)](int64_t) {}));
  counting = false;
  CHECK((allocations > 0) == kNewIsCounted);
}

}  // namespace
}  // namespace meshgrad
