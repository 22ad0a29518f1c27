// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/text.h>

#include <algorithm>

namespace meshgrad {
namespace {

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

/// A line before and after the place where its further lines begin, and how far they are indented.
struct Hanging {
  size_t start, indent;
};
Hanging hanging(std::string_view line, size_t width) {
  const size_t text = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.rfind("  ", width / 2);
  if (gap == line.npos || gap < text) return {text, text + 2};
  const size_t column = line.find_first_not_of(' ', gap);
  return {column, column};
}

}  // namespace

std::string counted(int64_t count, std::string_view singular, std::string_view plural) {
  std::string text = std::to_string(count) + " ";
  if (count == 1) return text.append(singular);
  return plural.empty() ? text.append(singular) + "s" : text.append(plural);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    // Of UTF-8, the second set of controls, U+0080 to U+009F, is C2 and their number.
    const bool second_set = text[i] == '\xC2' && i + 1 < text.size() && (text[i + 1] & '\xE0') == '\x80';
    const auto code = static_cast<unsigned char>(text[second_set ? i + 1 : i]);
    const bool control = second_set || code == 0x7F || (code < 0x20 && code != '\n' && code != '\t');
    if (second_set) ++i;
    if (!control) {
      shown += text[i];
      continue;
    }
    shown += "\\x";
    shown += kDigits[code >> 4U];
    shown += kDigits[code & 0xFU];
  }
  return shown;
}

std::string wrapped(std::string_view text, size_t width, std::string_view first, std::string_view further) {
  std::string lines(first);
  size_t column = columns_of(first);
  bool fresh = true;  // no word stands on this line
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const size_t columns = columns_of(word);
    if (!fresh && column + 1 + columns > width) {
      lines.append("\n").append(further);
      column = columns_of(further);
      fresh = true;
    }
    if (!fresh) lines += ' ';
    lines.append(word);
    column += columns + (fresh ? 0 : 1);
    fresh = false;
  }
  return lines;
}

std::string fitted(std::string_view text, size_t width) {
  std::string lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (columns_of(line) <= width) {
      lines.append(line);
    } else {
      const auto [start, indent] = hanging(line, width);
      lines += wrapped(line.substr(start), width, line.substr(0, start), std::string(indent, ' '));
    }
    if (end < text.size()) lines += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace meshgrad
