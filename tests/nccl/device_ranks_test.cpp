// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/bucket_sum.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/device_ranks.h>

#include <array>

#include "../cuda_runtime/fake_runtime.h"
#include "../simulated_ranks.h"
#include "fake_nccl.h"

namespace meshgrad {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kElements = 10;  // not a multiple of the ranks

/// "Device" memory of each rank: value i of rank r is 100 r + i.
template <class T>
struct Arrays {
  std::array<std::array<T, kElements>, kRanks> values;
  Arrays() {
    for (int rank = 0; rank < kRanks; ++rank)
      for (int64_t i = 0; i < kElements; ++i) at(rank, i) = static_cast<T>(100 * rank + i);
  }
  T& at(int rank, int64_t i) { return values[static_cast<size_t>(rank)][static_cast<size_t>(i)]; }
  static T sum(int64_t i) { return static_cast<T>(300 + 3 * i); }
  Tensor tensor(int rank, int64_t elements = kElements) {
    return Tensor::borrow(&at(rank, 0), Shape{elements}, dtype_of<T>(), {}, {DeviceKind::cuda, 0});
  }
};

int stream_memory = 0;  // its address is the handle that all calls must get
const Stream kStream({DeviceKind::cuda, 0}, 1, &stream_memory);

void queue_on_ranks(const std::function<void(Ranks&, const DeviceRanks&)>& body) {
  fake_nccl::reset(kRanks);
  test::on_ranks(kRanks, [&](Ranks& ranks) {
    const DeviceRanks device(ranks, {DeviceKind::cuda, 0}, std::chrono::seconds(10));
    body(ranks, device);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK(!fake_nccl::calls(rank).empty());
    for (const fake_nccl::Call& call : fake_nccl::calls(rank)) CHECK(call.stream == kStream.native());
  }
}

TEST_CASE_TEMPLATE("an all-reduce of a GPU's tensor", T, float, double) {
  Arrays<T> arrays;
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    device.all_reduce(arrays.tensor(ranks.rank()), kStream);
  });
  CHECK(fake_nccl::run() == "");
  for (int rank = 0; rank < kRanks; ++rank)
    for (int64_t i = 0; i < kElements; ++i) CHECK(arrays.at(rank, i) == Arrays<T>::sum(i));
}

TEST_CASE("buckets are summed on a stream of their own, each behind what made it, and the rest behind all") {
  for (const int ranks : {1, kRanks}) {
    Arrays<float> arrays;
    fake_nccl::reset(ranks);
    std::array<int, kRanks> streams{};  // one a rank, on device 0
    test::on_ranks(ranks, [&](Ranks& on) {
      const Stream stream({DeviceKind::cuda, 0}, 1, &streams[static_cast<size_t>(on.rank())]);
      const DeviceRanks device(on, {DeviceKind::cuda, 0}, std::chrono::seconds(10));
      const auto buckets = make_bucket_sum(device, stream, {0, 4, 7}, "sum of gradients");
      const size_t before = fake_cuda::awaited_by(stream.native()).size();
      buckets->start(arrays.tensor(on.rank()));
      if (on.rank() == 1) buckets->ready_from(5);
      buckets->finish();
      const std::vector<fake_nccl::Call>& calls = fake_nccl::calls(on.rank());
      CHECK(calls.size() == 3);
      const void* const own = calls.front().stream;
      CHECK(own != stream.native());
      for (size_t i = 0; i < calls.size(); ++i) {
        CHECK(calls[i].stream == own);
        CHECK(calls[i].after.size() == calls[0].after.size() + i);
        REQUIRE(!calls[i].after.empty());
        CHECK(calls[i].after.back() == stream.native());
      }
      const std::vector<const void*> awaited = fake_cuda::awaited_by(stream.native());
      REQUIRE(awaited.size() == before + 1);
      CHECK(awaited.back() == own);
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<fake_nccl::Call>& calls = fake_nccl::calls(rank);
      CHECK(calls[0].count == 3);
      CHECK(calls[1].count == 3);
      CHECK(calls[2].count == 4);
      CHECK(calls[2].from == &arrays.at(rank, 0));
    }
    CHECK(fake_nccl::run() == "");
    for (int rank = 0; rank < ranks; ++rank)
      for (int64_t i = 0; i < kElements; ++i)
        CHECK(arrays.at(rank, i) == (ranks == 1 ? static_cast<float>(i) : Arrays<float>::sum(i)));
  }
}

TEST_CASE("slices are reduced to their owners in one group, and gathered from them") {
  Arrays<float> arrays;
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    device.reduce_scatter(arrays.tensor(ranks.rank()), kStream);
  });
  for (int rank = 0; rank < kRanks; ++rank)
    for (const fake_nccl::Call& call : fake_nccl::calls(rank)) CHECK(call.group == 1);
  CHECK(fake_nccl::run() == "");
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankSlice own = rank_slice(kElements, rank, kRanks);
    for (int64_t i = own.begin; i < own.end; ++i) CHECK(arrays.at(rank, i) == Arrays<float>::sum(i));
  }
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    device.all_gather_slices(arrays.tensor(ranks.rank()), kStream);
  });
  CHECK(fake_nccl::run() == "");
  for (int rank = 0; rank < kRanks; ++rank)
    for (int64_t i = 0; i < kElements; ++i) CHECK(arrays.at(rank, i) == Arrays<float>::sum(i));
}

TEST_CASE("messages in a ring, in one group and in bytes") {
  Arrays<float> sent, received;
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    const DeviceMessage send{(ranks.rank() + 1) % kRanks, sent.tensor(ranks.rank(), 4)};
    const DeviceMessage receive{(ranks.rank() + kRanks - 1) % kRanks, received.tensor(ranks.rank(), 4)};
    device.exchange(std::span(&send, 1), std::span(&receive, 1), kStream);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const fake_nccl::Call& call : fake_nccl::calls(rank)) {
      CHECK(call.group == 1);
      CHECK(call.count == 16);
    }
  }
  CHECK(fake_nccl::run() == "");
  for (int rank = 0; rank < kRanks; ++rank)
    for (int64_t i = 0; i < 4; ++i) CHECK(received.at(rank, i) == sent.at((rank + kRanks - 1) % kRanks, i));
}

TEST_CASE("the stand-in notices calls that do not fit together") {
  Arrays<float> arrays;
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    device.all_reduce(arrays.tensor(ranks.rank(), ranks.first() ? 4 : 5), kStream);
  });
  CHECK(fake_nccl::run() == "all_reduce with other counts, types or roots");
  queue_on_ranks([&](Ranks& ranks, const DeviceRanks& device) {
    if (ranks.first()) return device.all_reduce(arrays.tensor(0), kStream);
    device.reduce_scatter(arrays.tensor(ranks.rank()), kStream);
  });
  CHECK(fake_nccl::run() != "");
}

TEST_CASE("an error of NCCL in the background is an error of the rank that waits") {
  fake_nccl::reset(1);
  const test::Endings endings = test::try_on_ranks({.ranks = 1, .loss = {}}, [](Ranks& ranks) {
    const DeviceRanks device(ranks, {DeviceKind::cuda, 0}, std::chrono::seconds(10));
    fake_nccl::fail_with(ncclRemoteError);
    device.check_background("sum of gradients");
  });
  CHECK(endings[0].find("rank 0: sum of gradients] needed NCCL to go on, got remote process exited") !=
        std::string::npos);
}

}  // namespace
}  // namespace meshgrad
