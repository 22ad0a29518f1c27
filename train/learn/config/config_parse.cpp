// SPDX-License-Identifier: Apache-2.0
// The only file that knows the TOML library.
#include <fmt/format.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/toml_place.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <toml.hpp>

namespace meshgrad {
namespace {

constexpr size_t kMostFaults = 50;
constexpr int64_t kAfterFile = int64_t{1} << 40;  // sorts faults of overrides after those of lines

struct Fault {
  int64_t line = 0;
  std::string text;
};

/// What is wrong with one value; the caller adds where.
struct Complaint {
  std::string needed;
  std::string got;
  std::string fix;
};

struct SyntaxError {
  int64_t line = 0;
  std::string message;
  std::string excerpt;  ///< lines of the file with a mark, each after a newline
};

/// Drops "[error] " and the name of the library's function from a message.
std::string without_prefix(std::string message) {
  constexpr std::string_view kMark = "[error] ";
  if (message.rfind(kMark, 0) == 0) message.erase(0, kMark.size());
  const size_t colon = message.find(": ");
  const bool names_function = message.rfind("toml::", 0) == 0 && colon != std::string::npos;
  constexpr size_t kLongest = 200;
  return message.substr(names_function ? colon + 2 : 0, kLongest);
}

/// Of "[error] toml::parse_key: message\n --> file\n excerpt" the message.
SyntaxError syntax_error_of(const std::string& text, int64_t line, const std::string& what) {
  SyntaxPlace place = find_statement(text, line);
  std::string message = without_prefix(what.substr(0, what.find('\n')));
  // Versions of the library have other words for it, not all with the name.
  if (message.find("already exists") != std::string::npos) message = "a key or table that exists already";
  return {place.line, std::move(message), std::move(place.excerpt)};
}

#if TOML11_VERSION_MAJOR >= 4

/// The library reads floats under the global C++ locale, where "0.5" is none.
struct ValueTypes : toml::type_config {
  static toml::result<double, toml::error_info> parse_float(const std::string& text,
                                                            toml::source_location place, bool hexadecimal) {
    const std::optional<double> number = hexadecimal ? std::nullopt : parse_number(text);
    if (number) return toml::ok(*number);
    return toml::read_float<double>(text, std::move(place), hexadecimal);
  }
};
using TomlValue = toml::basic_value<ValueTypes>;

TomlValue parse_stream(std::istream& stream, const std::string& name) {
  return toml::parse<ValueTypes>(stream, name);
}
int64_t line_of(const TomlValue& value) { return static_cast<int64_t>(value.location().first_line_number()); }
int64_t line_of(const toml::syntax_error& error) {
  return static_cast<int64_t>(error.errors().front().locations().front().first.first_line_number());
}
const std::string& text_of(const TomlValue& value) { return value.as_string(); }
double floating(const TomlValue& value) { return value.as_floating(); }

#else

using TomlValue = toml::value;

TomlValue parse_stream(std::istream& stream, const std::string& name) { return toml::parse(stream, name); }
int64_t line_of(const TomlValue& value) { return value.location().line(); }
int64_t line_of(const toml::syntax_error& error) { return error.location().line(); }
const std::string& text_of(const TomlValue& value) { return value.as_string().str; }

/// The value of a float. The library reads floats under the global C++ locale, where "0.5" may be 0: its text
/// is read again.
double floating(const TomlValue& value) {
  const toml::source_location place = value.location();
  std::string text = place.column() > 0
                         ? place.line_str().substr(
                               std::min<size_t>(place.column() - 1, place.line_str().size()), place.region())
                         : "";
  std::erase(text, '_');
  return parse_number(text).value_or(value.as_floating());
}

#endif

/// The value of `text`, or why it has none.
std::variant<TomlValue, SyntaxError> parse_toml(const std::string& text, const std::string& name) {
  if (auto hostile = find_hostile(text)) return SyntaxError{hostile->line, hostile->message, ""};
  try {
    std::istringstream stream(text + "\n");
    return parse_stream(stream, name);
  } catch (const toml::syntax_error& error) {
    return syntax_error_of(text, line_of(error), error.what());
  } catch (const std::exception& error) {
    return syntax_error_of(text, 1, error.what());
  }
}

std::string shown(const std::string& text) {
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? toml_quoted(text) : toml_quoted(text.substr(0, kMost)) + "...";
}

/// A name for the brackets of a fault: quoted and cut when it is not a plain key.
std::string brief(const std::string& name) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return name.size() <= 60 && name.find_first_not_of(kPlain) == name.npos ? name : shown(name);
}

std::string describe(const TomlValue& value) {
  switch (value.type()) {
    case toml::value_t::boolean:
      return value.as_boolean() ? "true" : "false";
    case toml::value_t::integer:
      return std::to_string(value.as_integer());
    case toml::value_t::floating:
      return toml_number(floating(value));
    case toml::value_t::string:
      return shown(text_of(value));
    case toml::value_t::array:
      return fmt::format("a list of {}", value.as_array().size());
    case toml::value_t::table:
      return "a table";
    case toml::value_t::empty:
      return "nothing";
    default:
      return "a date or time";
  }
}

/// Puts a TOML value into the member of a key. Nothing is written when there is a complaint.
struct Assigner {
  const ConfigKey& key;
  const TomlValue& value;
  Config& config;

