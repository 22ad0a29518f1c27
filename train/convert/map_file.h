// SPDX-License-Identifier: Apache-2.0
// The file of ConvertOptions::save_map.
#pragma once
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/data/atomic_file.h>

#include <optional>

namespace meshgrad {

/// Opened before a conversion, so that a bad name is an error before hours of work.
class MapFile {
 public:
  /// Nothing where `options` names no file. Throws DataError for a file that may not be replaced
  /// (check_output), and where no file can be written.
  explicit MapFile(const ConvertOptions& options);
  /// Replaces the file. At most once.
  void write(const ArrayMap& map);

 private:
  const ConvertOptions& options_;
  std::optional<AtomicFile> file_;
};

}  // namespace meshgrad
