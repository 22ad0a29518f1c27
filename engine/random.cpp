// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>

#include <cmath>
#include <numbers>
#include <utility>

namespace meshgrad {
namespace {

std::array<uint32_t, 4> counter_of(uint64_t low, uint64_t high) {
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}

double unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double box_muller(const std::array<uint32_t, 4>& bits) {
  const double radius = std::sqrt(-2.0 * std::log1p(-unit(bits[0], bits[1])));
  return radius * std::cos(2.0 * std::numbers::pi * unit(bits[2], bits[3]));
}

}  // namespace

double training_noise(uint64_t seed, uint32_t visit, uint64_t sample, uint32_t node, uint32_t component) {
  const RandomKey key{mixed_bits(mixed_bits(seed) ^ sample)};
  return box_muller(philox(key, {node, component, visit, 0x6e6f6973u}));
}

double uniform(uint64_t seed, uint64_t purpose, uint64_t index) {
  const auto bits = philox({mixed_bits(seed)}, counter_of(index, purpose));
  return unit(bits[0], bits[1]);
}

uint64_t uniform_below(uint64_t seed, uint64_t purpose, uint64_t index, uint64_t count) {
  const auto bits = philox({mixed_bits(seed)}, counter_of(index, purpose));
  // A remainder of 64 random bits: for counts below 2^32 its bias is below 2^-32.
  return (static_cast<uint64_t>(bits[0]) << 32 | bits[1]) % count;
}

uint64_t shuffled(uint64_t seed, uint64_t round, uint64_t index, uint64_t count) {
  check_internal(index < count, "a place in a permutation beyond its end");
  int half_bits = 1;
  while (half_bits < 32 && (uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const RandomKey key{mixed_bits(mixed_bits(seed) ^ mixed_bits(round + 1))};
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & mask;
    for (uint32_t stage = 0; stage < 6; ++stage) {
      const uint64_t scrambled = philox(key, {static_cast<uint32_t>(right), stage, 0x73687566u, 0})[0] & mask;
      left = std::exchange(right, left ^ scrambled);
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

double normal(uint64_t seed, uint64_t purpose, uint64_t index) {
  return box_muller(philox({mixed_bits(seed)}, counter_of(index, purpose)));
}

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace meshgrad
