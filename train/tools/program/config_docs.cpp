// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/config_docs.h>

#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct SchemaMaker {
  OrderedJson& entry;
  void operator()(const BoolKey&) const { entry["type"] = "boolean"; }
  void operator()(const IntegerKey& type) const {
    if (type.word.empty()) return integer(entry, type.minimum, type.maximum);
    OrderedJson number;
    integer(number, type.minimum, type.maximum);
    entry["anyOf"] = {number, {{"enum", {type.word}}}};
  }
  void operator()(const FloatKey& type) const { number(entry, type.minimum, type.maximum); }
  void operator()(const FieldNumbersKey& type) const {
    OrderedJson one;
    number(one, type.minimum, type.maximum);
    entry["anyOf"] = {one, {{"type", "object"}, {"minProperties", 1}, {"additionalProperties", one}}};
  }
  void operator()(const TextKey& type) const {
    entry["type"] = "string";
    if (type.required) entry["minLength"] = 1;
    entry["maxLength"] = kLongestText;
  }
  void operator()(const TextListKey& type) const {
    OrderedJson texts;
    SchemaMaker{texts}.list(type.least);
    texts["items"] = {{"type", "string"}, {"minLength", 1}};
    if (type.names != nullptr) texts["items"] = {{"enum", type.names()}};
    if (type.words.empty()) return entry.update(texts);
    entry["anyOf"] = {texts, {{"enum", type.words}}};
  }
  void operator()(const IntegerListKey& type) const {
    list(type.least);
    integer(entry["items"], type.minimum, type.maximum);
  }
  void operator()(const FloatListKey& type) const {
    OrderedJson list{{"type", "array"}, {"maxItems", type.most}};
    number(list["items"], type.minimum, type.maximum);
    if (type.word.empty()) return entry.update(list);
    entry["anyOf"] = {list, {{"const", type.word}}};
  }
  void operator()(const SizeKey&) const {
    entry["type"] = "string";
    entry["pattern"] = "^(0?|[0-9]+(\\.[0-9]*)? *([TGMK]iB|[TGMk]?B))$";
  }
  void operator()(const ChoiceKey& type) const {
    entry["enum"] = OrderedJson::array();
    for (const Choice& choice : type.choices) entry["enum"].push_back(choice.name);
  }

 private:
  static void number(OrderedJson& target, double minimum, double maximum) {
    target["type"] = "number";
    target["minimum"] = minimum;
    target["maximum"] = maximum;
  }
  static void integer(OrderedJson& target, int64_t minimum, int64_t maximum) {
    target["type"] = "integer";
    target["minimum"] = minimum;
    target["maximum"] = maximum;
  }
  void list(size_t least) const {
    entry["type"] = "array";
    entry["minItems"] = least;
    entry["uniqueItems"] = true;
  }
};

OrderedJson object_schema() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", OrderedJson::object()}};
}

/// A cell of a Markdown table: '|' would end it.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

void append_rows(std::string& text, std::string_view section) {
  text += "| key | accepts | default | unit | meaning |\n|---|---|---|---|---|\n";
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) continue;
    text += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", full_name(key), cell(describe_type(key)),
                        toml_literal(key, Config{}), key.unit, cell(key.help));
  }
}

/// What a key accepts; where that does not fit a line, with spaces at which it may end.
std::string choices_text(const ConfigKey& key) {
  const std::string accepted = describe_type(key);
  if (accepted.size() + std::string_view("# ()").size() <= kTextWidth) return accepted;
  std::string spaced;
  for (const char c : accepted) spaced += c == '|' ? " | " : std::string(1, c);
  return spaced;
}

}  // namespace

std::string config_schema() {
  OrderedJson schema = {{"$schema", "http://json-schema.org/draft-04/schema#"}, {"title", "meshgrad run"}};
  schema.update(object_schema());
  for (const ConfigSection& section : config_sections()) {
    OrderedJson& entry = schema["properties"][std::string(section.name)] = object_schema();
    entry["description"] = section.help;
  }
  for (const ConfigKey& key : config_keys()) {
    OrderedJson& home = key.section.empty() ? schema : schema["properties"][std::string(key.section)];
    OrderedJson& entry = home["properties"][std::string(key.name)];
    entry["description"] =
        key.unit.empty() ? std::string(key.help) : fmt::format("{} [{}]", key.help, key.unit);
    std::visit(SchemaMaker{entry}, key.type);
    entry["default"] = OrderedJson::parse(toml_literal(key, Config{}));  // these literals are JSON as well
  }
  return schema.dump(2) + "\n";
}

std::string config_summary() {
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    const std::string setting = fmt::format("{} = {}", full_name(key), toml_literal(key, Config{}));
    text += "  " + setting + "\n" + wrapped(key.help, kTextWidth, "      ", "      ") + "\n";
  }
  return text;
}

std::string commented_toml(const Config& config) {
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    const std::string unit = key.unit.empty() ? std::string() : fmt::format(" [{}]", key.unit);
    text += wrapped(fmt::format("{}{} ({})", key.help, unit, choices_text(key)), kTextWidth, "# ", "# ");
    text += fmt::format("\n{} = {}\n", key.name, toml_literal(key, config));
  }
  return text;
}

std::string config_markdown() {
  std::string text =
      "# Configuration\n\n"
      "One TOML file describes a run. Absent keys have their defaults; `--set section.key=value` overrides "
      "the "
      "file.\n"
      "`meshgrad config default` writes a file with every key, `meshgrad config effective FILE` shows the "
      "resulting\n"
      "values, and `meshgrad config schema` is a JSON Schema for editors. The [glossary](glossary.md) "
      "explains "
      "the terms.\n\n"
      "Text is quoted in a file (`device = \"cpu\"`) and unquoted after `--set` (`--set run.device=cpu`). "
      "An integer\n"
      "is accepted where a number is expected; there is no other conversion. Paths are relative to the "
      "current folder.\n"
      "`meshgrad config docs` generates this page.\n\n"
      "## Top level\n\nBefore the first section of the file.\n\n";
  append_rows(text, "");
  for (const ConfigSection& section : config_sections()) {
    text += fmt::format("\n## [{}]\n\n{}.\n\n", section.name, section.help);
    append_rows(text, section.name);
  }
  return text;
}

}  // namespace meshgrad
