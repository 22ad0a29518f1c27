// SPDX-License-Identifier: Apache-2.0
// Free memory that other streams may still be using. Reuse makes its stream wait, on the device, for events
// recorded when the memory was freed. The host never queries an event, so that addresses do not depend on the
// device's speed (the semantics asked for in PyTorch's RFC of Tensor.record_use).
#pragma once
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/memory/tag.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace meshgrad {

/// An event of a MemorySource, released with its last owner.
class SourceEvent {
 public:
  /// Records an event after everything that is queued on `stream` now.
  SourceEvent(MemorySource& source, const Stream& stream)
      : source_(source), stream_(stream.id()), id_(source.record(stream)) {}
  ~SourceEvent() {
    if (id_ != 0) source_.forget(id_);
  }
  SourceEvent(const SourceEvent&) = delete;
  SourceEvent& operator=(const SourceEvent&) = delete;
  int stream() const { return stream_; }
  uint64_t id() const { return id_; }

 private:
  MemorySource& source_;
  int stream_;
  uint64_t id_;
};
using SourceEventPtr = std::shared_ptr<const SourceEvent>;

/// Ranges of free memory with the events that reuse must wait for. Empty, and free of cost, with one stream.
class StreamFences {
 public:
  struct Fence {
    int64_t end = 0;      ///< one past the last address
    Tag tag = Tag::host;  ///< of the freed block
    bool small = false;
    std::vector<SourceEventPtr> events;
  };

  /// The range [begin, fence.end) was freed.
  void add(int64_t begin, Fence fence) { fences_.emplace(begin, std::move(fence)); }
  /// Removes fences from [begin, end) and calls `visit(bytes, fence)` for each removed piece.
  void remove(int64_t begin, int64_t end, const std::function<void(int64_t, const Fence&)>& visit);
  bool empty() const { return fences_.empty(); }
  const std::map<int64_t, Fence>& all() const { return fences_; }

 private:
  std::map<int64_t, Fence> fences_;  // by first address; they do not overlap
};

}  // namespace meshgrad
