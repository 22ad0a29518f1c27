// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/step_plan.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>

#include <algorithm>
#include <cstring>

namespace meshgrad {
namespace {

constexpr int64_t kFencePage = 2048 * kKiB;

/// Blocks that live at the same time lie apart, within the region.
void check_places(const StepPlan& plan) {
  int64_t end = 0;
  for (const auto& a : plan.entries()) {
    if (a.dies < 0) continue;
    end = std::max(end, a.offset + a.bytes);
    for (const auto& b : plan.entries()) {
      if (&a == &b || b.dies < a.born || a.dies < b.born) continue;
      if (a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) continue;
      FAIL_CHECK("blocks that live at the same time overlap");
    }
  }
  CHECK(end == plan.bytes());
  CHECK(plan.bytes() >= plan.peak());
}

/// Blocks of random sizes and lives.
StepPlan random_plan(uint64_t seed, int count) {
  StepPlan plan;
  plan.start();
  std::vector<int64_t> live;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<uint64_t>(i);
    live.push_back(plan.allocated(512 * (1 + static_cast<int64_t>(uniform_below(seed, 1, at, 400)))));
    while (!live.empty() && uniform_below(seed, 2, at + 1000 * live.size(), 3) == 0) {
      const size_t which = uniform_below(seed, 3, at + 1000 * live.size(), live.size());
      plan.freed(live[which]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (const int64_t entry : live) plan.freed(entry);
  plan.finish();
  return plan;
}

TEST_CASE("planned places of blocks with any lives never overlap") {
  double worst = 0.0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const StepPlan plan = random_plan(seed, 300);
    check_places(plan);
    worst = std::max(worst, static_cast<double>(plan.bytes()) / static_cast<double>(plan.peak()));
  }
  MESSAGE("largest region over what must live at once, random lives: " << worst);
  CHECK(worst < 1.1);
}

/// A step like training's: every block of the network saves three tensors and uses scratch; the backward pass
/// frees them one after the other. `scale` makes its tensors larger.
void step(Runtime& runtime, int64_t scale, std::vector<void*>& addresses) {
  const auto tensor = [&](int64_t kib, Tag tag) {
    Tensor made = Tensor::empty(runtime, Shape{kib * kKiB * scale}, DType::u8, tag, "tensor");
    std::memset(made.raw(), 1, static_cast<size_t>(made.bytes()));
    addresses.push_back(made.raw());
    return made;
  };
  std::vector<Tensor> kept;
  for (int block = 0; block < 12; ++block) {
    const Tensor scratch = tensor(900 + 7 * block, Tag::workspace);
    for (int i = 0; i < 3; ++i) kept.push_back(tensor(300 + 11 * i, Tag::activations));
  }
  Tensor gradient = tensor(500, Tag::activations);
  while (!kept.empty()) {
    const Tensor scratch = tensor(700, Tag::workspace);
    gradient = tensor(500, Tag::activations);
    kept.pop_back();
  }
}

TEST_CASE("a repeated step takes little more than its peak") {
  Runtime runtime;
  CachingAllocator& allocator = runtime.allocator();
  const Tensor weights = Tensor::empty(runtime, Shape{5000 * kKiB}, DType::u8, Tag::parameters, "weights");
  const int64_t before = allocator.stats().allocated.current;
  StepPlan plan;
  std::vector<std::vector<void*>> addresses(4);
  for (auto& seen : addresses) {
    PlannedStep planned(allocator, plan, runtime.stream());
    step(runtime, 1, seen);
    planned.done();
  }
  check_places(plan);
  CHECK(plan.ready());
  CHECK(addresses[1] == addresses[2]);
  CHECK(addresses[1] == addresses[3]);
  const MemoryStats stats = allocator.stats();
  CHECK(stats.allocated.current == before);
  CHECK(stats.allocated.peak == before + plan.peak());
  const int64_t spare = std::max(plan.peak() / 500, kFencePage);
  CHECK(stats.reserved.current <= before + plan.peak() + spare);
}

TEST_CASE("a step that leaves its plan is as right as any") {
  Runtime runtime;
  StepPlan plan;
  std::vector<void*> addresses;
  {
    PlannedStep planned(runtime.allocator(), plan, runtime.stream());
    step(runtime, 1, addresses);
    planned.done();
  }
  const int64_t live = runtime.allocator().stats().allocated.current;
  for (const int64_t scale : {3, 1, 2}) {  // larger, as planned, larger again
    PlannedStep planned(runtime.allocator(), plan, runtime.stream());
    // In the way of what is planned, and alive when the step has ended.
    const Tensor early = Tensor::zeros(runtime, Shape{100 * kKiB}, DType::u8, Tag::workspace, "early");
    step(runtime, scale, addresses);
    const auto* bytes = early.data<uint8_t>();
    CHECK(std::all_of(bytes, bytes + early.elements(), [](uint8_t byte) { return byte == 0; }));
    planned.done();
  }
  CHECK(runtime.allocator().stats().allocated.current == live);
}

TEST_CASE("a recording that is not done is dropped") {
  Runtime runtime;
  StepPlan plan;
  std::vector<void*> addresses;
  { const PlannedStep planned(runtime.allocator(), plan, runtime.stream()); }
  CHECK_FALSE(plan.ready());
  Tensor outlives;
  {
    PlannedStep planned(runtime.allocator(), plan, runtime.stream());
    step(runtime, 1, addresses);
    outlives = Tensor::zeros(runtime, Shape{512}, DType::u8, Tag::workspace, "outlives");
    planned.done();
  }
  CHECK(plan.ready());
  CHECK(plan.entries().back().dies == -1);
  CHECK(plan.entries().size() == addresses.size() + 1);
  outlives = Tensor();  // after the recording: no business of the plan's
  CHECK(plan.entries().back().dies == -1);
}

}  // namespace
}  // namespace meshgrad
