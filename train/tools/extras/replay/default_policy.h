// SPDX-License-Identifier: Apache-2.0
// The engine's own allocator, over a memory source that only counts.
#pragma once
#include <meshgrad/train/tools/extras/replay/replayed_allocator.h>

#include <memory>

namespace meshgrad {

/// `trace` provides the streams and names, and must outlive the result.
std::unique_ptr<ReplayedAllocator> make_default_allocator(const MemoryTrace& trace, int64_t capacity);

}  // namespace meshgrad