  using Result = std::optional<Complaint>;

  Complaint complain(const std::string& got, const std::string& advice = "") const {
    const std::string example = fmt::format("{} = {}", full_name(key), toml_literal(key, Config{}));
    return {describe_type(key), got, advice.empty() ? "for example " + example : advice};
  }
  Complaint mismatch() const { return complain(describe(value)); }

  Result operator()(const BoolKey& type) const {
    if (!value.is_boolean()) return mismatch();
    type.member(config) = value.as_boolean();
    return std::nullopt;
  }
  Result operator()(const IntegerKey& type) const {
    if (!type.word.empty() && value.is_string() && text_of(value) == type.word) {
      type.member(config) = 0;
      return std::nullopt;
    }
    if (!value.is_integer() || !in_range(value.as_integer(), type)) return mismatch();
    type.member(config) = value.as_integer();
    return std::nullopt;
  }
  Result operator()(const FloatKey& type) const {
    const std::optional<double> number = number_in_range(value, type);
    if (!number) return mismatch();
    type.member(config) = *number;
    return std::nullopt;
  }
  Result operator()(const FieldNumbersKey& type) const {
    std::vector<FieldNumber> numbers;
    if (!value.is_table()) {
      if (Result complaint = (*this)(FloatKey{type.all, type.minimum, type.maximum})) return complaint;
    } else {
      for (const auto& [field, element] : value.as_table()) {
        const std::optional<double> number = number_in_range(element, type);
        if (!number) return complain(fmt::format("{} of {}", describe(element), shown(field)));
        if (Result complaint = check_text(field)) return complaint;
        numbers.push_back({field, *number});
      }
      if (numbers.empty()) return complain("an empty table");
      type.all(config) = type.others;
    }
    std::ranges::sort(numbers, {}, &FieldNumber::field);
    type.fields(config) = std::move(numbers);
    return std::nullopt;
  }
  Result operator()(const TextKey& type) const {
    if (!value.is_string()) return mismatch();
    const std::string& text = text_of(value);
    if (Result complaint = check_text(text)) return complaint;
    if (type.required && text.empty()) return mismatch();
    if (type.accepts != nullptr && !type.accepts(text)) return mismatch();
    type.member(config) = text;
    return std::nullopt;
  }
  Result operator()(const TextListKey& type) const {
    if (value.is_string() && type.is_word(text_of(value))) {
      type.member(config) = {text_of(value)};
      return std::nullopt;
    }
    if (!value.is_array() || value.as_array().size() < type.least) return mismatch();
    std::vector<std::string> texts;
    for (const TomlValue& element : value.as_array()) {
      if (!element.is_string()) return complain(describe(element) + " in the list");
      const std::string& text = text_of(element);
      if (Result complaint = check_text(text)) return complaint;
      if (text.empty()) return complain("an empty name");
      if (type.names != nullptr) {
        const std::vector<std::string> names(type.names().begin(), type.names().end());
        if (std::find(names.begin(), names.end(), text) == names.end())
          return complain(describe(element) + " in the list", did_you_mean(text, names));
      }
      texts.push_back(text);
    }
    if (std::set(texts.begin(), texts.end()).size() != texts.size()) return complain("a name twice");
    type.member(config) = std::move(texts);
    return std::nullopt;
  }
  Result operator()(const IntegerListKey& type) const {
    if (!value.is_array() || value.as_array().size() < type.least) return mismatch();
    std::vector<int64_t> numbers;
    for (const TomlValue& element : value.as_array()) {
      if (!element.is_integer() || !in_range(element.as_integer(), type)) {
        return complain(describe(element) + " in the list");
      }
      numbers.push_back(element.as_integer());
    }
    if (std::set(numbers.begin(), numbers.end()).size() != numbers.size()) return complain("a number twice");
    type.member(config) = std::move(numbers);
    return std::nullopt;
  }
  Result operator()(const FloatListKey& type) const {
    if (!type.word.empty() && value.is_string() && text_of(value) == type.word) {
      type.member(config) = {0.0};
      return std::nullopt;
    }
    if (!value.is_array() || value.as_array().size() > type.most) return mismatch();
    std::vector<double> numbers;
    for (const TomlValue& element : value.as_array()) {
      const std::optional<double> number = number_in_range(element, type);
      if (!number) return complain(describe(element) + " in the list");
      numbers.push_back(*number);
    }
    type.member(config) = std::move(numbers);
    return std::nullopt;
  }
  Result operator()(const SizeKey& type) const {
    if (!value.is_string()) return mismatch();
    const std::optional<int64_t> bytes = parse_size(text_of(value));
    if (!bytes) return complain(describe(value), fmt::format("for example {} = \"8GiB\"", full_name(key)));
    type.member(config) = *bytes;
    return std::nullopt;
  }
  Result operator()(const ChoiceKey& type) const {
    if (!value.is_string()) return mismatch();
    const std::string& text = text_of(value);
    std::vector<std::string> names;
    for (const Choice& choice : type.choices) {
      if (choice.name == text) {
        type.set(config, choice.value);
        return std::nullopt;
      }
      names.emplace_back(choice.name);
    }
    return complain(describe(value), did_you_mean(text, names));
  }

