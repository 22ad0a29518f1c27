// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value is a pure function of its key and counter, so that it does not change
// with batch size, accumulation, recomputation or ranks. Philox 4x32-10: Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// `purpose` separates streams of draws that share a seed (hash_of a name gives one); `index` numbers the
// draws.
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

/// Standard normal noise; `visit` counts how often training has used the sample.
double training_noise(uint64_t seed, uint32_t visit, uint64_t sample, uint32_t node, uint32_t component);

/// Uniform in [0, 1).
double uniform(uint64_t seed, uint64_t purpose, uint64_t index);

/// Uniform integer in [0, count), count >= 1; biased by less than 2^-32 for counts below 2^32.
uint64_t uniform_below(uint64_t seed, uint64_t purpose, uint64_t index, uint64_t count);

/// Element `index` of a random permutation of 0 .. count-1, given by (seed, round), in constant memory: a
/// Feistel network over the next power of four, iterated until its result is below count (cycle walking;
/// Black, Rogaway, "Ciphers with arbitrary finite domains", 2002).
uint64_t shuffled(uint64_t seed, uint64_t round, uint64_t index, uint64_t count);

/// FNV-1a hash of bytes; the same on every machine.
uint64_t hash_of(std::string_view bytes);

/// Standard normal, by the Box-Muller transform.
double normal(uint64_t seed, uint64_t purpose, uint64_t index);

}  // namespace meshgrad
