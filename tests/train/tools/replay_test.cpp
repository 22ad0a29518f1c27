// SPDX-License-Identifier: Apache-2.0
// Traces replayed: the simulated policies against figures worked out by hand and known ones.
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/tools/extras/replay/replay.h>
#include <meshgrad/train/tools/extras/replay/simulated_policies.h>

#include <cmath>
#include <map>
#include <sstream>

#include "paths.h"

namespace meshgrad {
namespace {

std::string traces(const std::string& name) { return test::data_file("traces/") + name; }

/// Sizes in MiB: "16 16 -0 32@1" allocates block 0, block 1, frees block 0, allocates block 2 on stream 1.
MemoryTrace trace_of(const std::string& words) {
  std::istringstream in(words);
  std::string text;
  int next = 0;
  for (std::string word; in >> word;) {
    if (word[0] == '-') {
      text += "f " + word.substr(1) + "\n";
      continue;
    }
    const size_t at = word.find('@');
    const auto bytes = static_cast<int64_t>(std::stod(word) * kMiB);
    text += "a " + std::to_string(next++) + " " + std::to_string(bytes) +
            (at == std::string::npos ? "" : " " + word.substr(at + 1)) + "\n";
  }
  return parse_memory_trace(text, "trace");
}

/// Expected of a policy: reserved MiB and driver calls of the run without a limit, smallest capacity in MiB.
struct Expected {
  double reserved;
  int64_t calls;
  double min_capacity;
};

void check_policies(const std::string& words, const std::map<std::string, Expected>& expected) {
  CAPTURE(words);
  const MemoryTrace trace = trace_of(words);
  for (const auto& one : expected) {
    const auto& name = one.first;
    const Expected& want = one.second;
    CAPTURE(name);
    const ReplayReport report = replay_trace(trace, find_replay_policy(name));
    CHECK(report.unlimited.peak_reserved == static_cast<int64_t>(want.reserved * kMiB));
    CHECK(report.unlimited.driver_calls == want.calls);
    CHECK(report.unlimited.flushes == 0);
    CHECK(report.min_capacity == static_cast<int64_t>(want.min_capacity * kMiB));
  }
}

TEST_CASE("small blocks leave segments that large ones cannot use") {
  check_policies("16 16 16 16 16 16 16 16 -0 -1 -2 -3 -4 -5 -6 -7 32 32 32 32",
                 {{"pytorch-native", {256, 12, 128}},
                  {"pytorch-expandable", {140, 1 + 7, 140}},
                  {"rmm-pool", {256, 1, 128}},
                  {"first-fit", {128, 1 + 8, 128}},
                  {"first-fit-256k", {128, 1 + 8, 128}},
                  {"best-fit", {128, 1 + 8, 128}}});
  check_policies("32 32 32 32 -0 -1 -2 -3 16 16 16 16 16 16 16 16",
                 {{"pytorch-native", {128, 4, 128}},
                  {"pytorch-expandable", {140, 1 + 7, 140}},
                  {"rmm-pool", {256, 1, 128}},
                  {"first-fit", {128, 1 + 4, 128}}});
}

TEST_CASE("sizes of PyTorch's segments") {
  check_policies("0.25 1", {{"pytorch-native", {2, 1, 2}}, {"pytorch-expandable", {2, 2, 2}}});
  check_policies("1.0001", {{"pytorch-native", {20, 1, 20}}, {"pytorch-expandable", {20, 2, 20}}});
  check_policies("1 1.5", {{"pytorch-native", {22, 2, 22}}, {"pytorch-expandable", {22, 4, 22}}});
  check_policies("9.5", {{"pytorch-native", {20, 1, 20}}});
  check_policies("10", {{"pytorch-native", {10, 1, 10}}, {"pytorch-expandable", {20, 2, 20}}});
  check_policies("10.5", {{"pytorch-native", {12, 1, 12}}});
  // A remainder of up to 1 MiB is not cut off a large block, one of a small block is from 512 B.
  check_policies("19 -0 18 1.5", {{"pytorch-native", {20, 1, 20}}});
  check_policies("19.5 -0 19 1", {{"pytorch-native", {22, 2, 22}}, {"pytorch-expandable", {22, 4, 22}}});
  check_policies("11 -0 9.5 1.5", {{"pytorch-native", {12, 1, 12}}});
  check_policies("11 -0 11 1.001", {{"pytorch-native", {32, 2, 32}}});
}

TEST_CASE("RMM's pool doubles, or takes what there is") {
  check_policies("256 100", {{"rmm-pool", {512, 2, 356}}});
  check_policies("300", {{"rmm-pool", {556, 2, 556}}});
  check_policies("100@0 -0 200@1 -1 256@2", {{"rmm-pool", {256, 1, 256}}});
  const ReplayPolicy& rmm = find_replay_policy("rmm-pool");
  const ReplayRun run = run_trace(trace_of("256 100"), rmm, 400 * kMiB);
  CHECK(run.completes);
  CHECK(run.peak_reserved == 384 * kMiB);  // 256 and 128
  CHECK_FALSE(run_trace(trace_of("256 100"), rmm, 355 * kMiB).completes);
}

TEST_CASE("which block is taken") {
  // Two free blocks, of 4 and 2 MiB, and a request for 2.
  check_policies("4 2 2 2 -0 -2 2 4", {{"first-fit", {14, 1 + 5, 10}}, {"best-fit", {10, 1 + 4, 10}}});
  // An inner block is preferred to one that could grow, even if that is smaller now.
  check_policies("4 2 2 -0 -2 2 4", {{"best-fit", {8, 1 + 3, 8}}, {"first-fit", {10, 1 + 4, 8}}});
  check_policies("36 2 8 -0 -2 10 30", {{"pytorch-expandable", {80, 1 + 4, 80}}});
  // Growth joins the free block before it.
  check_policies("2 3 -1 7", {{"first-fit", {10, 1 + 3, 10}}});
}

TEST_CASE("borders and streams keep blocks apart") {
  check_policies("0.25 0.251", {{"first-fit", {2, 2, 2}}, {"first-fit-256k", {4, 4, 4}}});
  check_policies("2@0 -0 2@1", {{"first-fit", {4, 4, 2}},
                                {"first-fit-256k", {4, 4, 2}},
                                {"best-fit", {4, 4, 2}},
                                {"pytorch-native", {40, 2, 20}},
                                {"pytorch-expandable", {40, 4, 20}}});
}

TEST_CASE("memory that runs short is flushed") {
  const MemoryTrace trace = trace_of("20 20 20 -0 -2 40");
  const auto run = [&](const char* policy, int64_t mib) {
    return run_trace(trace, find_replay_policy(policy), mib * kMiB);
  };
  const std::map<std::string, int64_t> calls{
      {"pytorch-native", 3 + 2 + 1}, {"pytorch-expandable", 1 + 3 + 2 + 2}, {"first-fit", 1 + 3 + 2 + 1}};
  for (const auto& one : calls) {
    const std::string& policy = one.first;
    const int64_t want = one.second;
    CAPTURE(policy);
    const ReplayRun short_run = run(policy.c_str(), 60);
    CHECK(short_run.completes);
    CHECK(short_run.flushes == 1);
    CHECK(short_run.driver_calls == want);
    CHECK(short_run.peak_reserved == 60 * kMiB);
    CHECK_FALSE(run(policy.c_str(), 59).completes);
  }
  // The hole of 20 MiB at the start is used before new addresses, and pages in use stay.
  const ReplayRun refilled =
      run_trace(trace_of("20 21 19 -0 -2 40 -3 20"), find_replay_policy("pytorch-expandable"), 80 * kMiB);
  CHECK(refilled.completes);
  CHECK(refilled.peak_reserved == 80 * kMiB);
}

TEST_CASE("fragmentation when reserved peaks") {
  const auto of = [](const char* policy, const std::string& words) {
    return run_trace(trace_of(words), find_replay_policy(policy), kUnlimited).fragmentation_at_peak;
  };
  CHECK(of("pytorch-native", "0.5") == 0.0);                               // 1.5 MiB, one block
  CHECK(of("pytorch-native", "0.5 2") == doctest::Approx(1 - 18 / 19.5));  // 1.5 and 18 MiB
  CHECK(of("pytorch-native", "19.5 2") == 0.0);                       // half a MiB stays with the first block
  CHECK(of("first-fit", "2 2 2 2 -0 -2 4") == doctest::Approx(0.5));  // two of 2 MiB
  CHECK(of("first-fit", "2") == 0.0);                                 // none is free
}

/// Random allocations and frees on two streams, of sizes of all classes.
MemoryTrace random_trace(uint64_t seed) {
  std::string text;
  std::vector<uint64_t> live;
  for (uint64_t i = 0; i < 4000; ++i) {
    const auto below = [&](uint64_t purpose, uint64_t count) {
      return uniform_below(seed, purpose, i, count);
    };
    if (!live.empty() && below(0, 100) < 48) {
      const auto victim = live.begin() + static_cast<std::ptrdiff_t>(below(1, live.size()));
      text += "f " + std::to_string(*victim) + "\n";
      live.erase(victim);
    } else {
      const auto bytes = static_cast<int64_t>(std::exp2(24 * uniform(seed, 2, i)));
      text +=
          "a " + std::to_string(i) + " " + std::to_string(bytes) + " " + std::to_string(below(3, 2)) + "\n";
      live.push_back(i);
    }
  }
  for (const uint64_t id : live) text += "f " + std::to_string(id) + "\n";
  return parse_memory_trace(text, "random");
}

TEST_CASE("every byte of a simulated allocator is free or used") {
  const std::map<std::string, int64_t> rounding{{"pytorch-expandable", 512},
                                                {"rmm-pool", 256},
                                                {"first-fit", 512},
                                                {"first-fit-256k", 512},
                                                {"best-fit", 512}};
  for (const uint64_t seed : {1, 2, 3}) {
    const MemoryTrace trace = random_trace(seed);
    for (const ReplayPolicy& policy : replay_policies()) {
      CAPTURE(policy.name);
      const int64_t capacity = trace.peak_requested + trace.peak_requested / 4;
      const auto allocator = policy.make(trace, capacity);
      std::vector<void*> blocks(trace.slots);
      std::vector<int64_t> sizes(trace.slots);
      int64_t used = 0;
      int faults = 0;
      const auto rule = rounding.find(std::string(policy.name));
      for (const MemoryTrace::Event& event : trace.events) {
        if (event.allocates()) {
          blocks[event.slot] = allocator->allocate(event);
          const int64_t multiple = rule == rounding.end() ? 1 : rule->second;
          sizes[event.slot] = (event.bytes + multiple - 1) / multiple * multiple;
          if (blocks[event.slot] != nullptr) used += sizes[event.slot];
        } else if (blocks[event.slot] != nullptr) {
          allocator->free(blocks[event.slot]);
          used -= sizes[event.slot];
        }
        const ReplayedAllocator::FreeMemory free = allocator->free_memory();
        const int64_t accounted = used + free.total;
        if (rule == rounding.end() ? accounted > allocator->reserved() : accounted != allocator->reserved())
          ++faults;
        if (allocator->reserved() > capacity || free.largest > free.total) ++faults;
      }
      CHECK(faults == 0);
      CHECK(used == 0);
      CHECK(allocator->free_memory().total == allocator->reserved());
    }
  }
}

TEST_CASE("the smallest capacity completes, and 64 KiB less does not") {
  const MemoryTrace trace = random_trace(4);
  for (const ReplayPolicy& policy : replay_policies()) {
    CAPTURE(policy.name);
    const ReplayReport report = replay_trace(trace, policy, int64_t{3} * kMiB);
    const ReplayRun smallest = run_trace(trace, policy, report.min_capacity);
    CHECK(smallest.completes);
    CHECK(smallest.peak_reserved <= report.min_capacity);
    CHECK_FALSE(run_trace(trace, policy, report.min_capacity - 65536).completes);
    CHECK(report.min_capacity >= trace.peak_requested);
    CHECK(report.min_capacity <= report.unlimited.peak_reserved);
    CHECK(report.ratio() >= 1.0);
    CHECK(report.ns_per_operation > 0);
    REQUIRE(report.at_capacity);
    CHECK_FALSE(report.at_capacity->completes);
  }
}

struct Figure {
  std::string trace;
  double scale;
  std::string policy;
  double ratio;
  double min_capacity_ratio;
  int flushes;  // at 1.05x; -1: out of memory
};

TEST_CASE("recorded training gives the known figures") {
  const Figure figures[] = {
      {"mgn_train", 1.0, "pytorch-native", 1.845, 1.072, -1},
      {"mgn_train", 1.0, "pytorch-expandable", 1.0112, 1.0099, 0},
      {"mgn_train", 1.0, "rmm-pool", 1.264, 1.008, 0},
      {"mgn_train", 1.0, "first-fit-256k", 1.0062, 1.0025, 0},
      {"mgn_train", 1.0, "first-fit", 1.0037, 1.0037, 0},
      {"mgn_train", 1.0, "best-fit", 1.0198, 1.0014, 0},
      {"mgn_train", 0.5, "pytorch-native", 1.126, 1.065, -1},
      {"mgn_train", 0.5, "pytorch-expandable", 1.0766, 1.0174, 5},
      {"mgn_train", 0.5, "rmm-pool", 1.264, 1.008, 0},
      {"mgn_train", 0.5, "first-fit-256k", 1.0074, 1.0074, 0},
      {"mgn_train", 0.5, "first-fit", 1.0050, 1.0028, 0},
      {"mgn_train", 0.5, "best-fit", 1.0198, 1.0028, 0},
      {"mgn_ckpt_eval", 1.0, "pytorch-native", 1.664, 1.081, -1},
      {"mgn_ckpt_eval", 1.0, "pytorch-expandable", 1.117, 1.108, -1},
      {"mgn_ckpt_eval", 1.0, "first-fit", 1.067, 1.018, 2},
      {"mgn_ckpt_eval", 0.5, "pytorch-expandable", 1.274, 1.175, -1},
  };
  std::map<std::pair<std::string, double>, MemoryTrace> read;
  for (const Figure& figure : figures) {
    CAPTURE(figure.trace);
    CAPTURE(figure.scale);
    CAPTURE(figure.policy);
    MemoryTrace& trace = read[{figure.trace, figure.scale}];
    if (trace.events.empty()) trace = read_memory_trace(traces(figure.trace + ".txt.gz"), figure.scale);
    const ReplayReport report = replay_trace(trace, find_replay_policy(figure.policy));
    const double tolerance = figure.policy.starts_with("pytorch") ? 0.001 : 0.0006;
    CHECK(std::abs(report.ratio() - figure.ratio) <= tolerance);
    CHECK(std::abs(report.min_capacity_ratio() - figure.min_capacity_ratio) <= tolerance);
    CHECK((report.tight.completes ? report.tight.flushes : -1) == figure.flushes);
  }
}

TEST_CASE("the engine's own policy stays as good as it was") {
  struct Bound {
    std::string trace;
    double scale, ratio, min_capacity_ratio;
  };
  const Bound bounds[] = {
      {"mgn_train", 1.0, 1.006, 1.004},         {"mgn_train", 0.5, 1.006, 1.006},
      {"mgn_ckpt_eval", 1.0, 1.035, 1.02},      {"mgn_ckpt_eval", 0.5, 1.05, 1.05},
      {"mgn_accumulate", 1.0, 1.01, 1.01},      {"mgn_accumulate", 0.5, 1.02, 1.02},
      {"mgn_ckpt_accumulate", 1.0, 1.05, 1.04}, {"meshgrad_sample", 1.0, 1.02, 1.02},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.trace);
    CAPTURE(bound.scale);
    const MemoryTrace trace = read_memory_trace(traces(bound.trace + ".txt.gz"), bound.scale);
    const ReplayReport report = replay_trace(trace, find_replay_policy("default"));
    const ReplayReport first_fit = replay_trace(trace, find_replay_policy("first-fit"));
    CHECK(report.ratio() <= bound.ratio);
    CHECK(report.min_capacity_ratio() <= bound.min_capacity_ratio);
    CHECK(static_cast<double>(report.unlimited.driver_calls) <=
          1.2 * static_cast<double>(first_fit.unlimited.driver_calls));
    CHECK(report.tight.completes);
    CHECK(report.tight.flushes <= 2);
  }
}

}  // namespace
}  // namespace meshgrad
