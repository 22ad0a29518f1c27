// SPDX-License-Identifier: Apache-2.0
// What is said to be needed soon is read from the disk before anybody touches it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/packed_file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "train/small_run.h"

namespace meshgrad {
namespace {

constexpr size_t kPage = 4096;

/// Pages of [begin, begin + bytes) of the file that the system holds.
int64_t resident_pages(const MappedFile& file, uint64_t begin, uint64_t bytes) {
  const uint64_t first = begin / kPage;
  std::vector<unsigned char> pages((begin + bytes + kPage - 1) / kPage - first);
  if (mincore(const_cast<std::byte*>(file.bytes().data() + first * kPage), pages.size() * kPage,
              pages.data()) != 0) {
    return -1;
  }
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1U) != 0; });
}

TEST_CASE("reading ahead skips a trajectory in memory") {
  const test::ScratchDirectory scratch;
  const std::filesystem::path path = test::pack_waves(scratch.path, 40, 200);
  const Dataset dataset = Dataset::open(path);
  const auto packed = PackedFile::open(path);
  const MappedFile file(path);
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(descriptor >= 0);
  const TrajectoryRecord record = packed->trajectory_record(1);
  const auto pages = static_cast<int64_t>((record.bytes + kPage - 1) / kPage);
  fdatasync(descriptor);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  CHECK(pages > 100);
  // Where files live in memory nothing can be taken out of it.
  const bool cold = resident_pages(file, record.offset, record.bytes) < pages / 2;
  if (cold) {
    dataset.read_ahead("train", 1);
    for (int i = 0; i < 500 && resident_pages(file, record.offset, record.bytes) < pages; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(resident_pages(file, record.offset, record.bytes) >= pages);
  }
  dataset.trajectory("train", 1);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  dataset.read_ahead("train", 1);   // was checked
  dataset.read_ahead("train", 99);  // no such trajectory
  close(descriptor);
}

}  // namespace
}  // namespace meshgrad