 private:
  static std::string did_you_mean(const std::string& text, const std::vector<std::string>& names) {
    const std::string nearest = nearest_name(text, names);
    return nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest);
  }
  template <class T, class Key>
  static bool in_range(T number, const Key& type) {
    return number >= type.minimum && number <= type.maximum;
  }
  /// Nothing for other values; a NaN is in no range.
  template <class Key>
  static std::optional<double> number_in_range(const TomlValue& value, const Key& type) {
    if (!value.is_floating() && !value.is_integer()) return std::nullopt;
    const double number = value.is_floating() ? floating(value) : static_cast<double>(value.as_integer());
    return in_range(number, type) ? std::optional(number) : std::nullopt;
  }
  Result check_text(const std::string& text) const {
    if (text.size() > kLongestText) return complain(fmt::format("{} bytes", text.size()));
    const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    if (std::any_of(text.begin(), text.end(), is_control)) {
      return complain(shown(text), "remove the control characters");
    }
    return std::nullopt;
  }
};

/// Gathers values and faults from the text, then from the overrides.
class Reader {
 public:
  Reader(std::string name, bool saved) : name_(std::move(name)), saved_(saved) {}

  void read(const std::string& text) {
    const auto parsed = parse_toml(text, name_);
    if (const auto* error = std::get_if<SyntaxError>(&parsed)) {
      const std::string fault = config_error("syntax", "TOML", error->message, "fix this line").what();
      add(error->line, place(error->line), fault + error->excerpt);
      return;
    }
    for (const auto& [name, value] : std::get<TomlValue>(parsed).as_table()) {
      const int64_t line = line_of(value);
      if (is_section(name)) {
        read_section(name, value);
      } else if (const ConfigKey* key = find_key(name)) {
        assign(*key, value, line, place(line));
      } else if (value.is_table()) {
        const auto fault =
            config_error(brief(name), "a known section", shown(name), advice_for_section(name));
        add(line, place(line), fault.what());
      } else if (!ignores(name, value)) {
        unknown_key("", name, describe(value), line, place(line));
      }
    }
  }

