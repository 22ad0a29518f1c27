// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/prediction_folder.h>

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

namespace meshgrad {

namespace fs = std::filesystem;

std::string file_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < ' '; }, '_');
  return name;
}

bool is_numbered(std::string_view name, std::string_view before, std::string_view after) {
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return false;
  name.remove_prefix(before.size());
  name.remove_suffix(after.size());
  return name.find_first_not_of("0123456789_") == name.npos;
}

void check_prediction(const fs::path& file, const std::vector<fs::path>& inputs) {
  check_output({.path = file,
                .option = "-o",
                .kind = "a file that meshgrad wrote there",
                .is_of_kind = has_mark,
                .taken = inputs,
                .fix = "choose another folder with -o, or move that file"});
}

void begin_folder(const fs::path& directory, const std::function<bool(const std::string& name)>& is_ours,
                  const std::vector<fs::path>& inputs) {
  std::error_code error;
  const auto same = [&](const fs::path& input) {
    std::error_code none;
    return fs::is_directory(input, none) && fs::equivalent(input, directory, none);
  };
  if (const auto input = std::ranges::find_if(inputs, same); input != inputs.end())
    throw data_error("-o " + directory.string(), "a folder that the command does not read", input->string(),
                     "name a new folder");
  fs::create_directories(directory, error);
  std::vector<fs::path> earlier;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (is_ours(at->path().filename().string())) earlier.push_back(at->path());
  for (const fs::path& path : earlier) check_prediction(path, inputs);
  for (size_t i = 0; i < earlier.size() && !error; ++i) fs::remove(earlier[i], error);
  if (error)
    throw data_error(directory.string(), "a folder that can be written", error.message(),
                     "choose another with -o");
}

std::string SourceNames::take(std::string_view source, std::string_view suffix) {
  const size_t record = std::min(source.find(": "), source.size());  // "train.tfrecord: record 3"
  std::string name = fs::path(source.substr(0, record)).replace_extension().string();
  name += source.substr(record);
  std::erase(name, ':');
  std::ranges::replace(name, ' ', '_');
  name = file_name(std::move(name));
  if (name.empty() || name.starts_with('.')) name = "mesh" + name;
  name += suffix;
  std::string unique = name;
  for (int number = 2; !taken_.insert(unique).second; ++number) unique = fmt::format("{}_{}", name, number);
  return unique;
}

}  // namespace meshgrad
