// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/bucket_sum.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/cpu_share.h>
#include <meshgrad/engine/ranks/mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <random>

#include "simulated_ranks.h"

using namespace meshgrad;
using namespace meshgrad::test;
using namespace std::chrono_literals;

namespace {

std::vector<float> values_of(int rank, size_t elements) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<float> values(elements);
  for (float& value : values) value = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  return values;
}

std::vector<float> sum_in_order(int ranks, size_t elements) {
  std::vector<float> sum = values_of(0, elements);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> next = values_of(rank, elements);
    for (size_t i = 0; i < elements; ++i) sum[i] += next[i];
  }
  return sum;
}

}  // namespace

TEST_CASE("slices share an array out") {
  for (const int64_t elements : {0, 1, 7, 64}) {
    for (const int size : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const RankSlice slice = rank_slice(elements, rank, size);
        CHECK(slice.begin == next);
        CHECK(slice.size() >= elements / size);
        CHECK(slice.size() <= elements / size + 1);
        next = slice.end;
      }
      CHECK(next == elements);
    }
  }
}

TEST_CASE("an all-reduce adds in the order of the ranks, on every rank") {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const size_t elements : {size_t{0}, size_t{1}, size_t{5}, size_t{1000}}) {
      on_ranks(size, [&](Ranks& ranks) {
        std::vector<float> values = values_of(ranks.rank(), elements);
        all_reduce(ranks, std::span(values), "sum");
        CHECK(values == sum_in_order(size, elements));
      });
    }
  }
}

TEST_CASE("an all-reduce sends 2 (n - 1) / n of the array") {
  on_ranks(4, [](Ranks& ranks) {
    std::vector<double> values(1000, 1.0);
    const int64_t before = ranks.bytes_sent();
    all_reduce(ranks, std::span(values), "sum");
    CHECK(ranks.bytes_sent() - before == 2 * 3 * 250 * 8);
  });
}

TEST_CASE("broadcast, gather, barrier and agreement") {
  for (const int size : {1, 2, 3, 5}) {
    on_ranks(size, [&](Ranks& ranks) {
      for (int root = 0; root < size; ++root) {
        int value = ranks.rank() == root ? 42 + root : 0;
        broadcast(ranks, std::as_writable_bytes(std::span(&value, 1)), root, "value");
        CHECK(value == 42 + root);
        CHECK(agree(ranks, ranks.rank() == root, "flag"));
      }
      CHECK_FALSE(agree(ranks, false, "flag"));
      std::vector<int> all = all_gather(ranks, 10 * ranks.rank(), "numbers");
      for (int rank = 0; rank < size; ++rank) CHECK(all[static_cast<size_t>(rank)] == 10 * rank);
    });
  }
}

TEST_CASE("no rank leaves a barrier before the last has come") {
  for (const uint64_t seed : {1, 2, 3}) {
    std::atomic<int> came = 0;
    on_ranks({.ranks = 5, .seed = seed, .loss = {}}, [&](Ranks& ranks) {
      ++came;
      barrier(ranks, "meeting");
      CHECK(came == 5);
    });
  }
}

TEST_CASE("messages between two ranks are matched in order") {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    on_ranks({.ranks = 3, .seed = seed, .latest = 3ms, .loss = {}}, [](Ranks& ranks) {
      constexpr int kMessages = 20;
      std::vector<Ranks::Exchange> exchanges;
      std::vector<int> sent(kMessages), received(3 * kMessages);
      for (int i = 0; i < kMessages; ++i) {
        sent[static_cast<size_t>(i)] = 100 * ranks.rank() + i;
        std::vector<Send> sends;
        std::vector<Receive> receives;
        for (int other = 0; other < 3; ++other) {  // itself, too
          sends.push_back({other, std::as_bytes(std::span(&sent[static_cast<size_t>(i)], 1))});
          receives.push_back({other, std::as_writable_bytes(std::span(
                                         &received[static_cast<size_t>(kMessages * other + i)], 1))});
        }
        exchanges.push_back(ranks.start_exchange(sends, receives, "numbers"));
      }
      while (!exchanges.empty()) {  // the last first
        ranks.wait(std::move(exchanges.back()));
        exchanges.pop_back();
      }
      for (int other = 0; other < 3; ++other)
        for (int i = 0; i < kMessages; ++i)
          CHECK(received[static_cast<size_t>(kMessages * other + i)] == 100 * other + i);
    });
  }
}