  void override_with(const std::string& setting) {
    const int64_t order = kAfterFile + ++overrides_;
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const std::string where = "--set " + shown(setting);
    if (equals == std::string::npos || equals == 0) {
      add(order, where,
          config_error("--set", "section.key=value", shown(setting), "for example --set train.batch=4")
              .what());
      return;
    }
    const ConfigKey* key = find_key(name);
    if (key == nullptr) {
      const size_t dot = name.find('.');
      const bool has_section = dot != std::string::npos;
      unknown_key(has_section ? name.substr(0, dot) : "", has_section ? name.substr(dot + 1) : name,
                  shown(setting.substr(equals + 1)), order, where);
      return;
    }
    const std::string typed = setting.substr(equals + 1);
    const auto parsed = parse_toml("value = " + literal_for(*key, typed), "--set");
    const auto* table = std::get_if<TomlValue>(&parsed);
    if (table == nullptr || table->as_table().size() != 1) {
      const std::string example = fmt::format("for example --set {}={}", name, toml_literal(*key, Config{}));
      add(order, where,
          config_error(name, describe_type(*key), typed.empty() ? "nothing" : shown(typed), example).what());
      return;
    }
    assign(*key, table->as_table().at("value"), order, where);
  }

  Config finish() {
    // Without frames to predict from, noise corrects no earlier prediction: it is off unless it is asked for.
    if (!find_key("unroll.steps")->applies_to(config_.task.name) && origins_.count("train.noise") == 0)
      config_.train.noise = 0.0;
    if (config_.task.name == TaskName::link_reconstruction && origins_.count("data.targets") == 0)
      config_.data.targets.clear();
    for (const Contradiction& found : contradictions(config_)) {
      const auto is_faulty = [&](const std::string& key) { return faulty_.count(key) != 0; };
      if (std::any_of(found.keys.begin(), found.keys.end(), is_faulty)) continue;
      const auto origin = std::find_if(found.keys.begin(), found.keys.end(),
                                       [&](const std::string& key) { return origins_.count(key) != 0; });
      const Origin where = origin == found.keys.end() ? Origin{0, name_} : origins_.at(*origin);
      add(where.order, where.place,
          config_error(found.keys.front(), found.needed, found.got, found.fix).what());
    }
    if (faults_.empty()) return std::move(config_);
    std::stable_sort(faults_.begin(), faults_.end(),
                     [](const Fault& a, const Fault& b) { return a.line < b.line; });
    if (faults_.size() == 1) throw ConfigError(faults_.front().text);
    std::string text = fmt::format("{}: {} faults", name_, faults_.size());
    const size_t listed = std::min(faults_.size(), kMostFaults);
    for (size_t i = 0; i < listed; ++i) text += "\n  " + faults_[i].text;
    if (listed < faults_.size()) text += fmt::format("\n  and {} more", faults_.size() - listed);
    throw ConfigError(text);
  }

 private:
  struct Origin {
    int64_t order = 0;
    std::string place;
  };

  std::string place(int64_t line) const { return fmt::format("{}:{}", name_, line); }

  void add(int64_t order, const std::string& where, const std::string& text) {
    faults_.push_back({order, where + ": " + text});
  }

