// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value depends on its key and counter and on nothing else, so that it does
// not change with batch size, accumulation, recomputation or ranks. Philox 4x32-10: Salmon, Moraes, Dror,
// Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace meshgrad {

struct RandomKey {
  uint64_t seed = 0;
};

/// 128 random bits for a 128-bit counter.
std::array<uint32_t, 4> philox(RandomKey key, std::array<uint32_t, 4> counter);

/// Standard normal for (seed, how often the sample was visited, sample, node, component).
double training_noise(uint64_t seed, uint32_t visit, uint64_t sample, uint32_t node, uint32_t component);

/// Uniform in [0, 1) for a numbered draw of a numbered purpose.
double uniform(uint64_t seed, uint64_t purpose, uint64_t index);

/// Uniform integer in [0, count) for a numbered draw; count >= 1.
uint64_t uniform_below(uint64_t seed, uint64_t purpose, uint64_t index, uint64_t count);

/// Where position `index` of 0 .. count-1 goes in the shuffle named by (seed, round): a permutation that
/// needs no memory. A Feistel network over the next power of four, walked until it lands inside (Black,
/// Rogaway 2002).
uint64_t shuffled(uint64_t seed, uint64_t round, uint64_t index, uint64_t count);

/// A fixed function of bytes (FNV-1a): for the purpose that a name stands for, and to compare values by.
uint64_t hash_of(std::string_view bytes);

/// Standard normal for a numbered draw of a numbered purpose.
double normal(uint64_t seed, uint64_t purpose, uint64_t index);

}  // namespace meshgrad
