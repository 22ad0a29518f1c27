// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/split_list.h>
#include <meshgrad/train/data/split_names.h>

namespace meshgrad {
namespace {

constexpr const char* kUnused = "unused";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Records of one file that a name means.
struct RecordRange {
  size_t file = 0;
  int64_t first = 0, last = 0;  ///< both included
};

std::optional<size_t> file_named(std::string_view name, const std::vector<ListableFile>& files) {
  std::optional<size_t> found;
  bool several = false;
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].path == name) return i;
    if (std::filesystem::path(files[i].path).filename() != name) continue;
    several = found.has_value();
    found = i;
  }
  return several ? std::nullopt : found;
}

bool read_record_index(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

std::optional<RecordRange> range_named(std::string_view name, const std::vector<ListableFile>& files) {
  if (const auto file = file_named(name, files)) return RecordRange{*file, 0, files[*file].records - 1};
  const size_t colon = name.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto file = file_named(name.substr(0, colon), files);
  const std::string_view numbers = name.substr(colon + 1);
  const size_t dash = std::min(numbers.find('-'), numbers.size());
  RecordRange range{file.value_or(0), 0, 0};
  if (!file || !read_record_index(numbers.substr(0, dash), range.first)) return std::nullopt;
  range.last = range.first;
  if (dash < numbers.size() && !read_record_index(numbers.substr(dash + 1), range.last)) return std::nullopt;
  if (range.last < range.first || range.last >= files[*file].records) return std::nullopt;
  return range;
}

/// The split of a line "SPLIT: ...", as listed; throws for other lines.
std::string split_of_line(const std::string& place, std::string_view line) {
  const std::string_view word = trimmed(line.substr(0, line.find(':')));
  if (line.find(':') != std::string_view::npos) {
    if (word == kUnused) return kUnused;
    if (is_split_folder(word)) return split_of_name(word);
  }
  throw data_error(place, "SPLIT: NAME, NAME, ...", fmt::format("\"{}\"", line),
                   "begin each line with train:, valid:, test: or unused:");
}

}  // namespace

std::vector<std::string> splits_of_list(const std::filesystem::path& list,
                                        const std::vector<ListableFile>& files) {
  std::vector<std::vector<std::string>> splits;
  for (const ListableFile& file : files) splits.emplace_back(static_cast<size_t>(file.records));
  const auto record_name = [&](size_t file, size_t record) {
    return files[file].records == 1 ? files[file].path : fmt::format("{}:{}", files[file].path, record);
  };
  std::vector<std::string> wrong;
  std::istringstream text(read_file(list));
  int64_t number = 0;
  for (std::string row; std::getline(text, row);) {
    ++number;
    const std::string_view line = trimmed(std::string_view(row).substr(0, row.find('#')));
    if (line.empty()) continue;
    const std::string split = split_of_line(fmt::format("{}: line {}", list.string(), number), line);
    std::istringstream names{std::string(line.substr(line.find(':') + 1))};
    for (std::string word; std::getline(names, word, ',');) {
      const std::string_view name = trimmed(word);
      if (name.empty()) continue;
      const auto range = range_named(name, files);
      if (!range) wrong.push_back(fmt::format("\"{}\" (line {}), which is no data here", name, number));
      for (int64_t i = range ? range->first : 0; range && i <= range->last; ++i) {
        std::string& known = splits[range->file][static_cast<size_t>(i)];
        if (!known.empty())
          wrong.push_back(fmt::format("{} in {} and again in {} (line {})",
                                      record_name(range->file, static_cast<size_t>(i)), known, split,
                                      number));
        known = split;
      }
    }
  }
  std::vector<std::string> flat;
  bool any = false;
  for (size_t file = 0; file < files.size(); ++file) {
    for (size_t i = 0; i < splits[file].size(); ++i) {
      std::string& split = splits[file][i];
      if (split.empty()) wrong.push_back(record_name(file, i) + " in no split");
      any |= split != kUnused;
      flat.push_back(split == kUnused ? "" : split);
    }
  }
  if (!any) wrong.emplace_back("nothing that is used");
  if (wrong.empty()) return flat;
  throw data_error(
      list.string(), "each trajectory of the data in one split", abridged(wrong),
      "correct the names (a file, or FILE:0-7 for its trajectories 0 to 7); what no split should "
      "have is named in a line unused:");
}

}  // namespace meshgrad