TEST_CASE("a rank that hangs is named with operation and step") {
  const Endings endings =
      try_on_ranks({.ranks = 3, .timeout = 300ms, .loss = {1, 2, true}}, [](Ranks& ranks) {
        for (int step = 0; step < 10; ++step) {
          ranks.set_step(step);
          all_gather(ranks, step, "gradients");
        }
      });
  CHECK(endings[1] == "lost");
  const bool named =
      endings[0].find("rank 0: gradients, step 1] needed an answer of rank 1 within 0.3 s, got none") !=
          std::string::npos ||
      endings[2].find("rank 2: gradients, step 1] needed an answer of rank 1 within 0.3 s, got none") !=
          std::string::npos;
  CHECK_MESSAGE(named, endings[0] << "\n" << endings[2]);
  CHECK(!endings[0].empty());
  CHECK(!endings[2].empty());
}

TEST_CASE("a rank that leaves or fails ends the others at once") {
  for (const bool fails : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    const Endings endings = try_on_ranks({.ranks = 3, .timeout = 60s, .loss = {}}, [&](Ranks& ranks) {
      barrier(ranks, "start");
      if (ranks.rank() != 1) return barrier(ranks, "sum");
      if (fails) throw internal_error("no memory");
      ranks.leave();
    });
    CHECK(std::chrono::steady_clock::now() - begin < 30s);
    CHECK((endings[1].find("no memory") != std::string::npos) == fails);
    CHECK(endings[1].empty() != fails);
    for (const size_t other : {size_t{0}, size_t{2}})
      CHECK_MESSAGE(
          endings[other].find("needed all ranks to go on, got the end of rank") != std::string::npos,
          endings[other]);
  }
}

TEST_CASE("a rank that is done without finish() waits for the others") {
  const Endings endings = try_on_ranks({.ranks = 3, .timeout = 60s, .loss = {}}, [](Ranks& ranks) {
    Ranks own(std::move(ranks));
    barrier(own, "start");
    const int other = 3 - own.rank();
    for (int round = 0; round < 200 && own.rank() > 0; ++round) {
      int here = 100 * own.rank() + round, there = 0;
      const Send send{other, std::as_bytes(std::span(&here, 1))};
      const Receive receive{other, std::as_writable_bytes(std::span(&there, 1))};
      own.exchange(std::span(&send, 1), std::span(&receive, 1), "pairs");
      if (there != 100 * other + round) throw internal_error("another message");
    }
  });
  CHECK(endings == Endings{"", "", ""});
}

TEST_CASE("the end of a rank is no answer to agree()") {
  const Endings endings = try_on_ranks({.ranks = 2, .timeout = 60s, .loss = {}}, [](Ranks& ranks) {
    if (ranks.rank() == 1) agree(ranks, false, "frame");
  });
  CHECK_MESSAGE(endings[1].find("[rank 1: frame] needed all ranks to go on, got the end of rank 0") !=
                    std::string::npos,
                endings[1]);
}

TEST_CASE("wherever a rank ends, all ranks end with an error") {
  std::mt19937 random(7);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const int size = 2 + attempt % 4;
    const SimulatedNetwork::Loss loss{static_cast<int>(random() % static_cast<unsigned>(size)),
                                      static_cast<int64_t>(random() % 12), attempt % 2 == 0};
    const Endings endings =
        try_on_ranks({.ranks = size, .seed = random(), .timeout = 100ms, .loss = loss}, [](Ranks& ranks) {
          std::vector<float> values(10, 1.0f);
          for (int step = 0; step < 20; ++step) all_reduce(ranks, std::span(values), "sum");
        });
    for (const std::string& ending : endings) CHECK(!ending.empty());
  }
}

TEST_CASE("ranks that do different things are told so") {
  const Endings endings = try_on_ranks({.loss = {}}, [](Ranks& ranks) {
    std::vector<float> values(ranks.first() ? 10 : 20);
    all_reduce(ranks, std::span(values), "sum");
  });
  // Whichever rank sees it first tells; the other one ends with it.
  const bool told =
      endings[0].find("rank 0: sum] needed 20 bytes from rank 1, got 40") != std::string::npos ||
      endings[1].find("rank 1: sum] needed 40 bytes from rank 0, got 20") != std::string::npos;
  CHECK_MESSAGE(told, endings[0] << "\n" << endings[1]);
}

