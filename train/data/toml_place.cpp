// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/toml_place.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace meshgrad {
namespace {

constexpr std::string_view kBlanks = " \t";

/// The index after the string that starts at `text[at]`, a quote. A string of one line ends with the line at
/// the latest.
size_t skip_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string_view three = text.substr(at, 3);
  const bool long_string = three.size() == 3 && three[1] == quote && three[2] == quote;
  const std::string_view end = long_string ? three : three.substr(0, 1);
  for (size_t i = at + end.size(); i < text.size(); ++i) {
    if (text[i] == '\n' && !long_string) return i;
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (text.substr(i, end.size()) == end) {
      return i + end.size();
    }
  }
  return text.size();
}

/// The index after the statement that starts at `text[at]`: that of the next line outside of strings and
/// brackets.
size_t skip_statement(std::string_view text, size_t at) {
  const size_t first = text.find_first_not_of(kBlanks, at);
  const bool header = first != text.npos && text[first] == '[';
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = skip_string(text, at);
      continue;
    }
    if (c == '#') at = std::min(text.find('\n', at), text.size() - 1);
    if (text[at] == '\n' && (depth <= 0 || header)) return at + 1;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    ++at;
  }
  return at;
}

/// Where the value begins in a line "key = value", or else the first character that is no blank.
size_t value_in(std::string_view line) {
  for (size_t i = 0; i < line.size() && line[i] != '#';) {
    if (line[i] == '=') return std::min(line.find_first_not_of(kBlanks, i + 1), line.size());
    i = line[i] == '"' || line[i] == '\'' ? skip_string(line, i) : i + 1;
  }
  return std::min(line.find_first_not_of(kBlanks), line.size());
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80; }

}  // namespace

SyntaxPlace find_statement(const std::string& text, int64_t line) {
  SyntaxPlace place;
  size_t at = 0;
  for (size_t next = 0; at < text.size(); at = next) {
    next = skip_statement(text, at);
    const int64_t lines = std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                     text.begin() + static_cast<std::ptrdiff_t>(next), '\n');
    if (line < place.line + lines || next >= text.size()) break;
    place.line += lines;
  }
  constexpr size_t kLongest = 200;
  std::string shown = text.substr(at, std::min(text.find('\n', at), text.size()) - at);
  if (shown.ends_with('\r')) shown.pop_back();
  const size_t value = value_in(shown);
  if (shown.size() > kLongest) {
    size_t end = kLongest;
    while (continues_character(shown[end])) --end;
    shown.resize(end);
  }
  if (value > shown.size()) return place;  // further right than anyone reads
  std::string before;
  for (const char c : shown.substr(0, value)) {
    if (!continues_character(c)) before += c == '\t' ? '\t' : ' ';
  }
  const auto is_control = [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; };
  std::replace_if(shown.begin(), shown.end(), is_control, '?');
  const std::string number = std::to_string(place.line);
  place.excerpt = fmt::format("\n {} | {}\n {:{}} | {}^", number, shown, "", number.size(), before);
  return place;
}

}  // namespace meshgrad
