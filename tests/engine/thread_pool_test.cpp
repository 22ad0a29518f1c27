// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/stream.h>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <meshgrad/engine/error.h>

namespace meshgrad {
namespace {

TEST_CASE("signals that a program waits for stay its own") {
  const pid_t child = fork();  // which a signal to a helper would end
  if (child == 0) {
    ThreadPool pool(4);
    pool.parallel_for(8, [](int64_t) {});
    sigset_t waited;
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &waited, nullptr);
    for (int again = 0; again < 20; ++again) {
      kill(getpid(), SIGUSR1);
      int got = 0;
      if (sigwait(&waited, &got) != 0 || got != SIGUSR1) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  sigset_t mine;  // the caller's own signals are as before
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  CHECK(sigismember(&mine, SIGUSR1) == 0);
}

TEST_CASE("every task runs exactly once") {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const int64_t tasks : {0, 1, 2, 7, 8, 9, 1000}) {
      CAPTURE(threads);
      CAPTURE(tasks);
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.parallel_for(tasks, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
      CHECK(std::all_of(runs.begin(), runs.end(), [](const std::atomic<int>& count) { return count == 1; }));
    }
  }
}

TEST_CASE("a pool with no number takes the CPUs this process may use") {
  ThreadPool pool;
  CHECK(pool.threads() == available_cpus());
}

TEST_CASE("many short calls in a row lose no task") {
  ThreadPool pool(4);
  std::atomic<int64_t> total{0};
  for (int call = 0; call < 2000; ++call) {
    pool.parallel_for(5, [&](int64_t task) { total += task; });
  }
  CHECK(total == 2000 * 10);
}

TEST_CASE("the exception of a task reaches the caller") {
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    std::atomic<int> begun{0}, ended{0};
    std::string text;
    try {
      pool.parallel_for(50, [&](int64_t task) {
        ++begun;
        if (task == 7) {
          ++ended;
          throw std::runtime_error("task 7");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        ++ended;
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
      CHECK(begun == ended);
    }
    CHECK(text == "task 7");
    std::atomic<int> runs{0};
    pool.parallel_for(50, [&](int64_t) { ++runs; });
    CHECK(runs == 50);
  }
}

TEST_CASE("a call from inside a task runs on that thread") {
  ThreadPool pool(4);
  std::atomic<int> runs{0}, elsewhere{0};
  pool.parallel_for(20, [&](int64_t) {
    const auto self = std::this_thread::get_id();
    const int worker = ThreadPool::worker();
    pool.parallel_for(30, [&](int64_t) {
      ++runs;
      if (std::this_thread::get_id() != self || ThreadPool::worker() != worker) ++elsewhere;
    });
  });
  CHECK(runs == 600);
  CHECK(elsewhere == 0);
}

TEST_CASE("an exception from a nested call passes through both") {
  ThreadPool pool(3);
  CHECK_THROWS_AS(pool.parallel_for(4,
                                    [&](int64_t) {
                                      pool.parallel_for(4, [](int64_t task) {
                                        if (task == 2) throw std::out_of_range("inner");
                                      });
                                    }),
                  std::out_of_range);
}

TEST_CASE("worker numbers are in range and never shared") {
  CHECK(ThreadPool::worker() == 0);
  ThreadPool pool(5);
  std::vector<std::atomic<int>> inside(5);
  std::atomic<int> wrong{0};
  pool.parallel_for(500, [&](int64_t) {
    const int worker = ThreadPool::worker();
    if (worker < 0 || worker >= 5) {
      ++wrong;
      return;
    }
    if (++inside[static_cast<size_t>(worker)] != 1) ++wrong;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    --inside[static_cast<size_t>(worker)];
  });
  CHECK(wrong == 0);
}

TEST_CASE("two threads may call one pool at once") {
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  const auto drive = [&] {
    for (int call = 0; call < 200; ++call) pool.parallel_for(10, [&](int64_t task) { total += task; });
  };
  std::thread other(drive);
  drive();
  other.join();
  CHECK(total == 2 * 200 * 45);
}

TEST_CASE("a stream of the CPU runs its work on the pool, at once") {
  ThreadPool pool(3);
  const Stream stream(Device{}, pool, 4);
  CHECK(stream.threads() == 3);
  CHECK(stream.id() == 4);
  std::atomic<int> runs{0};
  stream.parallel_for(10, [&](int64_t) { ++runs; });
  CHECK(runs == 10);
  stream.synchronize();
  Event event;
  event.record(stream);
  CHECK(event.passed());
}

TEST_CASE("devices: names, and words that resolve or say why not") {
  CHECK(name_of(Device{}) == "cpu");
  CHECK(name_of(Device{DeviceKind::cuda, 1}) == "cuda:1");
  CHECK(available_cpus() >= 1);
  CHECK(available_memory() > 0);
  CHECK(resolve_device("cpu") == Device{});
  std::string note;
  resolve_device("auto", &note);
  CHECK(note.find("device: ") == 0);
  CHECK_THROWS_AS(resolve_device("gpu"), InvalidArgument);
  if (cuda_devices().empty()) {
    CHECK_THROWS_AS(resolve_device("cuda"), DeviceError);
    CHECK_THROWS_AS(resolve_device("cuda:1"), DeviceError);
  }
}

}  // namespace
}  // namespace meshgrad

TEST_CASE("a task that uses another pool is a worker of that pool") {
  meshgrad::ThreadPool outer(4);
  meshgrad::ThreadPool inner(1);
  std::atomic<int> largest{0};
  outer.parallel_for(64, [&](int64_t) {
    const int before = meshgrad::ThreadPool::worker();
    inner.parallel_for(3, [&](int64_t) {
      int seen = largest.load();
      while (seen < meshgrad::ThreadPool::worker() &&
             !largest.compare_exchange_weak(seen, meshgrad::ThreadPool::worker())) {
      }
    });
    if (meshgrad::ThreadPool::worker() != before) largest = 1000;
  });
  CHECK(largest == 0);
}

TEST_CASE("one thread runs every task before it rethrows") {
  meshgrad::ThreadPool pool(1);
  int done = 0;
  CHECK_THROWS_AS(pool.parallel_for(5,
                                    [&](int64_t i) {
                                      ++done;
                                      if (i == 1) throw std::runtime_error("task");
                                    }),
                  std::runtime_error);
  CHECK(done == 5);
}

#if !defined(__SANITIZE_THREAD__)  // it ends a child that starts threads
TEST_CASE("the child of fork() has pools of its own") {
  auto pool = std::make_unique<meshgrad::ThreadPool>(2);
  pool->parallel_for(2, [](int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::atomic<int> done{0};
    pool->parallel_for(100, [&](int64_t) { ++done; });
    std::atomic<int> met{0};
    {
      meshgrad::ThreadPool own(2);
      own.parallel_for(2, [](int64_t) {});  // its thread may get the handle of the parent's
      pool.reset();
      own.parallel_for(2, [&](int64_t) {  // each waits for the other: that takes two threads
        for (++met; met < 2;) std::this_thread::yield();
      });
    }
    _exit(done == 100 && met == 2 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  pool->parallel_for(2, [](int64_t) {});
}
#endif