TEST_CASE("ranks know who shares their host") {
  on_ranks({.ranks = 5, .ranks_per_host = 2, .loss = {}}, [](Ranks& ranks) {
    CHECK(ranks.local_rank() == ranks.rank() % 2);
    CHECK(ranks.local_size() == (ranks.rank() == 4 ? 1 : 2));
  });
  CHECK(Ranks().local_size() == 1);
}

TEST_CASE("buckets have the sum of all ranks, in any order of arrival") {
  constexpr int64_t kElements = 1000;
  for (const int size : {2, 3, 4}) {
    const std::vector<float> sum = sum_in_order(size, kElements);
    on_ranks(size, [&](Ranks& ranks) {
      const auto buckets = make_bucket_sum(ranks, DType::f32, {0, 1, 300, 800, 999}, "sum");
      std::vector<float> values(kElements);
      const Tensor tensor = Tensor::borrow(values.data(), Shape{kElements}, DType::f32);
      for (int round = 0; round < 3; ++round) {
        const std::vector<float> mine = values_of(ranks.rank(), kElements);
        buckets->start(tensor);
        int64_t known = kElements;  // values in front of it are not computed yet
        const auto compute = [&](int64_t first) {
          std::copy(mine.begin() + first, mine.begin() + known, values.begin() + first);
          known = first;
        };
        const int64_t step = ranks.rank() == 0 ? 1000 : 100 + 150 * ranks.rank();  // rank 0 all at the end
        for (int64_t first = kElements - step; first > 0; first -= step) {
          compute(first);
          buckets->ready_from(first);
          std::fill_n(values.begin(), first, -7.0f);
        }
        compute(0);
        buckets->finish();
        CHECK(values == sum);
        CHECK_FALSE(buckets->started());
      }
    });
  }
}

TEST_CASE("a launcher is known by its environment") {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"}) {
    CHECK_FALSE(found_launcher());
    setenv(name, "1", 1);
    CHECK_FALSE(found_launcher());
    setenv(name, "4", 1);
    REQUIRE(found_launcher());
    CHECK(found_launcher()->variable == name);
    CHECK(found_launcher()->processes == 4);
    unsetenv(name);
  }
  CHECK(launched_ranks().single());
  setenv("WORLD_SIZE", "2", 1);
  // One torchrun a host of a SLURM job, whose variables its processes inherit.
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  CHECK(found_launcher()->variable == "SLURM_STEP_NUM_TASKS");
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  CHECK(found_launcher()->variable == "WORLD_SIZE");
  unsetenv("TORCHELASTIC_RUN_ID");
  unsetenv("SLURM_STEP_NUM_TASKS");
  CHECK_THROWS_WITH_AS(
      launched_ranks(),
      "[WORLD_SIZE=2] needed 2 ranks that MPI connects, got a launcher without MPI, as torchrun "
      "is; fix: start them by mpirun -n 2 or srun, or unset WORLD_SIZE for one process",
      ConfigError);
  unsetenv("WORLD_SIZE");
}

TEST_CASE("ranks of a host share its CPUs") {
  const std::vector<int> four{0, 1, 2, 3};
  CHECK(threads_of_rank({four}, 0, 0.0) == 4);
  CHECK(threads_of_rank({four, four}, 1, 0.0) == 2);
  CHECK(threads_of_rank({four, four, four}, 1, 0.0) == 1);
  CHECK(threads_of_rank({four, four, four, four, four}, 4, 0.0) == 1);
  CHECK(threads_of_rank({{0, 1, 2}, {3}}, 0, 0.0) == 3);  // bound by the launcher
  CHECK(threads_of_rank({{0, 1, 2}, {3}}, 1, 0.0) == 1);
  CHECK(threads_of_rank({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, 2, 0.0) == 1);
  CHECK(threads_of_rank({four, four}, 0, 2.0) == 1);  // a control group's quota
  CHECK(threads_of_rank({four}, 0, 3.0) == 3);
  on_ranks(2, [](Ranks& ranks) { CHECK(threads_of_rank(ranks) >= 1); });
}
