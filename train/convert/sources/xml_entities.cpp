// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/xml_entities.h>

namespace meshgrad {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr size_t kLongestName = 200;

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
}

DataError not_read(const std::string& file, std::string_view what) {
  return data_error(file, "entities of text, <!ENTITY NAME \"VALUE\">", what.substr(0, 80),
                    "write the text in place of the entity");
}

/// What stands between the brackets of <!DOCTYPE NAME [..]>; empty where there is none.
std::string_view definitions_of(std::string_view text) {
  const size_t type = text.find("<!DOCTYPE");
  if (type == std::string_view::npos) return {};
  const size_t open = text.find_first_of("[>", type);
  if (open == std::string_view::npos || text[open] != '[') return {};
  const size_t close = text.find("]", open);
  return close == std::string_view::npos ? std::string_view() : text.substr(open + 1, close - open - 1);
}

std::map<std::string, std::string, std::less<>> entities_of(std::string_view text, const std::string& file) {
  constexpr std::string_view kStart = "<!ENTITY";
  std::map<std::string, std::string, std::less<>> entities;
  for (size_t at = text.find(kStart); at != std::string_view::npos; at = text.find(kStart)) {
    const std::string_view whole = text.substr(at);
    text.remove_prefix(at + kStart.size());
    skip_blanks(text);
    const std::string name(text.substr(0, text.find_first_of(kBlank)));
    text.remove_prefix(name.size());
    skip_blanks(text);
    const char quote = text.empty() ? '\0' : text.front();
    const size_t end = quote == '"' || quote == '\'' ? text.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) throw not_read(file, whole);
    const std::string_view value = text.substr(1, end - 1);
    if (value.find_first_of("&%<") != std::string_view::npos) throw not_read(file, whole);
    entities.try_emplace(name, value);
    text.remove_prefix(end + 1);
  }
  return entities;
}

}  // namespace

std::optional<std::string> with_entities(std::string_view text, const std::string& file) {
  const std::string_view definitions = definitions_of(text);
  const auto entities = entities_of(definitions, file);
  if (entities.empty()) return std::nullopt;
  const size_t most = 2 * text.size() + (size_t{1} << 20);
  const auto begin = static_cast<size_t>(definitions.data() - text.data()) + definitions.size();
  std::string all(text.substr(0, begin));
  text.remove_prefix(begin);
  while (!text.empty()) {
    const size_t mark = std::min(text.find('&'), text.size());
    all += text.substr(0, mark);
    text.remove_prefix(mark);
    const size_t end = text.substr(0, kLongestName).find(';');
    const auto entity =
        end == std::string_view::npos || end == 0 ? entities.end() : entities.find(text.substr(1, end - 1));
    if (entity != entities.end()) {
      all += entity->second;
      text.remove_prefix(end + 1);
    } else if (!text.empty()) {
      all += text.front();
      text.remove_prefix(1);
    }
    if (all.size() > most) throw not_read(file, fmt::format("a text of more than {} bytes", most));
  }
  return all;
}

}  // namespace meshgrad
