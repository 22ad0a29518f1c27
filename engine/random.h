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

/// The finaliser of splitmix64: keys that differ in one bit give unrelated values.
constexpr uint64_t mixed_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// 128 random bits for a 128-bit counter. Kernels call it, too.
constexpr std::array<uint32_t, 4> philox(RandomKey key, std::array<uint32_t, 4> counter) {
  auto k0 = static_cast<uint32_t>(key.seed);
  auto k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53u} * counter[0];
    const uint64_t p1 = uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return counter;
}

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
