// SPDX-License-Identifier: Apache-2.0
// The one table of configuration keys. The parser, `config default|schema|effective`, --help and
// docs/config.md are all made from it; a new key is a member in config.h and one row in config_table.cpp.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshgrad {

/// How a key reaches its member of Config.
template <class T>
using MemberOf = T& (*)(Config&);

struct BoolKey {
  MemberOf<bool> member;
};
struct IntegerKey {
  MemberOf<int64_t> member;
  int64_t minimum;
  int64_t maximum;
  std::string_view word = {};  ///< stands for 0, which then is below the minimum
};
/// A finite number; both ends are allowed.
struct FloatKey {
  MemberOf<double> member;
  double minimum;
  double maximum;
};
/// A number, or a table of fields with one each: then `all` is `others`, which fields that are not named
/// have.
struct FieldNumbersKey {
  MemberOf<double> all;
  MemberOf<std::vector<FieldNumber>> fields;  ///< in the order of their names
  double minimum;
  double maximum;
  double others = 0.0;
  std::string_view named = "fields";  ///< what the table's names are
};
/// Text of at most kLongestText bytes without control characters.
struct TextKey {
  MemberOf<std::string> member;
  bool required = false;                        ///< not empty
  std::string_view form = "text";               ///< the accepted values, in words
  bool (*accepts)(std::string_view) = nullptr;  ///< null: any text
};
inline constexpr size_t kLongestText = 4096;
struct TextListKey {
  MemberOf<std::vector<std::string>> member;               ///< none empty, none twice
  size_t least = 1;                                        ///< the fewest elements
  std::span<const std::string_view> (*names)() = nullptr;  ///< the only ones that may be listed; null: any
  std::span<const std::string_view> words = {};  ///< each in place of a list, written without brackets
  bool is_word(std::string_view text) const;
};
struct IntegerListKey {
  MemberOf<std::vector<int64_t>> member;  ///< none twice
  int64_t minimum;
  int64_t maximum;
  size_t least = 0;  ///< the fewest elements
};
struct FloatListKey {
  MemberOf<std::vector<double>> member;
  double minimum;
  double maximum;
  size_t most;                 ///< elements
  std::string_view word = {};  ///< stands for {0}, which then is below the minimum
  bool is_word(const std::vector<double>& list) const {
    return !word.empty() && list.size() == 1 && list.front() == 0.0;
  }
};
/// A number of bytes, written as text with a unit.
struct SizeKey {
  MemberOf<int64_t> member;
};
/// One spelling of an enumerator.
struct Choice {
  std::string_view name;
  int value;
};
struct ChoiceKey {
  std::span<const Choice> choices;
  int (*get)(Config&);
  void (*set)(Config&, int);
};

using KeyType = std::variant<BoolKey, IntegerKey, FloatKey, FieldNumbersKey, TextKey, TextListKey,
                             IntegerListKey, FloatListKey, SizeKey, ChoiceKey>;

/// Who may set a key, and when.
struct KeyUse {
  bool fixed = false;  ///< results depend on it, or the checkpoint's form: a resumed run may not change it
  std::span<const TaskName> tasks =
      {};                         ///< that it means something for; empty: all. Others leave its default
  std::string_view why_not = {};  ///< of the others: "has no time"
  std::span<const ModelName> models = {};  ///< that read it; empty: all. Others leave its default
};

struct ConfigKey {
  std::string_view section;  ///< empty for a top-level key
  std::string_view name;
  KeyType type;
  std::string_view unit;  ///< may be empty
  KeyUse use;
  std::string_view help;  ///< one sentence without a full stop

  bool applies_to(TaskName task) const;
  bool applies_to(ModelName model) const;
};

/// As task.name has it.
std::string_view name_of(TaskName task);
/// As model.name has it.
std::string_view name_of(ModelName model);

struct ConfigSection {
  std::string_view name;
  std::string_view help;
};

/// All keys; those of one section lie together, top-level keys first.
std::span<const ConfigKey> config_keys();

/// All sections in the order of the table, the top level not among them.
std::span<const ConfigSection> config_sections();

/// "train.lr", or "precision" at the top level.
std::string full_name(const ConfigKey& key);

/// The key of that full name, or null.
const ConfigKey* find_key(std::string_view full_name);

/// A key of earlier versions. Their files name every key: the value that asked for nothing is no reason to
/// refuse them.
struct RemovedKey {
  std::string_view name;
  std::string_view unset;  ///< as errors print it
  std::string_view fix;
};
/// The removed key of that full name, or null.
const RemovedKey* find_removed_key(std::string_view full_name);

/// The full name of the first fixed key in which two configurations of a run differ; empty when there is
/// none.
std::string changed_fixed_key(const Config& saved, const Config& config);

/// Size in bytes above which a configuration is refused.
inline constexpr size_t kLargestConfigFile = 64 * 1024;

/// Text that the TOML library must not see.
struct HostileText {
  int64_t line = 0;
  std::string message;  ///< "a zero byte"
};

/// The library parses recursively, computes 0b... in a signed integer, takes quadratic time over a list,
/// reads out of bounds if a literal string is not UTF-8, and toml11 4.4 never ends where a comment before the
/// first key has a control character. Such text is refused before it is parsed.
/// Returns the fault and its line.
std::optional<HostileText> find_hostile(const std::string& text);

/// What the key accepts, in words: "an integer from 1 to 64".
std::string describe_type(const ConfigKey& key);

/// The key's value in `config` as a TOML literal.
std::string toml_literal(const ConfigKey& key, const Config& config);

/// `value` as a TOML float, which has a point or an exponent.
std::string toml_number(double value);

/// `text` as a TOML basic string with its quotes.
std::string toml_quoted(std::string_view text);

/// Advice for an unknown key or section: names the closest known one.
std::string advice_for_key(const std::string& section, const std::string& name);
std::string advice_for_section(const std::string& name);
bool is_section(const std::string& name);

/// Keys whose values are in range but contradict each other.
struct Contradiction {
  std::vector<std::string> keys;  ///< full names; the error names the first
  std::string needed;
  std::string got;
  std::string fix;
};
std::vector<Contradiction> contradictions(const Config& config);
/// For a configuration that a program made: `config`, or throws ConfigError with the first of them.
const Config& check_config(const Config& config);

}  // namespace meshgrad