  void read_section(const std::string& section, const TomlValue& table) {
    if (!table.is_table()) {
      const int64_t line = line_of(table);
      const auto fault = config_error(section, fmt::format("a section [{}]", section), describe(table),
                                      fmt::format("write its keys below a line [{}]", section));
      add(line, place(line), fault.what());
      return;
    }
    for (const auto& [name, value] : table.as_table()) {
      const int64_t line = line_of(value);
      if (const ConfigKey* key = find_key(section + "." + name)) {
        assign(*key, value, line, place(line));
      } else if (!ignores(section + "." + name, value)) {
        unknown_key(section, name, describe(value), line, place(line));
      }
    }
  }

  bool ignores(const std::string& name, const TomlValue& value) const {
    const RemovedKey* const removed = find_removed_key(name);
    return removed != nullptr && (saved_ || describe(value) == removed->unset);
  }

  void assign(const ConfigKey& key, const TomlValue& value, int64_t order, const std::string& where) {
    const std::string name = full_name(key);
    if (const auto complaint = std::visit(Assigner{key, value, config_}, key.type)) {
      add(order, where, config_error(name, complaint->needed, complaint->got, complaint->fix).what());
      faulty_.insert(name);
    } else {
      origins_[name] = {order, where};
    }
  }

  void unknown_key(const std::string& section, const std::string& name, const std::string& value,
                   int64_t order, const std::string& where) {
    const std::string full = section.empty() ? name : section + "." + name;
    const RemovedKey* const removed = find_removed_key(full);
    const ConfigError error =
        removed != nullptr
            ? config_error(full, "no key of this name, as it was removed", value, removed->fix)
            : config_error(brief(full), "a known key", shown(full), advice_for_key(section, name));
    add(order, where, error.what());
  }

  /// The value of an override, the text after its '=', as a TOML literal: text and lists need no quotes.
  static std::string literal_for(const ConfigKey& key, const std::string& typed) {
    const char first = typed.empty() ? '\0' : typed.front();
    const bool quoted = first == '"' || first == '\'' || first == '[';
    if (quoted) return typed;
    const auto* numbers = std::get_if<FloatListKey>(&key.type);
    if (numbers != nullptr && !typed.empty() && typed == numbers->word) return toml_quoted(typed);
    if (numbers != nullptr || std::holds_alternative<IntegerListKey>(key.type)) return "[" + typed + "]";
    if (const auto* texts = std::get_if<TextListKey>(&key.type)) {
      if (texts->is_word(typed)) return toml_quoted(typed);
      std::string list = "[";
      std::istringstream names(typed);
      for (std::string name; std::getline(names, name, ',');) list += toml_quoted(name) + ",";
      return list + "]";
    }
    if (std::holds_alternative<FieldNumbersKey>(key.type) && first != '{' && typed.find('=') != typed.npos)
      return "{" + typed + "}";
    const auto* integer = std::get_if<IntegerKey>(&key.type);
    if (integer != nullptr && !typed.empty() && typed == integer->word) return toml_quoted(typed);
    const bool text = std::holds_alternative<TextKey>(key.type) ||
                      std::holds_alternative<SizeKey>(key.type) ||
                      std::holds_alternative<ChoiceKey>(key.type);
    return text ? toml_quoted(typed) : typed;
  }

  std::string name_;
  bool saved_;  // text of a checkpoint
  Config config_;
  std::vector<Fault> faults_;
  std::map<std::string, Origin> origins_;  // keys that were set, and where
  std::set<std::string> faulty_;
  int64_t overrides_ = 0;
};

}  // namespace

Config parse_saved_config(const std::string& text, const std::string& name) {
  Reader reader(name, true);
  reader.read(text);
  return reader.finish();
}

Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  Reader reader(name, false);
  reader.read(text);
  for (const std::string& setting : overrides) reader.override_with(setting);
  return reader.finish();
}

}  // namespace meshgrad
