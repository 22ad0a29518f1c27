// SPDX-License-Identifier: Apache-2.0
// The allocator over a device's own memory, with work in flight on it: what a block holds is checked by the
// device, in the order of its streams. On the simulated device and on a real one alike.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_cuda.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::Draws;

/// Streams of the first device, and events between them.
class DeviceStreams {
 public:
  static constexpr int kCount = 3;
  DeviceStreams() {
    for (auto& native : native_) native = gpu::create_stream(0);
  }
  ~DeviceStreams() {
    for (void* native : native_) gpu::destroy_stream(native);
  }
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;
  Stream at(int id) const { return Stream({DeviceKind::cuda, 0}, id, native_[static_cast<size_t>(id)]); }
  /// What is queued on `later` from now on waits for what is queued on `earlier`.
  void order(int earlier, int later) const {
    Event event;
    event.record(at(earlier));
    event.make_wait(at(later));
  }
  void synchronize() const {
    for (void* native : native_) gpu::synchronize(native);
  }

 private:
  std::array<void*, kCount> native_{};
};

/// Pinned bytes that the device copies blocks' contents to.
class Witness {
 public:
  explicit Witness(int64_t bytes)
      : bytes_(bytes), data_(static_cast<unsigned char*>(gpu::allocate_pinned(0, bytes))) {}
  ~Witness() { gpu::free_pinned(data_); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  bool has_room(int64_t bytes) const { return used_ + bytes <= bytes_; }
  void take(const Storage& block, int64_t bytes, int content, const Stream& stream) {
    gpu::copy(data_ + used_, block.data(), bytes, stream.native());
    expected_.push_back({used_, bytes, content});
    used_ += bytes;
  }
  /// After all streams were synchronized: bytes that are not what their block's owner wrote.
  int64_t wrong_bytes() {
    int64_t wrong = 0;
    for (const auto& [begin, bytes, content] : expected_) {
      wrong += bytes - std::count(data_ + begin, data_ + begin + bytes, static_cast<unsigned char>(content));
    }
    expected_.clear();
    used_ = 0;
    return wrong;
  }

 private:
  struct Expected {
    int64_t begin, bytes;
    int content;
  };
  int64_t bytes_, used_ = 0;
  unsigned char* data_;
  std::vector<Expected> expected_;
};

struct Owned {
  StoragePtr storage;
  int64_t bytes;
  int content, stream;
};

using MakeSource = std::shared_ptr<MemorySource> (*)(int);
constexpr MakeSource kSources[] = {make_cuda_virtual_memory, make_cuda_memory};

TEST_CASE("streams of a device never see another owner's bytes" * doctest::skip(cuda_devices().empty())) {
  for (const MakeSource make : kSources) {
    Draws draws(4711);
    DeviceStreams streams;
    Witness witness(16 * kMiB);
    const auto source = make(0);
    {
      AllocatorOptions options;
      options.memory_limit = 96 * kMiB;
      const auto allocator = CachingAllocator::create(source, options);
      std::vector<Owned> live;
      const auto check = [&] {
        streams.synchronize();
        CHECK(witness.wrong_bytes() == 0);
        const std::string wrong = test::recount(allocator->snapshot());
        CHECK_MESSAGE(wrong.empty(), wrong);
      };
      const auto free_one = [&] {
        const size_t victim = draws.below(live.size());
        std::swap(live[victim], live.back());
        const Owned& owned = live.back();
        const int64_t seen = std::min<int64_t>(owned.bytes, 64 * kKiB);
        if (!witness.has_room(seen)) check();
        // Another stream may be the last to look at it.
        const auto reader = static_cast<int>(draws.below(DeviceStreams::kCount));
        if (reader != owned.stream) {
          streams.order(owned.stream, reader);
          allocator->record_use(owned.storage, streams.at(reader));
        }
        witness.take(*owned.storage, seen, owned.content, streams.at(reader));
        live.pop_back();
      };
      for (int operation = 0; operation < 4000; ++operation) {
        if (draws.unit() < 0.5 && !live.empty()) {
          free_one();
          continue;
        }
        const auto on = static_cast<int>(draws.below(DeviceStreams::kCount));
        const int64_t bytes = draws.size(4 * kMiB) + 1;
        const int content = operation % 251;
        try {
          live.push_back({allocator->allocate(bytes, 1, streams.at(on), Tag::data), bytes, content, on});
          gpu::fill(0, live.back().storage->data(), content, bytes, streams.at(on).native());
        } catch (const OutOfMemory&) {
          REQUIRE(!live.empty());
          free_one();
        }
        if (operation % 500 == 0) check();
      }
      while (!live.empty()) free_one();
      check();
      CHECK(allocator->stats().allocated.current == 0);
      allocator->release_cached();
      CHECK(source->mapped_bytes() == 0);
    }
  }
}

TEST_CASE("an allocator recovers after a device ran out of memory" * doctest::skip(cuda_devices().empty())) {
  for (const MakeSource make : kSources) {
    DeviceStreams streams;
    AllocatorOptions options;
    options.memory_limit = 32 * kMiB;
    const auto allocator = CachingAllocator::create(make(0), options);
    std::vector<StoragePtr> blocks;
    std::string text;
    try {
      for (int i = 0; i < 100; ++i) {
        blocks.push_back(allocator->allocate(3 * kMiB, 1, streams.at(0), Tag::activations, "activations"));
        gpu::fill(0, blocks.back()->data(), 1, 3 * kMiB, streams.at(0).native());
      }
    } catch (const OutOfMemory& error) {
      text = error.what();
    }
    CHECK(text.find("activations") != std::string::npos);
    CHECK(blocks.size() >= 8);
    const std::string wrong = test::recount(allocator->snapshot());
    CHECK_MESSAGE(wrong.empty(), wrong);
    blocks.clear();
    CHECK_NOTHROW(allocator->allocate(24 * kMiB, 1, streams.at(0), Tag::activations));
  }
}

}  // namespace
}  // namespace meshgrad
