// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/array_map.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>

namespace meshgrad {
namespace {

// What an array of the mesh is called: its role in --map, its name here, and names that other files have.
struct Role {
  std::string_view role, name;
  std::array<std::string_view, 9> synonyms;
};

constexpr std::array<Role, 7> kRoles{{
    {"positions",
     "mesh_pos",
     {"positions", "pos", "points", "coords", "coordinates", "xyz", "vertices", "nodes", "geometry"}},
    {"cells", "cells", {"elements", "triangles", "tris", "faces", "simplices", "connectivity", "topology"}},
    {"edges", "mesh_edge", {"edges", "edge_index"}},
    {"types", "node_type", {"node_types", "types"}},
    {"cell:types", "cell:node_type", {}},
    {"facet:types", "facet:node_type", {}},
    {"facets", "facets", {}},
}};

// "xyz" of "mesh/xyz", in lower case.
std::string last_part(std::string_view name) {
  std::string part(name.substr(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1));
  for (char& c : part) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return part;
}

bool may_be(const Role& role, const NamedArray& array) {
  const std::vector<int64_t>& shape = array.array.shape;
  if (!array.numbers || shape.empty()) return false;
  if (role.role == "positions") return shape.size() > 1 && (shape.back() == 2 || shape.back() == 3);
  if (array.array.kind == 'f') return false;
  return role.role == "types" || shape.size() > 1;
}

// The index of the array that has one of a role's names; -1 when none has.
int64_t guess(const Role& role, const std::vector<NamedArray>& arrays) {
  for (const std::string_view synonym : role.synonyms) {
    for (size_t i = 0; i < arrays.size(); ++i)
      if (!synonym.empty() && last_part(arrays[i].name) == synonym && may_be(role, arrays[i]))
        return static_cast<int64_t>(i);
  }
  return -1;
}

bool has(const std::vector<NamedArray>& arrays, std::string_view name) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [&](const NamedArray& array) { return array.name == name; });
}

bool has_types(std::string_view name) { return std::ranges::find(kTypeArrays, name) != kTypeArrays.end(); }

bool have_types(const std::vector<NamedArray>& arrays) {
  return std::ranges::any_of(arrays, has_types, &NamedArray::name);
}

// What the map does not name, of other names than DeepMind's.
void apply_guess(std::vector<NamedArray>& arrays, const std::vector<NamedArray>& chosen,
                 const std::string& where, const WarningCallback& warn) {
  std::vector<std::string> guessed;
  for (const Role& role : kRoles) {
    if (has(arrays, role.name) || has(chosen, role.name)) continue;
    if (role.role == "types" && (have_types(arrays) || have_types(chosen))) continue;
    const int64_t found = guess(role, arrays);
    if (found < 0) continue;
    NamedArray& array = arrays[static_cast<size_t>(found)];
    guessed.push_back(fmt::format("--map {}={}", role.role, array.name));
    array.name = role.name;
  }
  if (!guessed.empty() && warn) {
    warn(fmt::format("[{}] read as by {}; --save-map FILE writes it into a file", where,
                     fmt::join(guessed, " ")));
  }
}

// No field.
bool is_known(const std::string& name) { return is_mesh_array(name) || name == "dt" || name == "times"; }

int64_t nodes_of(const std::vector<NamedArray>& arrays) {
  const auto found = std::ranges::find(arrays, "mesh_pos", &NamedArray::name);
  const size_t rank = found == arrays.end() ? 0 : found->array.shape.size();
  return rank < 2 ? 0 : found->array.shape[rank - 2];
}

// The arrays that the map names, under its names; `arrays` keeps the others.
std::vector<NamedArray> chosen_by_map(std::vector<NamedArray>& arrays, const std::string& where,
                                      const ArrayMap& map) {
  if (map.empty()) return {};
  using Line = ArrayMap::value_type;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < arrays.size(); ++i) places.emplace(arrays[i].name, i);
  using Lines = std::map<std::string, const Line*>;
  Lines by_source, by_name;
  std::vector<NamedArray> chosen;
  std::vector<bool> taken(arrays.size());
  const auto check_once = [&](Lines& lines, const std::string& key, const Line& line) {
    const auto [before, is_new] = lines.emplace(key, &line);
    if (is_new) return;
    throw data_error(where, "each array and each name once in --map",
                     fmt::format("{}={} and {}={}", before->second->first, before->second->second, line.first,
                                 line.second),
                     "leave one of them out");
  };
  for (const Line& line : map) {
    const auto& [name, source] = line;
    const std::string read_as = name_of_array(name);
    check_once(by_source, source, line);
    check_once(by_name, read_as, line);
    const auto place = places.find(source);
    if (place == places.end()) {
      std::vector<std::string> names;
      for (size_t i = 0; i < arrays.size(); ++i)
        if (!taken[i]) names.push_back(arrays[i].name + " " + shape_text(arrays[i].array));
      const std::string_view option = name == "types" ? "--node-types or --map" : "--map";
      throw data_error(where, fmt::format("the array {}, as {} {}={} says", source, option, name, source),
                       names.empty() ? "no arrays" : fmt::format("{}", fmt::join(names, ", ")),
                       "name one of its arrays");
    }
    taken[place->second] = true;
    chosen.push_back(std::move(arrays[place->second]));  // its view stays valid
    chosen.back().name = read_as;
  }
  size_t i = 0;
  std::erase_if(arrays, [&](const NamedArray&) { return taken[i++]; });
  return chosen;
}

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string quoted(std::string_view name) {
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? std::string("\\n") : c == '\r' ? std::string("\\r") : std::string(1, c);
  }
  return text + '"';
}

