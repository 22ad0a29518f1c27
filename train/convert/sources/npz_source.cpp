// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/graph_collection.h>
#include <meshgrad/train/convert/sources/npy.h>
#include <meshgrad/train/convert/sources/npz_source.h>
#include <meshgrad/train/data/mapped_file.h>

#ifdef MESHGRAD_HAVE_LIBZIP
#include <zip.h>

namespace meshgrad {
namespace {

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using ZipArchive = std::unique_ptr<zip_t, ZipCloser>;
using ZipFile = std::unique_ptr<zip_file_t, ZipFileCloser>;

DataError broken_zip(std::string_view where, std::string_view got) {
  return data_error(where, "an NPZ file (a zip of .npy arrays)", got,
                    "copy it again, or save it with numpy.savez");
}

ZipArchive open_zip(std::span<const std::byte> bytes, const std::string& name) {
  zip_error_t error;
  zip_error_init(&error);
  zip_t* archive = nullptr;
  if (zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error)) {
    archive = zip_open_from_source(source, ZIP_RDONLY, &error);
    if (archive == nullptr) zip_source_free(source);
  }
  const std::string text = archive == nullptr ? zip_error_strerror(&error) : "";
  zip_error_fini(&error);
  if (archive == nullptr) throw broken_zip(name, text);
  return ZipArchive(archive);
}

std::vector<std::byte> read_entry(zip_t* archive, zip_uint64_t index, const zip_stat_t& status,
                                  size_t file_bytes, const std::string& where) {
  constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE;
  // Deflate packs at most 1032 : 1, so a larger claim is false; it also bounds what is allocated.
  if ((status.valid & kNeeded) != kNeeded || status.comp_size > file_bytes ||
      status.size / 1032 > status.comp_size + 1) {
    throw broken_zip(where, "an entry with a false size");
  }
  std::vector<std::byte> content(status.size);
  const ZipFile file(zip_fopen_index(archive, index, 0));
  if (file == nullptr) throw broken_zip(where, zip_strerror(archive));
  size_t got = 0;
  while (got < content.size()) {
    const zip_int64_t part = zip_fread(file.get(), content.data() + got, content.size() - got);
    if (part <= 0) throw broken_zip(where, "an entry that is cut short or damaged");
    got += static_cast<size_t>(part);
  }
  // The CRC of an entry is compared at its end.
  std::byte past{};
  if (zip_fread(file.get(), &past, 1) != 0) throw broken_zip(where, "an entry whose checksum is wrong");
  return content;
}

// By the type in the header of a .npy file; false for what is no such file.
bool holds_no_numbers(std::span<const std::byte> file) {
  constexpr std::string_view kKey = "'descr': ";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 256));
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return false;
  const std::string_view type = text.substr(at + kKey.size(), 3);
  return type.starts_with('[') ||
         (type.size() == 3 && std::string_view("USOVMm").find(type[2]) != std::string_view::npos);
}

