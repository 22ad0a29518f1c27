// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace meshgrad {
namespace {

struct SizeUnit {
  std::string_view name;
  double bytes;
};
constexpr SizeUnit kSizeUnits[] = {
    {"TiB", 1099511627776.0},
    {"GiB", 1073741824.0},
    {"MiB", 1048576.0},
    {"KiB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"kB", 1e3},
    {"B", 1},
};
constexpr double kLargestSize = 9007199254740992.0;  // integers below 2^53 survive a double

}  // namespace

std::optional<int64_t> parse_size(std::string_view text) {
  if (text.empty() || text == "0") return 0;
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  for (const SizeUnit& unit : kSizeUnits) {
    if (text != unit.name) continue;
    const double bytes = std::round(number * unit.bytes);
    if (bytes > kLargestSize) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

std::string format_size(int64_t bytes) {
  if (bytes == 0) return "";
  for (const SizeUnit& unit : kSizeUnits) {
    const auto size = static_cast<int64_t>(unit.bytes);
    if (bytes % size == 0) return fmt::format("{}{}", bytes / size, unit.name);
  }
  return fmt::format("{}B", bytes);
}

}  // namespace meshgrad