std::string written(std::string_view name, bool left) {
  const bool plain = !name.empty() && trimmed(name) == name &&
                     std::string_view("\"#\xef").find(name.front()) == std::string_view::npos &&
                     name.find_first_of("\n\r") == std::string_view::npos &&
                     (!left || name.find('=') == std::string_view::npos);
  return plain ? std::string(name) : quoted(name);
}

/// The name in double quotes at the beginning of `rest`, which then begins after it; nothing where it does
/// not end.
std::optional<std::string> unquoted(std::string_view& rest) {
  std::string name;
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest = trimmed(rest.substr(i + 1));
      return name;
    }
    if (rest[i] == '\\' && i + 1 < rest.size()) {
      ++i;
      name += rest[i] == 'n' ? '\n' : rest[i] == 'r' ? '\r' : rest[i];
    } else {
      name += rest[i];
    }
  }
  return std::nullopt;
}

/// Of a line "NAME=ARRAY"; nothing for another one.
std::optional<std::pair<std::string, std::string>> pair_of_line(std::string_view line) {
  std::string left;
  if (line.starts_with('"')) {
    const auto name = unquoted(line);
    if (!name || !line.starts_with('=')) return std::nullopt;
    left = *name;
    line = trimmed(line.substr(1));
  } else {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    left = trimmed(line.substr(0, equals));
    line = trimmed(line.substr(equals + 1));
  }
  std::string right(line);
  if (line.starts_with('"')) {
    const auto name = unquoted(line);
    if (!name || !line.empty()) return std::nullopt;
    right = *name;
  }
  if (left.empty() || right.empty()) return std::nullopt;
  return std::pair{left, right};
}

}  // namespace

bool is_mesh_array(std::string_view name) {
  return name == "mesh_pos" || name == "cells" || name == "mesh_edge" || name == "facets" || has_types(name);
}

bool are_times(const NamedArray& array, int64_t nodes) {
  const bool named = array.name == "times" || array.name == "time" || array.name == "t";
  return named && array.array.shape.size() == 1 && array.array.shape[0] != nodes;
}

std::string shape_text(const NpyArray& array) { return fmt::format("[{}]", fmt::join(array.shape, ", ")); }

std::string name_in_map(const std::string& array) {
  const auto* role = std::ranges::find(kRoles, array, &Role::name);
  return role == kRoles.end() ? array : std::string(role->role);
}

std::string name_of_array(const std::string& in_map) {
  const auto* role = std::ranges::find(kRoles, in_map, &Role::role);
  return role == kRoles.end() ? in_map : std::string(role->name);
}

std::vector<NamedArray> arrays_by_map(std::vector<NamedArray> arrays, const std::string& where,
                                      const ArrayMap& map, const WarningCallback& warn) {
  for (NamedArray& array : arrays) array.source = array.name;
  std::vector<NamedArray> chosen = chosen_by_map(arrays, where, map);
  apply_guess(arrays, chosen, where, warn);
  const bool names_fields =
      std::ranges::any_of(chosen, [](const NamedArray& array) { return !is_known(array.name); });
  const bool chosen_types = have_types(chosen);
  const int64_t nodes = std::max(nodes_of(chosen), nodes_of(arrays));
  std::set<std::string> names;  // of what is chosen: a file may have a million arrays
  for (const NamedArray& array : chosen) names.insert(array.name);
  std::vector<std::string> unused;
  for (NamedArray& array : arrays) {
    const bool needed = !names_fields || is_known(array.name) || are_times(array, nodes);
    const bool other_types = has_types(array.name) && chosen_types;
    const bool known = !map.empty() && !names.insert(array.name).second;
    if (needed && !other_types && !known) {
      chosen.push_back(std::move(array));
    } else {
      unused.push_back(array.name);
    }
  }
  if (!unused.empty() && warn)
    warn(fmt::format("[{}] not used, since --map names others: {}", where, fmt::join(unused, ", ")));
  return chosen;
}

ArrayMap read_array_map(const std::filesystem::path& file) {
  const std::string content = read_file(file, kLargestMapFile + 1);
  if (content.size() <= kLargestMapFile) return parse_array_map(content, file.string());
  throw data_error(file.string(), "a map of at most 64 MiB, a line NAME=ARRAY each",
                   fmt::format("{} bytes or more", content.size()), "check the path");
}

ArrayMap parse_array_map(std::string_view content, const std::string& file) {
  ArrayMap map;
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);  // the mark of Windows' editors
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = trimmed(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::string place = fmt::format("{}: line {}", file, number);
    auto pair = pair_of_line(line);
    if (!pair) {
      throw data_error(place, "NAME=ARRAY", escaped(line.substr(0, 80)),
                       "write for example positions=mesh/xyz, and # before a comment");
    }
    if (map.contains(pair->first)) {
      throw data_error(place, "each name once", fmt::format("{} again", pair->first),
                       "leave one of them out");
    }
    map.insert(std::move(*pair));
  }
  return map;
}

std::string array_map_text(const ArrayMap& map, std::string_view comment) {
  std::string text;
  while (!comment.empty()) {
    const size_t end = std::min(comment.find('\n'), comment.size());
    text += fmt::format("# {}\n", comment.substr(0, end));
    comment.remove_prefix(std::min(end + 1, comment.size()));
  }
  for (const auto& [name, array] : map)
    text += fmt::format("{}={}\n", written(name, true), written(array, false));
  return text;
}

}  // namespace meshgrad
