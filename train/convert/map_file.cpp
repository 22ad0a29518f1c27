// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/map_file.h>

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include <meshgrad/engine/error.h>

namespace meshgrad {

MapFile::MapFile(const ConvertOptions& options) : options_(options) {
  namespace fs = std::filesystem;
  const fs::path& target = options.save_map;
  if (target.empty()) return;
  std::error_code ignored;
  if (const fs::path whole = fs::weakly_canonical(target, ignored);
      !whole.empty() && whole == fs::weakly_canonical(options.output, ignored)) {
    throw config_error("save-map", "another file than the output", target.string(),
                       "name a text file, such as one that ends in .map");
  }
  if (fs::is_regular_file(target, ignored)) {
    try {
      read_array_map(target);
    } catch (const DataError&) {
      throw data_error(target.string(), "a new name, or a map to replace", "a file that is not a map",
                       "choose another name for --save-map, such as one that ends in .map");
    }
  }
  file_.emplace(target);
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
