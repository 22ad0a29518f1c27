// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/run_event.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace meshgrad {
namespace {

/// In the order of RunEventKind.
constexpr std::array<std::string_view, 26> kEventNames{
    "log",          "warning",    "error",      "batch",      "settings",     "recompute", "ranks",
    "parts",        "reduction",  "teacher",    "weights",    "resumed",      "begins",    "captured",
    "not_captured", "validation", "scores",     "memory",     "memory_waste", "trace",     "patience",
    "complete",     "stopped",    "time_limit", "bytes_sent", "verdict"};

std::optional<RunEvent> parse_event(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto value = [&](const char* key) { return object.value(key, nlohmann::json()); };
  const auto step = value("step"), kind = value("kind"), fields = value("fields"), text = value("text");
  if (!step.is_number_integer() || !kind.is_string() || !fields.is_object() || !text.is_string())
    return std::nullopt;
  const auto name = std::ranges::find(kEventNames, kind.get<std::string>());
  if (name == kEventNames.end()) return std::nullopt;
  RunEvent event{.kind = static_cast<RunEventKind>(name - kEventNames.begin()),
                 .text = text.get<std::string>(),
                 .fields = {},
                 .step = step.get<int64_t>()};
  for (const auto& [key, field] : fields.items()) {
    if (field.is_boolean()) event.fields.emplace_back(key, field.get<bool>());
    if (field.is_number_integer()) event.fields.emplace_back(key, field.get<int64_t>());
    if (field.is_number_float()) event.fields.emplace_back(key, field.get<double>());
    if (field.is_string()) event.fields.emplace_back(key, field.get<std::string>());
  }
  return event;
}

}  // namespace

std::string_view name_of(RunEventKind kind) {
  static_assert(kEventNames.size() == static_cast<size_t>(RunEventKind::verdict) + 1);
  return kEventNames[static_cast<size_t>(kind)];
}

std::string RunEvent::field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &Fields::value_type::first);
  const auto* const value = found == fields.end() ? nullptr : std::get_if<std::string>(&found->second);
  return value == nullptr ? std::string() : *value;
}

std::string event_line(const RunEvent& event) {
  const nlohmann::json text = event.text;
  return fmt::format(R"({{"step": {}, "kind": "{}", "fields": {}, "text": {}}})", event.step,
                     name_of(event.kind), metrics_line(event.fields),
                     text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::vector<RunEvent> read_events(const std::filesystem::path& path) {
  std::vector<RunEvent> events;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);)
    if (std::optional<RunEvent> event = parse_event(line)) events.push_back(std::move(*event));
  return events;
}

}  // namespace meshgrad
