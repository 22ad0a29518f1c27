// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_counted.h>
#include <meshgrad/train/tools/extras/replay/default_policy.h>

namespace meshgrad {
namespace {

class DefaultPolicy : public ReplayedAllocator {
 public:
  DefaultPolicy(const MemoryTrace& trace, int64_t capacity)
      : names_(trace.names),
        source_(std::make_shared<SimulatedMemorySource>(capacity)),
        allocator_(CachingAllocator::create(source_)) {
    for (int id = 0; id < trace.streams; ++id) streams_.emplace_back(source_->device(), id);
  }

  void* allocate(const MemoryTrace::Event& request) override {
    constexpr int64_t kAlignment = 64;  // that of tensors
    try {
      return allocator_->allocate_raw(request.bytes, kAlignment, streams_[request.stream], request.tag,
                                      names_[request.name]);
    } catch (const OutOfMemory&) {
      return nullptr;
    }
  }
  void free(void* block) override { allocator_->free_raw(block); }
  int64_t reserved() const override { return source_->mapped_bytes(); }
  int64_t driver_calls() const override {
    const SimulatedMemorySource::Calls& calls = source_->calls();
    return calls.reserve + calls.map + calls.unmap + calls.release;
  }
  int64_t flushes() const override { return allocator_->stats().flushes; }
  FreeMemory free_memory() const override {
    const MemoryStats stats = allocator_->stats();
    return {stats.free_bytes(), stats.largest_free};
  }

 private:
  const std::vector<std::string>& names_;
  std::shared_ptr<SimulatedMemorySource> source_;
  std::shared_ptr<CachingAllocator> allocator_;
  std::vector<Stream> streams_;
};

}  // namespace

std::unique_ptr<ReplayedAllocator> make_default_allocator(const MemoryTrace& trace, int64_t capacity) {
  return std::make_unique<DefaultPolicy>(trace, capacity);
}

}  // namespace meshgrad