/// Entries must not overlap, and their arrays be within a multiple of the file: either makes a small file
/// large.
void check_sizes(zip_t* archive, size_t file_bytes, const std::string& name) {
  constexpr uint64_t kFree = uint64_t{256} << 20;
  constexpr uint64_t kRatio = 100;
  uint64_t stored = 0, arrays = 0;
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &status) != 0) continue;  // read_npz says so
    stored += std::min<uint64_t>(status.comp_size, file_bytes + 1);
    arrays += std::min<uint64_t>(status.size, uint64_t{1} << 40);
    if (stored > file_bytes) throw broken_zip(name, "entries that overlap");
    if (arrays <= kFree + kRatio * file_bytes) continue;
    throw data_error(name,
                     fmt::format("arrays of at most {} MiB (256 MiB and {} times the file)",
                                 (kFree + kRatio * file_bytes) >> 20, kRatio),
                     fmt::format("{} MiB or more", arrays >> 20),
                     "check the file, or save it with numpy.savez, uncompressed");
  }
}

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name) {
  const ZipArchive archive = open_zip(bytes, name);
  check_sizes(archive.get(), bytes.size(), name);
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  std::vector<NamedArray> entries;
  std::set<std::string> names;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive.get(), static_cast<zip_uint64_t>(i), 0, &status) != 0 ||
        (status.valid & ZIP_STAT_NAME) == 0) {
      throw broken_zip(name, zip_strerror(archive.get()));
    }
    NamedArray entry;
    entry.name = status.name;
    if (!entry.name.ends_with(".npy")) continue;
    entry.name.resize(entry.name.size() - 4);
    const std::string where = fmt::format("{}: array {}", name, entry.name);
    if (!names.insert(entry.name).second)
      throw data_error(where, "one array of a name", "two members " + entry.name + ".npy", "save it again");
    entry.bytes = read_entry(archive.get(), static_cast<zip_uint64_t>(i), status, bytes.size(), where);
    entry.numbers = !holds_no_numbers(entry.bytes);
    if (entry.numbers) entry.array = parse_npy(entry.bytes, where);
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// How many graphs a file has (graph_collection.h); 1 for others, and for what next() will refuse.
int64_t graphs_in(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
    const ZipArchive archive = open_zip(file.bytes(), path.string());
    const std::string entry = std::string(GraphCollection::kNodeOffsets) + ".npy";
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat(archive.get(), entry.c_str(), 0, &status) != 0) return 1;
    const std::vector<std::byte> bytes =
        read_entry(archive.get(), status.index, status, file.bytes().size(), path.string());
    return std::max<int64_t>(1, parse_npy(bytes, path.string()).size() - 1);
  } catch (const Error&) {
    return 1;
  }
}

class NpzSource : public TrajectorySource {
 public:
  NpzSource(std::filesystem::path path, ArrayOptions options, WarningCallback warn)
      : path_(std::move(path)),
        options_(std::move(options)),
        warn_(std::move(warn)),
        records_(graphs_in(path_)) {}

  int64_t records() const override { return records_; }
  uint64_t bytes_read() const override { return bytes_; }
  std::optional<RawTrajectory> next() override {
    if (next_ >= records_) return std::nullopt;
    const std::string name = path_.string();
    if (next_ > 0) return graph();
    const MappedFile file(path_);
    if (file.bytes().empty()) throw broken_zip(name, "an empty file");
    bytes_ = file.bytes().size();
    std::vector<NamedArray> arrays = read_npz(file.bytes(), name);
    graphs_ = GraphCollection::of(arrays, name, options_.map, warn_);
    if (graphs_) {
      options_.map.clear();
      return graph();
    }
    ++next_;
    return trajectory_of_arrays(std::move(arrays), name, options_, warn_);
  }

 private:
  RawTrajectory graph() {
    const std::string name = fmt::format("{}: graph {}", path_.string(), next_);
    RawTrajectory trajectory = trajectory_of_arrays(graphs_->graph(next_), name, options_, warn_);
    trajectory.record = next_++;
    return trajectory;
  }

  std::filesystem::path path_;
  ArrayOptions options_;
  WarningCallback warn_;
  int64_t records_ = 1, next_ = 0;
  std::optional<GraphCollection> graphs_;
  uint64_t bytes_ = 0;
};

}  // namespace

RawTrajectory trajectory_of_npz(std::span<const std::byte> file, const std::string& name,
                                const ArrayOptions& options, const WarningCallback& warn) {
  return trajectory_of_arrays(read_npz(file, name), name, options, warn);
}

std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, ArrayOptions options,
                                           WarningCallback warn) {
  return std::make_unique<NpzSource>(path, std::move(options), std::move(warn));
}

}  // namespace meshgrad

#else

namespace meshgrad {

RawTrajectory trajectory_of_npz(std::span<const std::byte>, const std::string& name, const ArrayOptions&,
                                const WarningCallback&) {
  throw data_error(name, "a build of meshgrad with libzip, which reads NPZ", "a build without libzip",
                   "install libzip-dev and build again, or convert the file to HDF5");
}

std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, ArrayOptions options,
                                           WarningCallback warn) {
  trajectory_of_npz({}, path.string(), options, warn);
  return nullptr;
}

}  // namespace meshgrad

#endif
