// SPDX-License-Identifier: Apache-2.0
// Names of series: a byte, a line with a pattern of --series (or none), and a line for each name. However the
// names are given, the groups, their order, and the values at each time are the same, or the error is.
#include <meshgrad/train/convert/series_names.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/vtk_series.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fuzz/fuzz.h"
#include "train/scratch_directory.h"
#include "train/vtu_file.h"

using namespace meshgrad;

namespace {

using Names = std::vector<std::string>;

std::string take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// The groups of a reading; every name is in at most one.
std::string groups_of(const SeriesReading& reading, const Names& names, std::vector<int>& in_group) {
  std::string text = reading.pattern + ":";
  for (const std::vector<size_t>& group : reading.groups) {
    for (const size_t i : group) text += " " + names.at(i), ++in_group.at(i);
    text += " |";
  }
  return text + "\n";
}

/// All readings of names; every name is in one family, and in one group of each of its readings.
std::string readings_of(const Names& names) {
  std::string text;
  std::vector<int> in_family(names.size());
  for (const SeriesFamily& family : families_of(names)) {
    for (const size_t i : family.members) ++in_family.at(i);
    for (const SeriesReading& reading : family.readings) {
      std::vector<int> in_group(names.size());
      text += groups_of(reading, names, in_group);
      for (const size_t i : family.members)
        if (in_group[i] != 1) __builtin_trap();
    }
  }
  if (std::ranges::any_of(in_family, [](int count) { return count != 1; })) __builtin_trap();
  return text;
}

std::string by_pattern(const std::string& pattern, const Names& names) {
  std::vector<int> in_group(names.size());
  std::string text = groups_of(parse_series(pattern, names), names, in_group);
  if (std::ranges::any_of(in_group, [](int count) { return count > 1; })) __builtin_trap();
  return text;
}

/// What one name alone says: the mesh of its file, its time, and the value at its first point.
struct Facts {
  int columns = 2, time = 0;
  double value = 0;
  explicit Facts(const std::string& name) {
    uint32_t sum = 1;
    for (const char c : name) sum = sum * 31 + static_cast<unsigned char>(c);
    columns = sum % 5 == 0 ? 3 : 2;
    time = static_cast<int>(sum / 5 % 16);
    value = static_cast<double>(sum % 100'000);
  }
};

/// The trajectories of files with these names, with the values that are read, as text; each value is its
/// file's.
std::string trajectories_of(const Names& names, const std::filesystem::path& folder, ConvertOptions options) {
  std::vector<FoundFile> found;
  for (const std::string& name : names) found.push_back({folder / name, ""});
  options.input = folder;
  std::vector<std::string> notes;
  std::string text;
  for (const FoundFile& series : vtk_series(found, options, notes, [](const std::string&) {})) {
    const auto source = open_vtk(series.frames, "", [](const std::string&) {});
    size_t frame = 0;
    while (const auto trajectory = source->next()) {
      text += "|";
      for (const auto& field : trajectory->fields) {
        const auto* values = std::get_if<std::vector<float>>(&field.values);
        if (values == nullptr || field.name != "u") continue;
        const size_t size = values->size() / static_cast<size_t>(trajectory->frames);
        for (size_t at = 0; at < values->size(); at += size, ++frame) {
          const std::string name = series.frames.at(frame).path.filename().string();
          if (static_cast<double>((*values)[at]) != Facts(name).value) __builtin_trap();
          text += " " + name;
        }
      }
    }
    if (frame != series.frames.size()) __builtin_trap();
  }
  for (const std::string& note : notes) text += "\n" + note;
  return text;
}

/// `act` on the names in several orders, all of which give the same text or error.
template <class Act>
void expect_same(Names names, unsigned seed, Act&& act) {
  const auto result = [&] {
    try {
      return act(names);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal || error.what()[0] == '\0') __builtin_trap();
      return std::string(error.what());
    }
  };
  const std::string first = result();
  std::minstd_rand random(seed + 1);
  for (int order = 0; order < 3; ++order) {
    if (order == 0) std::ranges::reverse(names);
    if (order == 1) std::ranges::sort(names);
    if (order == 2) std::ranges::shuffle(names, random);
    if (result() != first) __builtin_trap();
  }
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() < 100 && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr unsigned kTimed = 1, kSeparate = 2;
  const unsigned choices = data[0];
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string pattern = take_line(text);
  Names names;
  for (constexpr size_t kMost = 12; !text.empty() && names.size() < kMost;) {
    const std::string name = take_line(text);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  expect_same(names, choices, readings_of);
  if (!pattern.empty())
    expect_same(names, choices, [&](const Names& order) { return by_pattern(pattern, order); });
  std::erase_if(names, [](const std::string& name) { return !is_file_name(name); });
  if (names.empty()) return 0;
  const test::ScratchDirectory scratch;
  for (std::string& name : names) {
    name += ".vtu";
    const Facts facts(name);
    test::write_vtu(scratch.path / name,
                    {.columns = facts.columns,
                     .first = facts.value,
                     .time = (choices & kTimed) != 0 ? fmt::format("{}", facts.time) : std::string()});
  }
  ConvertOptions options;
  options.series = pattern.empty() ? "" : pattern + ".vtu";
  options.separate_frames = (choices & kSeparate) != 0;
  expect_same(names, choices,
              [&](const Names& order) { return trajectories_of(order, scratch.path, options); });
  return 0;
}
