// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/map_file.h>

#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <vector>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/manifest.h>

namespace meshgrad {

namespace {

bool is_map(const std::filesystem::path& path) {
  try {
    read_array_map(path);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

MapFile::MapFile(const ConvertOptions& options) : options_(options) {
  if (options.save_map.empty()) return;
  std::vector<std::filesystem::path> taken = files_read(options);
  taken.push_back(options.output);
  check_output({.path = options.save_map,
                .option = "--save-map",
                .kind = "a map",
                .is_of_kind = is_map,
                .replace = options.replace,
                .taken = std::move(taken),
                .fix = "choose another name, such as one that ends in .map"});
  file_.emplace(options.save_map);
}

void MapFile::write(const ArrayMap& map) {
  if (!file_) return;
  file_->write(
      array_map_text(map, fmt::format("Which array of {} is what; meshgrad convert reads it by --map @{}\n"
                                      "Without lines of fields, all arrays that fit are fields.",
                                      options_.input.string(), options_.save_map.string())));
  file_->commit();
}

}  // namespace meshgrad
