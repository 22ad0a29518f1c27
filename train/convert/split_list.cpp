// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/split_list.h>
#include <meshgrad/train/convert/split_names.h>

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

/// Finds files by their path, or by a name that no other file has.
class FileNames {
 public:
  explicit FileNames(const std::vector<ListableFile>& files) : files_(files) {
    for (size_t i = 0; i < files.size(); ++i) {
      paths_.emplace(files[i].path, i);
      const auto [at, added] = names_.emplace(std::filesystem::path(files[i].path).filename().string(), i);
      if (!added) at->second = std::nullopt;
    }
  }
  const ListableFile& operator[](size_t file) const { return files_[file]; }
  std::optional<size_t> find(std::string_view name) const {
    if (const auto path = paths_.find(name); path != paths_.end()) return path->second;
    const auto file = names_.find(name);
    return file == names_.end() ? std::nullopt : file->second;
  }

 private:
  const std::vector<ListableFile>& files_;
  std::map<std::string, size_t, std::less<>> paths_;
  std::map<std::string, std::optional<size_t>, std::less<>> names_;
};

bool read_record_index(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

std::optional<RecordRange> range_named(std::string_view name, const FileNames& files) {
  if (const auto file = files.find(name)) return RecordRange{*file, 0, files[*file].records - 1};
  const size_t colon = name.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto file = files.find(name.substr(0, colon));
  const std::string_view numbers = name.substr(colon + 1);
  const size_t dash = std::min(numbers.find('-'), numbers.size());
  RecordRange range{file.value_or(0), 0, 0};
  if (!file || !read_record_index(numbers.substr(0, dash), range.first)) return std::nullopt;
  range.last = range.first;
  if (dash < numbers.size() && !read_record_index(numbers.substr(dash + 1), range.last)) return std::nullopt;
  if (range.last < range.first || range.last >= files[*file].records) return std::nullopt;
  return range;
}

/// The next name of a list "a, b, ..", and the rest after its comma. A name that holds a comma, a "#" or
/// blanks at its ends stands in double quotes. Nothing at the end, which may be a comment.
std::optional<std::string_view> next_name(std::string_view& rest, const std::string& place) {
  rest = trimmed(rest);
  while (rest.starts_with(',')) rest = trimmed(rest.substr(1));
  if (rest.empty() || rest.front() == '#') return std::nullopt;
  if (rest.front() != '"') {
    const size_t end = std::min(rest.find_first_of(",#"), rest.size());
    return trimmed(std::exchange(rest, rest.substr(end)).substr(0, end));
  }
  const size_t end = rest.find('"', 1);
  const std::string_view after = end == std::string_view::npos ? "" : trimmed(rest.substr(end + 1));
  if (end == std::string_view::npos || !(after.empty() || after.front() == ',' || after.front() == '#')) {
    throw data_error(place, "a name in double quotes, then a comma or the end of the line",
                     fmt::format("{}", rest.substr(0, 80)),
                     "close the quotes after the name, as in \"a,b.npz:0-7\"");
  }
  return std::exchange(rest, after).substr(1, end - 1);
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
  return parse_split_list(read_file(list), list.string(), files);
}

std::vector<std::string> parse_split_list(std::string content, const std::string& list,
                                          const std::vector<ListableFile>& files) {
  std::vector<std::vector<std::string>> splits;
  for (const ListableFile& file : files) splits.emplace_back(static_cast<size_t>(file.records));
  const auto record_name = [&](size_t file, size_t record) {
    return files[file].records == 1 ? files[file].path : fmt::format("{}:{}", files[file].path, record);
  };
  std::vector<std::string> wrong;
  // More are not told of, and a list may have millions.
  const auto is_full = [&] { return wrong.size() >= 1000; };
  const FileNames names(files);
  if (content.starts_with("\xef\xbb\xbf")) content.erase(0, 3);  // the byte order mark of Windows' editors
  std::istringstream text(std::move(content));
  int64_t number = 0;
  for (std::string row; std::getline(text, row);) {
    ++number;
    const std::string_view line = trimmed(row);
    if (line.empty() || line.front() == '#') continue;
    const std::string place = fmt::format("{}: line {}", list, number);
    const std::string split = split_of_line(place, line);
    std::string_view rest = line.substr(line.find(':') + 1);
    while (const auto name = next_name(rest, place)) {
      const auto range = range_named(*name, names);
      if (is_full()) break;
      if (!range) wrong.push_back(fmt::format("\"{}\" (line {}), which is no data here", *name, number));
      for (int64_t i = range ? range->first : 0; range && i <= range->last; ++i) {
        std::string& known = splits[range->file][static_cast<size_t>(i)];
        if (!known.empty() && !is_full())
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
      if (split.empty() && !is_full()) wrong.push_back(record_name(file, i) + " in no split");
      any |= split != kUnused;
      flat.push_back(split == kUnused ? "" : split);
    }
  }
  if (!any) wrong.emplace_back("nothing that is used");
  if (wrong.empty()) return flat;
  throw data_error(
      list, "each trajectory of the data in one split", abridged(wrong),
      "correct the names (a file, or FILE:0-7 for its trajectories 0 to 7); what no split should "
      "have is named in a line unused:");
}

}  // namespace meshgrad
