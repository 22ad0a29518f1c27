// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/import_config.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace meshgrad {
namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r,;\"'()[]{}";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

/// As TOML writes it.
std::string plain_value(std::string_view text) {
  std::string value = trimmed(text);
  if (value == "True") value = "true";
  if (value == "False") value = "false";
  return value;
}

/// NAME: VALUE and so on, without comments.
std::optional<ForeignOption> option_of(std::string_view line) {
  const size_t end = line.find_first_of(" \t:=");
  if (end == line.npos) return std::nullopt;
  const std::string name = trimmed(line.substr(0, end));
  std::string_view rest = line.substr(end);
  if (const size_t equals = rest.find('='); equals != rest.npos) rest.remove_prefix(equals);
  while (!rest.empty() && std::string_view(" \t:=").find(rest.front()) != std::string_view::npos)
    rest.remove_prefix(1);
  const std::string value = plain_value(rest);
  if (name.empty() || value.empty()) return std::nullopt;
  return ForeignOption{name, value};
}

/// Of a command line, or a part of one: words that begin with --, each with the words up to the next.
std::vector<ForeignOption> flags_of(const std::string& line) {
  std::vector<ForeignOption> flags;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (!word.starts_with("--")) {
      if (flags.empty() || word == "\\") continue;  // the program; a line that goes on
      flags.back().value += (flags.back().value.empty() ? "" : " ") + word;
      continue;
    }
    const size_t equals = std::min(word.find('='), word.size());
    flags.push_back({word.substr(2, equals - 2), equals == word.size() ? "" : word.substr(equals + 1)});
  }
  std::erase_if(flags, [](const ForeignOption& flag) { return trimmed(flag.name).empty(); });
  for (ForeignOption& flag : flags) {
    flag.name = trimmed(flag.name);
    flag.value = plain_value(flag.value);
    if (flag.value.empty()) flag.value = "true";
  }
  return flags;
}

/// Comments begin a line, or stand after a blank: "/tmp/100%done" is a value.
std::string without_comment(const std::string& line) {
  for (size_t at = 0; at < line.size(); ++at) {
    const bool begins = at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t';
    if (begins && (line[at] == '#' || line[at] == '%')) return line.substr(0, at);
  }
  return line;
}

std::vector<ForeignOption> options_of_lines(const std::string& text) {
  std::vector<ForeignOption> options;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("line {}", ++number);
    line = without_comment(line);
    if ((" " + line).find(" --") != line.npos) {
      for (ForeignOption& flag : flags_of(line)) options.push_back({flag.name, flag.value, place});
      continue;
    }
    std::string_view rest = line;
    while (!rest.empty() && (rest.front() == ' ' || rest.front() == '\t' || rest.front() == '-'))
      rest.remove_prefix(1);
    if (rest.starts_with("export ")) rest.remove_prefix(7);
    if (const auto option = option_of(rest)) options.push_back({option->name, option->value, place});
  }
  return options;
}

/// For comments of TOML.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, ' ');
  return trimmed(text);
}

/// Names with plain values; the values of a list have blanks between them.
std::vector<ForeignOption> options_of_json(const std::string& text, const std::string& name) {
  std::vector<ForeignOption> options;
  std::string key;
  std::vector<std::string> sections;  // names of the objects around it, with a dot after each
  bool begins = false;                // a value after a name, not a further one of its list
  using Event = nlohmann::json::parse_event_t;
  const auto see = [&](int, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) sections.push_back(key.empty() ? "" : key + ".");
    if (event == Event::object_end) {
      sections.pop_back();
      key.clear();
    }
    if (event == Event::key) {
      key = one_line(parsed.get<std::string>());
      begins = true;
    }
    if (event != Event::value || key.empty()) return true;
    const std::string value = one_line(parsed.is_string() ? parsed.get<std::string>() : parsed.dump());
    if (begins) {
      options.push_back({key, value, fmt::format("{}{}", fmt::join(sections, ""), key)});
    } else {
      options.back().value += " " + value;
    }
    begins = false;
    return true;
  };
  try {
    [[maybe_unused]] const auto whole = nlohmann::json::parse(text, see);
  } catch (const nlohmann::json::exception& error) {
    throw config_error(name, "JSON, as it begins with {", json_fault(text, error), "correct the file");
  }
  std::erase_if(options, [](const ForeignOption& option) { return option.value.empty(); });
  return options;
}

/// Of our own keys: the key of a full name, or of a name that one section has.
OptionMeaning own_key(const ForeignOption& option) {
  std::vector<std::string> keys;
  for (const ConfigKey& key : config_keys()) {
    if (option.name == full_name(key)) return {{full_name(key) + "=" + option.value}, ""};
    if (option.name == key.name) keys.push_back(full_name(key));
  }
  if (keys.size() == 1) return {{keys.front() + "=" + option.value}, ""};
  return {
      {},
      keys.empty() ? "no such key" : "several readings, " + listed(keys) + ": write the one that is meant"};
}

