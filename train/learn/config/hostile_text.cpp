// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/config/config_table.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr int kMostBrackets = 256;
constexpr int kMostDotsInLine = 256;
constexpr int kMostCommas = 1024;

/// Bytes of the UTF-8 character that starts at `text[at]`, or 0 when it is none (RFC 3629, section 4).
size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second >= 0xa0;
  const bool beyond = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

/// The first line of `text` that is not UTF-8, or 0.
int64_t line_of_bad_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0)
      return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    at += length;
  }
  return 0;
}

}  // namespace

std::optional<HostileText> find_hostile(const std::string& text) {
  if (text.size() > kLargestConfigFile) return HostileText{1, "a file above 64 KiB"};
  if (const int64_t bad = line_of_bad_utf8(text); bad != 0) return HostileText{bad, "text that is not UTF-8"};
  int64_t line = 1;
  int brackets = 0;
  int dots = 0;
  int commas = 0;
  int binary_digits = -1;  // < 0: not in a binary integer
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '{') ++brackets;
    if (c == '.') ++dots;
    if (c == ',') ++commas;
    if (c == '\0') return HostileText{line, "a zero byte"};
    const bool breaks = c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n');
    if (const auto byte = static_cast<unsigned char>(c);
        (byte < 0x20 && c != '\t' && !breaks) || byte == 0x7f)
      return HostileText{line, fmt::format("a control character, \\x{:02x}", byte)};
    if (brackets > kMostBrackets) return HostileText{line, "more than 256 brackets"};
    if (commas > kMostCommas) return HostileText{line, "more than 1024 commas"};
    if (dots > kMostDotsInLine) return HostileText{line, "more than 256 dots in a line"};
    if (c == '\n') {
      ++line;
      dots = 0;
    }
    if (c == 'b' && i > 0 && text[i - 1] == '0') {
      binary_digits = 0;
    } else if (binary_digits >= 0) {
      binary_digits = c == '0' || c == '1' || c == '_' ? binary_digits + 1 : -1;
    }
    if (binary_digits > 62) return HostileText{line, "more than 62 binary digits"};
  }
  return std::nullopt;
}

}  // namespace meshgrad
