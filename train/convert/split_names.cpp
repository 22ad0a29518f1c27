// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include <meshgrad/train/convert/split_names.h>

namespace meshgrad {
namespace {

constexpr std::array<std::pair<std::string_view, const char*>, 7> kSplitWords{{{"train", "train"},
                                                                               {"training", "train"},
                                                                               {"valid", "valid"},
                                                                               {"val", "valid"},
                                                                               {"validation", "valid"},
                                                                               {"test", "test"},
                                                                               {"testing", "test"}}};

std::string in_lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string split_of_word(std::string_view word) {
  for (const auto& [known, split] : kSplitWords) {
    if (word == known) return split;
  }
  return "";
}

}  // namespace

std::string split_of_name(std::string_view name) {
  constexpr std::string_view kSeparators = "_-. ";
  const std::string text = in_lower_case(name);
  // The end counts first: "train_run_test" is a test.
  const size_t last = text.find_last_of(kSeparators);
  const std::string at_end = split_of_word(
      last == std::string::npos ? std::string_view(text) : std::string_view(text).substr(last + 1));
  if (!at_end.empty()) return at_end;
  return split_of_word(std::string_view(text).substr(0, text.find_first_of(kSeparators)));
}

bool is_split_folder(std::string_view name) { return !split_of_word(in_lower_case(name)).empty(); }

std::string abridged(const std::vector<std::string>& items, size_t most) {
  if (items.size() <= most) return fmt::format("{}", fmt::join(items, ", "));
  const auto shown = items.begin() + static_cast<std::ptrdiff_t>(most);
  return fmt::format("{} and {} more", fmt::join(items.begin(), shown, ", "), items.size() - most);
}

std::string splits_as_read(const std::filesystem::path& root,
                           const std::vector<std::pair<std::filesystem::path, std::string>>& files) {
  std::vector<std::string> without, with;
  for (const auto& [path, split] : files) {
    const std::string name = path.lexically_relative(root).string();
    (split.empty() ? without : with).push_back(fmt::format("{} -> {}", name, split.empty() ? "?" : split));
  }
  // Both kinds show, however many there are of the first.
  return abridged(without, 6) + ", " + abridged(with, 6);
}

}  // namespace meshgrad
