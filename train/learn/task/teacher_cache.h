// SPDX-License-Identifier: Apache-2.0
// TeacherCache: what a teacher gives for each sample of a split, computed once, in a memory-mapped file that
// steps read in place of running it (distill.cache). A safetensors file: "predictions" [rows, outputs] in the
// run's precision and the teacher's units, those of all samples in the order of SplitSamples; "checksum", i64
// [1]: XXH3 of the predictions, seeded with XXH3 of the header. Its metadata say what it is of.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/learn/task/sample.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct XXH3_state_s;

namespace meshgrad {

/// What a cache is of, and where the rows of its samples lie.
struct CachedSplit {
  std::string teacher;  ///< Teacher::hash
  uint64_t data = 0;    ///< Dataset::fingerprint
  std::string split;
  DType dtype = DType::f32;
  int64_t outputs = 0;
  SplitSamples samples;
  std::vector<int64_t> first_rows = {0};  ///< by trajectory, and the total

  int64_t rows() const { return first_rows.back(); }
  int64_t bytes() const { return rows() * outputs * size_of(dtype); }
  /// Adds the samples of the next trajectory, with that many rows each.
  void add(int64_t rows) {
    const auto trajectory = std::ssize(first_rows) - 1;
    first_rows.push_back(first_rows.back() + rows * samples.in_trajectory(trajectory));
  }
};

/// A file that was written by TeacherCacheWriter. Safe from several threads.
class TeacherCache {
 public:
  /// Maps the file and reads all of it once. Throws DataError for one that is no cache, was cut or changed,
  /// or is of something else.
  TeacherCache(const std::filesystem::path& path, CachedSplit of);

  const std::string& split() const { return of_.split; }
  /// The rows of a sample of the split.
  std::span<const std::byte> rows(const Sample& sample) const;
  /// After rows were read. Throws DataError when the file lost its content since it was opened.
  void check_read() const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  CachedSplit of_;
  std::span<const std::byte> predictions_;
};

class TeacherCacheWriter {
 public:
  /// Nothing while another process writes this file. What errors AtomicFile throws.
  static std::optional<TeacherCacheWriter> begin(const std::filesystem::path& path, const CachedSplit& of);
  /// The rows of the next samples.
  void add(std::span<const std::byte> rows);
  /// Puts the file in place. Without, there is none.
  void finish();

 private:
  TeacherCacheWriter(std::unique_ptr<AtomicFile> file, const CachedSplit& of);
  std::unique_ptr<AtomicFile> file_;
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> hash_;
};

}  // namespace meshgrad
