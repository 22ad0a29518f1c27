// SPDX-License-Identifier: Apache-2.0
// Ranks that TCP connects, as threads of one process.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/mpi.h>
#include <meshgrad/engine/ranks/tcp.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>

#include "free_port.h"
#include "simulated_ranks.h"

using namespace meshgrad;
using namespace std::chrono_literals;
using test::Endings;
using test::free_port;

namespace {

struct TcpPlace {
  int size = 2;
  std::chrono::milliseconds timeout = 20s;
  std::string address = "127.0.0.1";
  int port = free_port();
};

std::string ending_of(const TcpJob& job, std::chrono::milliseconds timeout,
                      const std::function<void(Ranks&)>& body) {
  try {
    Ranks ranks(connect_by_tcp(job, timeout), {.timeout = timeout});
    body(ranks);
    ranks.finish();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Endings try_on_tcp(const TcpPlace& place, const std::function<void(Ranks&)>& body) {
  Endings endings(static_cast<size_t>(place.size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < place.size; ++rank) {
    threads.emplace_back([&, rank] {
      const TcpJob job{rank, place.size, place.address, place.port};
      endings[static_cast<size_t>(rank)] = ending_of(job, place.timeout, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return endings;
}

void on_tcp(int size, const std::function<void(Ranks&)>& body) {
  for (const std::string& ending : try_on_tcp({.size = size}, body)) CHECK(ending == "");
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("TCP: sums match those of any transport at any size") {
  for (const int size : {2, 3, 5}) {
    on_tcp(size, [&](Ranks& ranks) {
      for (const size_t elements : {size_t{1}, size_t{1000}, size_t{3'000'000}}) {
        std::vector<float> values(elements);
        for (size_t i = 0; i < elements; ++i)
          values[i] = static_cast<float>(i % 97) + 0.1f * static_cast<float>(ranks.rank());
        all_reduce(ranks, std::span(values), "sum");
        size_t wrong = 0;
        for (size_t i = 0; i < elements; ++i) {
          float sum = static_cast<float>(i % 97);
          for (int rank = 1; rank < size; ++rank)
            sum += static_cast<float>(i % 97) + 0.1f * static_cast<float>(rank);
          wrong += sum != values[i] ? 1 : 0;
        }
        CHECK(wrong == 0);
      }
      CHECK(ranks.local_size() == size);
      CHECK(ranks.local_rank() == ranks.rank());
    });
  }
}

TEST_CASE("TCP: exchanges in flight are waited for in any order") {
  constexpr size_t kBig = 1'000'000;
  on_tcp(3, [](Ranks& ranks) {
    const int next = (ranks.rank() + 1) % 3;
    const int last = (ranks.rank() + 2) % 3;
    std::vector<Ranks::Exchange> exchanges;
    std::vector<std::vector<int>> sent, received;
    for (const size_t size : {kBig, size_t{0}, size_t{3}, kBig, size_t{1}}) {
      sent.emplace_back(size, ranks.rank());
      received.emplace_back(size, -1);
      const Send send{next, std::as_bytes(std::span(sent.back()))};
      const Receive receive{last, std::as_writable_bytes(std::span(received.back()))};
      exchanges.push_back(ranks.start_exchange(std::span(&send, 1), std::span(&receive, 1), "ring"));
    }
    for (size_t i = exchanges.size(); i-- > 0;) ranks.wait(std::move(exchanges[i]));
    for (size_t i = 0; i < sent.size(); ++i) CHECK(received[i] == std::vector<int>(sent[i].size(), last));
  });
}

TEST_CASE("TCP: a rank that ends is an error of the others at once") {
  const auto begin = std::chrono::steady_clock::now();
  const Endings endings = try_on_tcp({.size = 3, .timeout = 100s}, [](Ranks& ranks) {
    std::vector<double> values(100'000);
    for (int step = 0;; ++step) {
      ranks.set_step(step);
      if (step == 5 && ranks.rank() == 1) throw internal_error("the end of rank 1");
      all_reduce(ranks, std::span(values), "sum");
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < 60s);
  CHECK(contains(endings[1], "the end of rank 1"));
  for (const size_t rank : {size_t{0}, size_t{2}}) {  // of rank 1, or of the other one, which learnt it first
    CHECK(contains(endings[rank], "] needed a connection with rank"));
    CHECK(contains(endings[rank], "fix: look for the end of rank"));
  }
  CHECK((contains(endings[0], "connection with rank 1") || contains(endings[2], "connection with rank 1")));
}

TEST_CASE("TCP: an aborting rank's exit code arrives after messages") {
  const Endings endings = try_on_tcp({.size = 3}, [&](Ranks& ranks) {
    std::array<std::byte, 2> ready{};
    const std::span<std::byte> all(ready);
    if (ranks.rank() == 2) {
      const Receive receives[] = {{0, all.first(1)}, {1, all.last(1)}};
      ranks.exchange({}, receives, "ready");
      const std::vector<std::byte> bytes(100);
      const Send sends[] = {{0, bytes}, {1, bytes}};
      ranks.exchange(sends, {}, "last words");  // which no rank reads
      ranks.abort(7);
    } else {
      const Send send{2, all.first(1)};
      ranks.exchange(std::span(&send, 1), {}, "ready");
      CHECK(ranks.ended_by_other(20s) == 7);
    }
    throw internal_error("all end");
  });
  for (const std::string& ending : endings) CHECK(contains(ending, "all end"));
}

TEST_CASE("TCP: messages arrive before the end of their rank") {
  const Endings endings = try_on_tcp({.size = 2, .timeout = 60s}, [](Ranks& ranks) {
    std::vector<std::byte> values(1000, std::byte{5});
    const std::array<size_t, 4> sizes{1, 1000, 0, 7};
    if (ranks.first()) {
      for (const size_t size : sizes) {
        const Send send{1, std::span(values).first(size)};
        ranks.exchange(std::span(&send, 1), {}, "last words");
      }
      ranks.abort(7);
      throw internal_error("the end of rank 0");
    }
    std::this_thread::sleep_for(200ms);  // the end is there, too
    for (const size_t size : sizes) {
      std::vector<std::byte> got(size);
      const Receive receive{0, got};
      ranks.exchange({}, std::span(&receive, 1), "last words");
      check_internal(std::ranges::count(got, std::byte{5}) == std::ssize(got), "the bytes that were sent");
    }
    for (const auto end = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < end;)
      ranks.check("work");
  });
  CHECK_MESSAGE(contains(endings[1], "[rank 1: work] needed a connection with rank 0"), endings[1]);
  CHECK_MESSAGE(contains(endings[1], "got its end with exit code 7"), endings[1]);
}

TEST_CASE("TCP: a rank that leaves or fails ends the others at once") {
  test::check_a_rank_that_ends([](const auto& body) { return try_on_tcp({.size = 3, .timeout = 60s}, body); },
                               "needed a connection with rank");
}

TEST_CASE("TCP: a rank done without finish() waits for the others") {
  test::check_a_rank_that_is_through(
      [](const auto& body) { return try_on_tcp({.size = 3, .timeout = 60s}, body); });
}

TEST_CASE("TCP: a rank that is silent, and one that says something else") {
  const Endings silent = try_on_tcp({.size = 2, .timeout = 300ms}, [](Ranks& ranks) {
    std::byte byte{};
    const Receive receive{1, std::span(&byte, 1)};
    if (ranks.first()) return ranks.exchange({}, std::span(&receive, 1), "answer");
    ranks.ended_by_other(1s);  // says nothing, and lives
  });
  CHECK(contains(silent[0], "rank 0: answer] needed an answer of rank 1 within 0.3 s, got none"));
  const Endings different = try_on_tcp({.size = 2}, [](Ranks& ranks) {
    std::vector<float> values(ranks.first() ? 10 : 20);
    all_reduce(ranks, std::span(values), "sum");
  });
  const bool told = contains(different[0], "needed 20 bytes from rank 1, got 40") ||
                    contains(different[1], "needed 40 bytes from rank 0, got 20");
  CHECK_MESSAGE(told, different[0] << "\n" << different[1]);
}

TEST_CASE("TCP: ranks that do not meet are told why") {
  const auto alone = [](const TcpJob& job) { return ending_of(job, 200ms, [](Ranks&) {}); };
  const int port = free_port();
  const std::string at = "127.0.0.1:" + std::to_string(port);
  CHECK(contains(alone({1, 2, "127.0.0.1", port}),
                 "rank 1: start] needed rank 0 at " + at + " within 0.2 s, " + "got Connection refused"));
  CHECK(contains(alone({0, 3, "127.0.0.1", port}),
                 "rank 0: start] needed rank 1 within 0.2 s, got none, and 2 "
                 "of 3 ranks are missing"));
  CHECK(contains(alone({1, 2, "nowhere.invalid", port}), "[MASTER_ADDR=nowhere.invalid] needed a host"));
  const test::HeldPort held;
  CHECK(contains(alone({0, 2, "127.0.0.1", held.port()}),
                 "[MASTER_PORT=" + std::to_string(held.port()) +
                     "] needed a port that rank 0 can wait at, got " + "Address already in use"));
}

TEST_CASE("TCP: a rank that waits for rank 0 holds no port") {
  std::string ending;
  std::thread waiting([&] { ending = ending_of({1, 2, "127.0.0.1", free_port()}, 500ms, [](Ranks&) {}); });
  std::this_thread::sleep_for(200ms);
  int listening = 0;
  for (int fd = 0; fd < 1000; ++fd) {
    int yes = 0;
    socklen_t size = sizeof yes;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0) listening += yes;
  }
  waiting.join();
  CHECK(listening == 0);
  CHECK(contains(ending, "needed rank 0 at 127.0.0.1"));
}

TEST_CASE("TCP: ranks of another job, and two of one number") {
  const auto first_of = [](const std::vector<TcpJob>& jobs) {
    std::string first;
    std::vector<std::thread> threads;
    for (const TcpJob& job : jobs) {
      threads.emplace_back([&first, &job] {
        const std::string ending = ending_of(job, 2s, [](Ranks&) {});
        if (job.rank == 0) first = ending;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return first;
  };
  const int port = free_port();
  CHECK(contains(first_of({{0, 3, "127.0.0.1", port}, {1, 2, "127.0.0.1", port}}),
                 "needed WORLD_SIZE=3 on every rank, got 2 on rank 1"));
  const TcpJob second{1, 3, "127.0.0.1", port};
  CHECK(contains(first_of({{0, 3, "127.0.0.1", port}, second, second}),
                 "needed one process of each rank, got a further process with RANK=1"));
}

TEST_CASE("TCP: a stranger at the port is not a rank") {
  const int port = free_port();
  std::thread stranger([&] { test::say(port, std::string(200, 'x')); });
  const Endings endings =
      try_on_tcp({.size = 2, .port = port}, [](Ranks& ranks) { barrier(ranks, "together"); });
  stranger.join();
  CHECK(endings == Endings{"", ""});
}

TEST_CASE("TCP: the job is in the environment") {
  const auto set = [](const char* rank, const char* size, const char* address, const char* port) {
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", size, 1);
    setenv("MASTER_ADDR", address, 1);
    setenv("MASTER_PORT", port, 1);
  };
  set("1", "4", "node1", "29500");
  CHECK(found_launcher()->variable == "WORLD_SIZE");
  const TcpJob job = tcp_job_of_environment();
  CHECK(job.rank == 1);
  CHECK(job.size == 4);
  CHECK(job.address == "node1");
  CHECK(job.port == 29500);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  CHECK(tcp_job_of_environment().port == 29501);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  // One torchrun a host of a SLURM job.
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  CHECK(found_launcher()->variable == "SLURM_STEP_NUM_TASKS");
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  CHECK(found_launcher()->variable == "WORLD_SIZE");
  unsetenv("TORCHELASTIC_RUN_ID");
  unsetenv("SLURM_STEP_NUM_TASKS");
  set("4", "4", "node1", "29500");
  CHECK_THROWS_WITH_AS(launched_ranks(), doctest::Contains("[RANK] needed a number from 0 to 3, got \"4\""),
                       ConfigError);
  set("1", "4", "node1", "x");
  CHECK_THROWS_WITH_AS(launched_ranks(), doctest::Contains("[MASTER_PORT] needed a number"), ConfigError);
  set("1", "4", "", "29500");
  CHECK_THROWS_WITH_AS(launched_ranks(), doctest::Contains("[MASTER_ADDR]"), ConfigError);
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
}
