// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/packed_copy.h>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>

namespace meshgrad::cli {
namespace {

/// A new name in TMPDIR, of which nothing is left at the end.
class TemporaryName {
 public:
  TemporaryName() {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) {
      throw data_error("TMPDIR", "a folder for a packed copy of the data", error.message(),
                       "name another folder by the environment variable TMPDIR");
    }
    remove_abandoned_files(folder);
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    path_ = folder / fmt::format("meshgrad-{}-{}.mgd", ::getpid(), now);
  }
  ~TemporaryName() {
    std::error_code none;
    std::filesystem::remove(path_, none);
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

bool names_packed_file(const std::filesystem::path& path) {
  std::error_code none;
  return !std::filesystem::is_directory(path, none) && (path.extension() == ".mgd" || is_packed_file(path));
}

Dataset packed_copy(ConvertOptions options, ConvertReport& report) {
  const TemporaryName name;
  options.output = name.path();
  report = convert(options);
  return Dataset::open(name.path());
}

void print_read(const ConvertReport& report) {
  for (const std::string& note : report.notes) print_note(note);
  for (const std::string& line : read_lines(report.read)) print_note("read " + line);
}

}  // namespace meshgrad::cli
