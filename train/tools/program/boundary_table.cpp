// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/tools/program/boundary_table.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace meshgrad {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t comma = 0; comma != line.npos; line.remove_prefix(comma + 1)) {
    comma = line.find(',');
    cells.push_back(trimmed(line.substr(0, comma)));
    if (comma == line.npos) break;
  }
  return cells;
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string names_of(std::span<const FieldInfo> targets) {
  std::string text;
  for (const FieldInfo& field : targets) {
    for (int c = 0; c < field.components; ++c) {
      text += text.empty() ? "" : ", ";
      text += field.components == 1 ? field.name : fmt::format("{}[{}]", field.name, c);
    }
  }
  return text;
}

std::optional<BoundaryTable::Column> column_named(std::string_view name, std::span<const FieldInfo> targets) {
  for (size_t target = 0; target < targets.size(); ++target) {
    const FieldInfo& field = targets[target];
    if (field.components == 1 && name == field.name) return BoundaryTable::Column{target, 0};
    for (int c = 0; c < field.components; ++c) {
      if (name == fmt::format("{}[{}]", field.name, c))
        return BoundaryTable::Column{target, static_cast<size_t>(c)};
    }
  }
  return std::nullopt;
}

}  // namespace

BoundaryTable::BoundaryTable(const std::filesystem::path& path, std::span<const FieldInfo> targets,
                             std::span<const int64_t> predicted_types) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);  // as spreadsheets write UTF-8
  size_t number = 0;
  const auto wrong = [&](std::string_view needed, const std::string& got) {
    return data_error(
        fmt::format("{}:{}", path.string(), number), needed, got,
        "see meshgrad rollout --help: a header time,node_type,FIELD... and a line for each time");
  };
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    const std::vector<std::string_view> cells = cells_of(line);
    if (columns_.empty()) {
      if (cells.size() < 3 || cells[0] != "time" || cells[1] != "node_type")
        throw wrong("the header time,node_type,FIELD...", fmt::format("\"{}\"", line));
      for (size_t i = 2; i < cells.size(); ++i) {
        const auto column = column_named(cells[i], targets);
        if (!column) throw wrong("columns of " + names_of(targets), fmt::format("\"{}\"", cells[i]));
        const auto same = [&](const Column& known) {
          return known.target == column->target && known.component == column->component;
        };
        if (std::ranges::any_of(columns_, same)) throw wrong("each column once", std::string(cells[i]));
        columns_.push_back(*column);
      }
      continue;
    }
    if (cells.size() != columns_.size() + 2)
      throw wrong(fmt::format("{} columns", columns_.size() + 2), fmt::format("{}", cells.size()));
    Row row;
    const auto type = number_in<int64_t>(cells[1]);
    if (!type) throw wrong("a node type, a whole number", fmt::format("\"{}\"", cells[1]));
    if (std::ranges::find(predicted_types, *type) != predicted_types.end())
      throw wrong("a node type that is not predicted", fmt::format("{}", *type));
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i == 1) continue;
      const auto value = number_in<double>(cells[i]);
      if (!value || !std::isfinite(*value)) throw wrong("a finite number", fmt::format("\"{}\"", cells[i]));
      if (i == 0) {
        row.time = *value;
      } else {
        row.values.push_back(*value);
      }
    }
    std::vector<Row>& rows = rows_[*type];
    if (rows.empty() && row.time > 0.0)
      throw wrong(fmt::format("a first row of node type {} at time 0", *type),
                  fmt::format("time {}", row.time));
    if (!rows.empty() && row.time <= rows.back().time)
      throw wrong(fmt::format("times of node type {} that increase", *type),
                  fmt::format("{} after {}", row.time, rows.back().time));
    rows.push_back(std::move(row));
  }
  if (rows_.empty()) throw wrong("a header and at least one line", "the end of the file");
}

std::vector<int64_t> BoundaryTable::node_types() const {
  std::vector<int64_t> types;
  for (const auto& [type, rows] : rows_) types.push_back(type);
  return types;
}

std::vector<double> BoundaryTable::at(int64_t node_type, double time) const {
  const auto found = rows_.find(node_type);
  if (found == rows_.end()) return {};
  const std::vector<Row>& rows = found->second;
  const auto after = std::ranges::upper_bound(rows, time, {}, &Row::time);
  if (after == rows.begin()) return rows.front().values;
  const Row& before = *(after - 1);
  if (after == rows.end()) return before.values;
  const double share = (time - before.time) / (after->time - before.time);
  std::vector<double> values = before.values;
  for (size_t i = 0; i < values.size(); ++i) values[i] += share * (after->values[i] - values[i]);
  return values;
}

}  // namespace meshgrad
