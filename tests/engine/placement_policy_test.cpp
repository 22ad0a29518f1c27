// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/detail/placement_policy.h>
#include <meshgrad/engine/random.h>

#include <doctest/doctest.h>
#include <algorithm>
#include <vector>

namespace meshgrad {
namespace {

struct Placed {
  int64_t bytes = 0;
  PlacementPolicy::Ticket ticket;
  Placement placement = Placement::low;
};

Placed place(PlacementPolicy& policy, int64_t bytes, uint64_t owner = 0) {
  Placed block{bytes, {}, Placement::low};
  block.placement = policy.place(bytes, owner, block.ticket);
  policy.allocated(bytes, block.ticket);
  return block;
}

void free(PlacementPolicy& policy, const Placed& block) { policy.freed(block.bytes, block.ticket); }

/// Where a step's blocks went.
struct Step {
  std::vector<Placement> kept, scratch, gradients;
};

/// A training step on a mesh of `unit` bytes per tensor: each layer saves an activation for the backward pass
/// and uses two scratch blocks, one as large as the activation; then the layers run in reverse, each with a
/// small gradient that lives until the end.
Step train(PlacementPolicy& policy, int64_t unit) {
  constexpr int kLayers = 12;
  Step step;
  std::vector<Placed> kept, gradients;
  for (int i = 0; i < kLayers; ++i) {
    const Placed wide = place(policy, 3 * unit);
    kept.push_back(place(policy, unit));
    const Placed narrow = place(policy, unit);
    free(policy, wide);
    free(policy, narrow);
    step.kept.push_back(kept.back().placement);
    step.scratch.push_back(wide.placement);
    step.scratch.push_back(narrow.placement);
  }
  for (; !kept.empty(); kept.pop_back()) {
    gradients.push_back(place(policy, 64 << 10));
    step.gradients.push_back(gradients.back().placement);
    free(policy, kept.back());
  }
  for (const Placed& gradient : gradients) free(policy, gradient);
  return step;
}

int count(const std::vector<Placement>& placements, Placement wanted) {
  return static_cast<int>(std::count(placements.begin(), placements.end(), wanted));
}

/// Multiples of 512 bytes from 6 to 14 MiB.
int64_t random_unit(uint32_t step) {
  return 512 * (12 * 1024 + static_cast<int64_t>(16 * 1024 * uniform(1, 2, step)));
}

TEST_CASE("large blocks go low until something has been learned") {
  PlacementPolicy policy;
  const Step first = train(policy, 8 * kMiB);
  CHECK(count(first.kept, Placement::low) == 12);
  CHECK(count(first.scratch, Placement::low) == 24);
}

TEST_CASE("the policy learns a pattern that repeats at changing scales") {
  PlacementPolicy policy;
  for (uint32_t i = 0; i < 8; ++i) train(policy, random_unit(i));
  for (uint32_t i = 8; i < 30; ++i) {
    CAPTURE(i);
    const Step step = train(policy, random_unit(i));
    CHECK(count(step.scratch, Placement::high) == 24);
    // The last layers' activations are gone as soon as scratch is: 3 of them die within 0.3 of the peak.
    CHECK(count({step.kept.begin(), step.kept.end() - 3}, Placement::low) == 9);
    CHECK(count(step.gradients, Placement::slab) == 12);
  }
}

TEST_CASE("an interruption of the pattern is got over") {
  PlacementPolicy policy;
  for (uint32_t i = 0; i < 8; ++i) train(policy, random_unit(i));
  // An evaluation: no activation is kept.
  for (int i = 0; i < 20; ++i) free(policy, place(policy, 5 * kMiB));
  train(policy, random_unit(8));
  CHECK(count(train(policy, random_unit(9)).scratch, Placement::high) == 24);
}

TEST_CASE("forecasts that do not come true are not followed") {
  PlacementPolicy policy;
  // Frees come in an order of their own each time.
  std::vector<Placed> live;
  int high = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    live.push_back(place(policy, 8 * kMiB));
    if (live.back().placement == Placement::high) ++high;
    if (live.size() < 16) continue;
    const auto victim = static_cast<size_t>(static_cast<double>(live.size()) * uniform(3, 4, i));
    free(policy, live[victim]);
    live.erase(live.begin() + static_cast<int64_t>(victim));
  }
  CHECK(high < 50);
}

/// Steps of two kinds in random order, with equal sizes: one frees every block at once, the other frees none.
/// Returns how many of 200 blocks near the beginning of a step, before the first free, were placed for their
/// kind.
int count_right(bool named) {
  PlacementPolicy policy;
  int right = 0;
  for (uint32_t step = 0; step < 140; ++step) {
    const bool short_lived = uniform(5, 6, step) < 0.5;
    const auto owner = [&](int i) {
      return named ? static_cast<uint64_t>(2 * i + (short_lived ? 1 : 2)) : 0;
    };
    std::vector<Placed> kept;
    for (int i = 0; i < 24; ++i) {
      const Placed block = place(policy, 8 * kMiB, owner(i));
      if (step >= 40 && (i == 2 || i == 3) &&
          block.placement == (short_lived ? Placement::high : Placement::low))
        ++right;
      if (short_lived && i >= 3) {
        free(policy, block);
      } else {
        kept.push_back(block);
      }
      if (short_lived && i == 3)
        for (; !kept.empty(); kept.pop_back()) free(policy, kept.back());
    }
    for (const Placed& block : kept) free(policy, block);
  }
  return right;
}

TEST_CASE("requests of equal size are separated by name") {
  CHECK(count_right(true) == 200);
  CHECK(count_right(false) < 170);
}

TEST_CASE("a heap of small blocks has no use for slabs") {
  PlacementPolicy policy;
  std::vector<Placed> live;
  for (int i = 0; i < 100; ++i) {
    live.push_back(place(policy, 100 << 10));
    CHECK(live.back().placement == Placement::low);
  }
  live.push_back(place(policy, 100 * kMiB));
  CHECK(place(policy, 100 << 10).placement == Placement::slab);
}

TEST_CASE("what is older than the log is forgotten without harm") {
  PlacementPolicy policy;
  const Placed oldest = place(policy, kMiB);
  for (int i = 0; i < 100000; ++i) free(policy, place(policy, kMiB));
  free(policy, oldest);
  for (uint32_t i = 0; i < 8; ++i) train(policy, random_unit(i));
  CHECK(count(train(policy, random_unit(8)).scratch, Placement::high) == 24);
}

TEST_CASE("two policies that see the same say the same") {
  PlacementPolicy a, b;
  for (uint32_t i = 0; i < 20; ++i) {
    const Step first = train(a, random_unit(i)), second = train(b, random_unit(i));
    CHECK(first.kept == second.kept);
    CHECK(first.scratch == second.scratch);
    CHECK(first.gradients == second.gradients);
  }
}

TEST_CASE("what found no room is forgotten") {
  PlacementPolicy policy;
  for (const int64_t unit : {40, 50, 30, 45}) train(policy, unit << 20);
  PlacementPolicy::Ticket refused;
  policy.place(int64_t{1} << 40, 0, refused);
  const std::vector<Placement> scratch = train(policy, int64_t{35} << 20).scratch;
  CHECK(count(scratch, Placement::high) > static_cast<int64_t>(scratch.size()) / 3);
}

}  // namespace
}  // namespace meshgrad
