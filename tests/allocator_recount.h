// SPDX-License-Identifier: Apache-2.0
// An allocator's books, audited: every counter is recounted from the blocks of the same instant. And
// what the tests that deal in random operations share.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/engine/random.h>

#include <cmath>
#include <string>

#include "test_memory_source.h"

namespace meshgrad::test {

/// What is wrong with a snapshot, a line each; empty when blocks tile their segments, mappings lie inside,
/// nothing overlaps, free neighbours are one block, and every current counter equals its recount.
std::string recount(const MemorySnapshot& snapshot);

/// The same, and that the allocator and its source agree on what is mapped, byte by byte. The source serves
/// only this allocator.
std::string recount(const MemorySnapshot& snapshot, const TestMemorySource& source);

/// Random numbers, one after another.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  uint64_t seed() const { return seed_; }
  double unit() { return uniform(seed_, 0, next_++); }
  size_t below(size_t count) { return uniform_below(seed_, 0, next_++, count); }
  /// From 0 to `most`, every power of two as likely as the next.
  int64_t size(int64_t most) {
    return static_cast<int64_t>(std::exp2(unit() * std::log2(static_cast<double>(most + 1)))) - 1;
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif

/// `operations`, or half of them where a sanitizer makes each of them many times as slow.
constexpr int64_t scaled(int64_t operations) { return kSanitizer ? operations / 2 : operations; }
/// The same for a test of one thread, in which ThreadSanitizer has little to find.
constexpr int64_t scaled_for_one_thread(int64_t operations) {
  return kThreadSanitizer ? operations / 10 : scaled(operations);
}

}  // namespace meshgrad::test
