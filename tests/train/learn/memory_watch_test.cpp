// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/run_log.h>

#include <doctest/doctest.h>

namespace meshgrad {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MemoryStats epoch_of(int64_t most_allocated, int64_t most_reserved) {
  MemoryStats stats;
  stats.capacity = 16 * kGiB;
  stats.allocated = {kGiB / 2, most_allocated, most_allocated};
  stats.reserved = {kGiB, most_reserved, most_reserved};
  stats.largest_free = kGiB / 4;
  return stats;
}

TEST_CASE("the epoch line has memory in use, held and left") {
  MemoryWatch watch;
  const MemoryWatch::Epoch epoch = watch.end_epoch(3, epoch_of(3 * kGiB, 4 * kGiB));
  CHECK(epoch.line ==
        "epoch 3: memory 512.0 MiB allocated, 1.00 GiB reserved, peak 3.00 GiB, headroom 12.00 GiB, external "
        "fragmentation 50 %");
  CHECK(epoch.waste == doctest::Approx(0.25));
  CHECK(epoch.alarm.empty());
}

TEST_CASE("a line is news when one of its figures has changed") {
  MemoryWatch watch;
  CHECK(watch.end_epoch(1, epoch_of(kGiB, kGiB)).changed);
  CHECK_FALSE(watch.end_epoch(2, epoch_of(kGiB, kGiB)).changed);
  CHECK(watch.end_epoch(3, epoch_of(2 * kGiB, 2 * kGiB)).changed);
  CHECK(watch.end_epoch(4, epoch_of(kGiB, kGiB)).changed);
}

TEST_CASE("an alarm comes when fragmentation grows over epochs") {
  MemoryWatch watch;
  const auto alarm = [&](int64_t number, double waste) {
    const auto reserved = static_cast<int64_t>(kGiB / (1.0 - waste));
    return watch.end_epoch(number, epoch_of(kGiB, reserved)).alarm;
  };
  CHECK(alarm(1, 0.10).empty());
  CHECK(alarm(2, 0.02).empty());
  CHECK(alarm(3, 0.06).empty());
  const std::string first = alarm(4, 0.08);
  CHECK_MESSAGE(first.find("from 2 % of what is reserved (epoch 2) to 8 % (epoch 4)") != std::string::npos,
                first);
  CHECK(alarm(5, 0.08).empty());
  CHECK(alarm(6, 0.12).empty());
  CHECK(!alarm(7, 0.14).empty());
  CHECK(alarm(8, 0.03).empty());
}

TEST_CASE("an epoch that reserved nothing wastes nothing") {
  CHECK(MemoryWatch().end_epoch(1, epoch_of(0, 0)).waste == 0.0);
}

}  // namespace
}  // namespace meshgrad
