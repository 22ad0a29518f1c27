// SPDX-License-Identifier: Apache-2.0
// Which free memory other streams may still be using. A reuse makes its stream wait on the device for what
// was recorded when the memory was freed; the host never asks whether it has passed, so that what is handed
// out does not depend on how fast the device was (the semantics asked for in PyTorch's RFC of
// Tensor.record_use).
#pragma once
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/memory/stats.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace meshgrad {

/// A point in a stream's queue that a source recorded; forgotten with the last copy.
class SourceEvent {
 public:
  /// After all that is queued on `stream` now.
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

/// Ranges of free memory with the events that a reuse waits for. Costs nothing while there is one stream.
class StreamFences {
 public:
  struct Fence {
    int64_t end = 0;
    Tag tag = Tag::host;  ///< of the block that was freed
    bool small = false;
    std::vector<SourceEventPtr> events;
  };

  /// [begin, end) was freed, and `events` are what reuse waits for.
  void add(int64_t begin, Fence fence) { fences_.emplace(begin, std::move(fence)); }
  /// Removes what lies in [begin, end), handing each piece to `visit(bytes, fence)`.
  void take(int64_t begin, int64_t end, const std::function<void(int64_t, const Fence&)>& visit);
  bool empty() const { return fences_.empty(); }
  const std::map<int64_t, Fence>& all() const { return fences_; }

 private:
  std::map<int64_t, Fence> fences_;  // by first address; they do not overlap
};

}  // namespace meshgrad
