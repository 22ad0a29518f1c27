// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/metrics_log.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

namespace meshgrad {
namespace {

using nlohmann::json;

std::string value_text(const MetricValue& value) {
  if (const double* number = std::get_if<double>(&value)) {
    return std::isfinite(*number) ? fmt::format("{}", *number) : "null";
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return json(std::get<std::string>(value)).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The row of a line; nothing for anything but an object with a numeric "step".
std::optional<json> parsed_row(std::string_view line) {
  json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number()) return std::nullopt;
  return value;
}

/// Takes the first line off `text`, without its newline; nothing at an incomplete line or the end.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == text.npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

struct KeptRows {
  std::string text;
  std::int64_t damaged = 0;
};

/// The rows before the first whose step is beyond `last_step`, or that has the key `repeated` there. Damaged
/// lines behind the last are not counted.
KeptRows rows_to_keep(std::string_view content, std::int64_t last_step, const std::string& repeated) {
  const auto last = static_cast<double>(last_step);
  KeptRows kept;
  std::int64_t damaged = 0;
  while (const auto line = take_line(content)) {
    const auto row = parsed_row(*line);
    const double step = row ? (*row)["step"].get<double>() : 0.0;
    if (row && (step > last || (step == last && !repeated.empty() && row->contains(repeated)))) break;
    if (row) {
      kept.text.append(*line).append("\n");
      kept.damaged = damaged;
    } else {
      ++damaged;
    }
  }
  return kept;
}

}  // namespace

std::string metrics_line(const MetricsRow& row) {
  std::string line = "{";
  for (const auto& [key, value] : row) {
    if (line.size() > 1) line += ", ";
    line += json(key).dump(-1, ' ', false, json::error_handler_t::replace) + ": " + value_text(value);
  }
  return line + "}";
}

MetricsLog MetricsLog::create(const std::filesystem::path& path) { return MetricsLog(AppendFile(path, 0)); }

MetricsLog MetricsLog::resume(const std::filesystem::path& path, std::int64_t last_step,
                              const std::string& repeated) {
  if (!path_exists(path)) return create(path);
  const KeptRows kept = rows_to_keep(read_file(path), last_step, repeated);
  if (kept.damaged > 0) write_file_atomically(path, kept.text);
  return MetricsLog(AppendFile(path, kept.text.size()), kept.damaged);
}

void MetricsLog::write(const MetricsRow& row) {
  const bool has_step = std::ranges::any_of(row, [](const auto& item) {
    return item.first == "step" && std::holds_alternative<std::int64_t>(item.second);
  });
  if (!has_step)
    throw invalid_argument("MetricsLog::write", "a row with an integer \"step\"", metrics_line(row));
  const std::string line = metrics_line(row) + "\n";
  file_.append(std::as_bytes(std::span(line)));
}

std::vector<std::map<std::string, double>> read_metrics(const std::filesystem::path& path,
                                                        std::int64_t* damaged) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  std::vector<std::map<std::string, double>> rows;
  std::int64_t bad = 0;
  while (const auto line = take_line(rest)) {
    const auto object = parsed_row(*line);
    if (!object) {
      ++bad;
      continue;
    }
    std::map<std::string, double>& row = rows.emplace_back();
    for (const auto& [key, value] : object->items()) {
      if (value.is_number()) row[key] = value.get<double>();
      if (value.is_boolean()) row[key] = value.get<bool>() ? 1.0 : 0.0;
      if (value.is_null()) row[key] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  if (damaged != nullptr) *damaged = bad;
  return rows;
}

}  // namespace meshgrad
