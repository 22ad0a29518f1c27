// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/task/teacher_cache.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <map>
#include <utility>

namespace meshgrad {
namespace {

constexpr const char* kPredictions = "predictions";
constexpr const char* kChecksum = "checksum";
constexpr const char* kCacheFix =
    "remove it, so that it is written anew, or name another file in distill.cache";

std::array<SafetensorsTensor, 2> tensors_of(const CachedSplit& of) {
  return {{{.name = kPredictions,
            .dtype = safetensors_dtype(of.dtype),
            .shape = {of.rows(), of.outputs},
            .bytes = {}},
           {.name = kChecksum, .dtype = SafetensorsDtype::i64, .shape = {1}, .bytes = {}}}};
}

std::string header_of(const CachedSplit& of) {
  const std::map<std::string, std::string> metadata{
      {"teacher", of.teacher}, {"data", fmt::format("{:016x}", of.data)}, {"split", of.split}};
  return safetensors_header(tensors_of(of), metadata);
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view needed, std::string_view got) {
  throw data_error(path.string(), needed, got, kCacheFix);
}

SafetensorsView parse_cache(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  try {
    SafetensorsView view = parse_safetensors(bytes, path.string());
    if (view.contains(kPredictions) && view.contains(kChecksum) && view.metadata.contains("teacher"))
      return view;
  } catch (const DataError&) {
    // The file is not one that a run wrote.
  }
  refuse(path, "a teacher's predictions, as a run with distill.cache writes them",
         fmt::format("{} bytes of something else, or a file that was cut", bytes.size()));
}

/// Differences that a user can name come first.
void check_same_split(const std::filesystem::path& path, const SafetensorsView& view, const CachedSplit& of) {
  const auto check = [&](const char* key, std::string_view what, const std::string& needed) {
    const auto got = view.metadata.find(key);
    const std::string value = got == view.metadata.end() ? "none" : got->second;
    if (value != needed) refuse(path, fmt::format("{} {}", what, needed), fmt::format("{} {}", what, value));
  };
  check("teacher", "predictions of the teacher", of.teacher);
  check("data", "predictions for data with the fingerprint", fmt::format("{:016x}", of.data));
  check("split", "predictions for the split", of.split);
  const auto describe = [](const SafetensorsTensor& tensor) {
    return fmt::format("{} rows of {} values in {}", tensor.shape.empty() ? 0 : tensor.shape.front(),
                       tensor.shape.empty() ? 1 : tensor.shape.back(), dtype_name(tensor.dtype));
  };
  const std::string needed = describe(tensors_of(of).front()), got = describe(view.at(kPredictions));
  if (needed != got) refuse(path, needed, got);
}

uint64_t seed_of(const CachedSplit& of) {
  const std::string header = header_of(of);
  return XXH3_64bits(header.data(), header.size());
}

}  // namespace

TeacherCache::TeacherCache(const std::filesystem::path& path, CachedSplit of)
    : path_(path), file_(path), of_(std::move(of)) {
  file_.guard();
  const SafetensorsView view = parse_cache(path_, file_.bytes());
  check_same_split(path_, view, of_);
  predictions_ = view.at(kPredictions).bytes;
  const auto hash =
      static_cast<int64_t>(XXH3_64bits_withSeed(predictions_.data(), predictions_.size(), seed_of(of_)));
  check_read();
  const std::vector<int64_t> checksum = to_i64(view.at(kChecksum));
  if (checksum != std::vector{hash})
    refuse(path_, fmt::format("the checksum {:016x} in its last bytes", static_cast<uint64_t>(hash)),
           checksum.empty() ? "none" : fmt::format("{:016x}", static_cast<uint64_t>(checksum.front())));
}

std::span<const std::byte> TeacherCache::rows(const Sample& sample) const {
  const auto at = static_cast<size_t>(sample.trajectory);
  const int64_t samples = of_.samples.in_trajectory(sample.trajectory);
  const int64_t frame = sample.frame - of_.samples.first_frame;
  check_internal(frame >= 0 && frame < samples, "a sample of the split that is cached");
  const int64_t rows = (of_.first_rows[at + 1] - of_.first_rows[at]) / samples;
  const int64_t row_bytes = of_.outputs * size_of(of_.dtype);
  return predictions_.subspan(static_cast<size_t>((of_.first_rows[at] + frame * rows) * row_bytes),
                              static_cast<size_t>(rows * row_bytes));
}

void TeacherCache::check_read() const {
  if (file_.lost()) refuse(path_, fmt::format("its {} bytes", file_.bytes().size()), "a file that was cut");
}

TeacherCacheWriter::TeacherCacheWriter(std::unique_ptr<AtomicFile> file, const CachedSplit& of)
    : file_(std::move(file)), hash_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  check_internal(hash_ != nullptr, "memory for a checksum");
  XXH3_64bits_reset_withSeed(hash_.get(), seed_of(of));
  file_->write(header_of(of));
}

std::optional<TeacherCacheWriter> TeacherCacheWriter::begin(const std::filesystem::path& path,
                                                            const CachedSplit& of) {
  std::unique_ptr<AtomicFile> file = AtomicFile::sole(path);
  if (file == nullptr) return std::nullopt;
  return TeacherCacheWriter(std::move(file), of);
}

void TeacherCacheWriter::add(std::span<const std::byte> rows) {
  XXH3_64bits_update(hash_.get(), rows.data(), rows.size());
  file_->write(rows);
}

void TeacherCacheWriter::finish() {
  const uint64_t hash = XXH3_64bits_digest(hash_.get());
  file_->write(std::as_bytes(std::span(&hash, 1)));
  file_->commit();
}

}  // namespace meshgrad
