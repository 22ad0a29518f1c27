// SPDX-License-Identifier: Apache-2.0
// Replays a trace through an allocation policy and measures reserved memory, driver calls and time.
#pragma once
#include <meshgrad/train/tools/extras/replay/replayed_allocator.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace meshgrad {

struct ReplayPolicy {
  std::string_view name;
  std::string_view summary;
  /// A new allocator for one pass of the trace, which must outlive it.
  std::unique_ptr<ReplayedAllocator> (*make)(const MemoryTrace& trace, int64_t capacity);
};

/// `default`, the engine's own allocator, first; then the simulated ones that it is compared with.
std::span<const ReplayPolicy> replay_policies();
/// Throws InvalidArgument for an unknown name.
const ReplayPolicy& find_replay_policy(std::string_view name);

/// One pass.
struct ReplayRun {
  bool completes = true;  ///< false: the run ended where memory ran out
  int64_t peak_reserved = 0;
  int64_t driver_calls = 0;
  int64_t flushes = 0;
  double fragmentation_at_peak =
      0;  ///< 1 - largest / all free bytes when reserved memory peaked; 0: none free
};
ReplayRun run_trace(const MemoryTrace& trace, const ReplayPolicy& policy, int64_t capacity);

struct ReplayReport {
  std::string_view policy;
  int64_t peak_requested = 0;
  ReplayRun unlimited;
  int64_t min_capacity = 0;  ///< the smallest that completes, to within 64 KiB
  ReplayRun tight;           ///< at 1.05 times peak_requested
  double ns_per_operation = 0;
  std::optional<ReplayRun> at_capacity;

  double ratio() const { return over_requested(unlimited.peak_reserved); }
  double min_capacity_ratio() const { return over_requested(min_capacity); }

 private:
  double over_requested(int64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(peak_requested);
  }
};

/// Many passes. The smallest capacity is searched upwards by doubled steps, then by bisection. The search
/// assumes that a trace which completes also completes with more memory, which no policy guarantees. The time
/// per operation is the median of whole passes without a limit, growth included. Throws DataError when 1 PiB
/// is not enough.
ReplayReport replay_trace(const MemoryTrace& trace, const ReplayPolicy& policy,
                          std::optional<int64_t> capacity = {});

}  // namespace meshgrad
