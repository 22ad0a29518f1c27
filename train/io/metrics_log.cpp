// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/io/metrics_log.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
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

std::optional<json> parsed_object(std::string_view line) {
  json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return std::nullopt;
  return value;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Bytes of the leading complete lines whose step is at most `last_step`.
std::uint64_t bytes_to_keep(std::string_view content, std::int64_t last_step) {
  std::uint64_t keep = 0;
  while (true) {
    const std::size_t end = content.find('\n', keep);
    if (end == content.npos) return keep;
    const auto row = parsed_object(content.substr(keep, end - keep));
    if (!row || !row->contains("step") || !(*row)["step"].is_number()) return keep;
    if ((*row)["step"].get<double>() > static_cast<double>(last_step)) return keep;
    keep = end + 1;
  }
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

MetricsLog MetricsLog::resume(const std::filesystem::path& path, std::int64_t last_step) {
  return MetricsLog(AppendFile(path, bytes_to_keep(content_of(path), last_step)));
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

std::vector<std::map<std::string, double>> read_metrics(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw data_error(path.string(), "a metrics file", "no readable file", "give the directory of a run");
  }
  std::vector<std::map<std::string, double>> rows;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const auto object = parsed_object(line);
    if (!object) {
      if (file.eof()) break;  // no newline yet: the line is being written
      throw data_error(fmt::format("{}: line {}", path.string(), number), "a JSON object", line.substr(0, 60),
                       "remove the line");
    }
    std::map<std::string, double>& row = rows.emplace_back();
    for (const auto& [key, value] : object->items()) {
      if (value.is_number()) row[key] = value.get<double>();
      if (value.is_boolean()) row[key] = value.get<bool>() ? 1.0 : 0.0;
      if (value.is_null()) row[key] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return rows;
}

}  // namespace meshgrad
