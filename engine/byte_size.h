// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes: arithmetic, and text with units.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshgrad {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

/// The least multiple of `multiple` (> 0) that is not below `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Bytes of "8GiB", "1.5 GB" or "4096B" (B, kB..TB, KiB..TiB); 0 for "" and "0"; nullopt for any other text.
std::optional<int64_t> parse_size(std::string_view text);

/// A size as text that `parse_size` reads back exactly; "" for 0.
std::string format_size(int64_t bytes);

}  // namespace meshgrad
