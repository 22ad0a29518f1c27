// SPDX-License-Identifier: Apache-2.0
// Other allocators' policies on simulated memory: the baselines of a replay. They follow the documented
// behaviour, not the sources: times, locks, events and the waits between streams are not simulated.
#pragma once
#include <meshgrad/train/tools/extras/replay/replayed_allocator.h>

#include <memory>

namespace meshgrad {

/// Capacity of a run in which memory never runs out.
inline constexpr int64_t kUnlimited = int64_t{1} << 50;

/// PyTorch without expandable segments: cudaMalloc'ed segments of 2 MiB for blocks of up to 1 MiB, of 20 MiB
/// for those of up to 10 MiB, else of the size rounded up to 2 MiB; best fit, and unused segments are
/// released when memory runs out.
std::unique_ptr<ReplayedAllocator> simulate_pytorch_native(int64_t capacity);

/// PyTorch with expandable segments: per stream one for blocks of up to 1 MiB, mapped in pages of 2 MiB, and
/// one for larger blocks, mapped in pages of 20 MiB; best fit.
std::unique_ptr<ReplayedAllocator> simulate_pytorch_expandable(int64_t capacity);

/// RMM's pool, 256 MiB at first: coalescing best fit over segments. A new segment is as large as all before
/// it together, halved until it fits, and is never released. All streams share the free blocks.
std::unique_ptr<ReplayedAllocator> simulate_rmm_pool(int64_t capacity);

/// One range of addresses per stream, mapped in pages of 2 MiB. One call maps or unmaps any run of pages. No
/// driver is that flexible, so these are bounds for real allocators.
std::unique_ptr<ReplayedAllocator> simulate_first_fit(int64_t capacity);
std::unique_ptr<ReplayedAllocator> simulate_best_fit(int64_t capacity);
/// First fit with a separate range for blocks of up to 256 KiB.
std::unique_ptr<ReplayedAllocator> simulate_first_fit_256k(int64_t capacity);

}  // namespace meshgrad