/// An option of the file with what it is here.
struct Reading {
  ForeignOption option;
  OptionMeaning meaning;
  bool clashes = false;  ///< another option sets a key of it to another value
  /// A whole recipe comes first: options of their own count more.
  bool recipe() const { return option.name == "model"; }
  std::string theirs() const { return fmt::format("{} = {}", option.name, option.value); }
};

bool same_value(const std::string& a, const std::string& b) {
  const std::optional<double> number = parse_number(a);
  return a == b || (number && number == parse_number(b));
}

/// Marks readings of one key with different values, and returns a line for each such key.
std::vector<std::string> clashes_of(std::vector<Reading>& readings) {
  struct Setter {
    Reading* reading;
    std::string value;
  };
  std::vector<std::string> lines;
  std::map<std::pair<bool, std::string>, std::vector<Setter>> setters;  // of recipes, and of others
  for (Reading& reading : readings) {
    for (const std::string& setting : reading.meaning.settings) {
      const size_t equals = setting.find('=');
      setters[{reading.recipe(), setting.substr(0, equals)}].push_back(
          {&reading, setting.substr(equals + 1)});
    }
  }
  for (const auto& [key, all] : setters) {
    const std::string& expected = all.front().value;
    const auto other =
        std::ranges::find_if(all, [&](const Setter& one) { return !same_value(one.value, expected); });
    if (other == all.end()) continue;
    for (const Setter& one : all) one.reading->clashes = true;
    const Reading &first = *all.front().reading, &second = *other->reading;
    lines.push_back(fmt::format("two values of {}: {} ({}) and {} ({}); write the one that is meant",
                                key.second, first.theirs(), first.option.place, second.theirs(),
                                second.option.place));
  }
  return lines;
}

/// The fault without the name of the file, or empty.
std::string fault_of(const std::vector<std::string>& settings) {
  try {
    parse_config("", "imported", settings);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string imported_toml(const Config& config, const std::vector<std::string>& settings,
                          const ImportedConfig& imported, const std::string& name) {
  std::string text = fmt::format("# From {}.\n", printable(name));
  for (std::string line : imported.unmapped) {
    std::ranges::replace_if(
        line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
    text += "# not mapped: " + printable(line) + "\n";
  }
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const auto sets = [&](const std::string& setting) { return setting.starts_with(full_name(key) + "="); };
    if (std::ranges::none_of(settings, sets)) continue;
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{} = {}\n", key.name, toml_literal(key, config));
  }
  return text;
}

}  // namespace

ImportedConfig import_config(const std::string& text, const std::string& name, OptionNames names,
                             std::optional<double> shortest_edge) {
  if (text.size() > kLargestConfigFile)
    throw config_error(name, "options in at most 64 KiB", fmt::format("{} bytes or more", text.size()),
                       "check the path");
  std::vector<Reading> readings;
  bool known = false;
  const bool json = text.find('{') == text.find_first_not_of(" \t\r\n") && text.find('{') != text.npos;
  for (const ForeignOption& option : json ? options_of_json(text, name) : options_of_lines(text)) {
    std::optional<OptionMeaning> meaning = meaning_of(option, names, shortest_edge);
    known = known || meaning;
    if (!meaning)
      meaning = names == OptionNames::keyvalue ? own_key(option) : OptionMeaning{{}, "no such key"};
    readings.push_back({option, *meaning});
  }
  ImportedConfig imported;
  imported.unmapped = clashes_of(readings);
  known = known || !imported.unmapped.empty();
  std::vector<std::string> settings;
  for (const Reading& reading : readings) {
    if (reading.clashes) continue;
    const std::string theirs = reading.theirs();
    const auto& [found, answer] = reading.meaning;
    if (found.empty()) {
      imported.unmapped.push_back(theirs + ": " + answer);
      continue;
    }
    std::vector<std::string> more = settings;
    more.insert(reading.recipe() ? more.begin() : more.end(), found.begin(), found.end());
    if (const std::string fault = fault_of(more); !fault.empty()) {
      imported.unmapped.push_back(theirs + ": " + fault);
      continue;
    }
    settings = std::move(more);
    imported.mapped.push_back(
        fmt::format("{} -> {}{}", theirs, fmt::join(found, ", "), answer.empty() ? "" : " (" + answer + ")"));
  }
  if (settings.empty() && !known) {
    throw config_error(name, "lines NAME: VALUE or NAME = VALUE with known names", "none",
                       "check --from, or begin with meshgrad init");
  }
  imported.toml = imported_toml(parse_config("", name, settings), settings, imported, name);
  return imported;
}

}  // namespace meshgrad
