// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/number.h>

#include <array>
#include <charconv>
#include <cmath>

namespace meshgrad {

std::optional<double> parse_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  double value = 0.0;
  const auto format = hexadecimal ? std::chars_format::hex : std::chars_format::general;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, format);
  if (text.starts_with('-') || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

std::string exact_text(double value) {
  std::array<char, 32> digits{};
  const double size = std::abs(value);
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), size, std::chars_format::hex).ptr;
  return (std::signbit(value) ? "-" : "") + std::string(std::isfinite(value) ? "0x" : "") +
         std::string(digits.data(), end);
}

}  // namespace meshgrad
