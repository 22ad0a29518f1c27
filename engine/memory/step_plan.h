// SPDX-License-Identifier: Apache-2.0
// StepPlan: precomputed offsets for the allocations of a repeated step. The first run records sizes and
// lifetimes; then every block gets an offset in one region, so that blocks that live at the same time do not
// overlap and the region is little larger than the peak.
//
// This is dynamic storage allocation with known lifetimes (NP-hard). Method: first fit, large blocks first;
// then repeated with the blocks that stuck out moved forward in the order ("squeaky wheel" optimization,
// Joslin and Clements, 1999).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshgrad {

/// Not thread-safe; CachingAllocator uses it under its lock. See PlannedStep for use.
class StepPlan {
 public:
  struct Entry {
    int64_t bytes = 0;   ///< rounded size
    int64_t born = 0;    ///< when it was allocated, counted in allocations and frees of the step
    int64_t dies = -1;   ///< when it was freed; -1: it outlives the step and gets no offset
    int64_t offset = 0;  ///< bytes from the region's start
  };

  /// True when the step was recorded and offsets are computed.
  bool ready() const { return ready_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// Size of the region.
  int64_t bytes() const { return bytes_; }
  /// The most bytes alive at once, a lower bound of bytes().
  int64_t peak() const { return peak_; }

  // For the allocator while it records the step:
  void start() { *this = StepPlan(); }
  /// Returns the entry's index, for freed().
  int64_t allocated(int64_t bytes);
  void freed(int64_t entry) { entries_[static_cast<size_t>(entry)].dies = clock_++; }
  /// The step has ended: computes the offsets.
  void finish();

 private:
  std::vector<Entry> entries_;
  int64_t clock_ = 0;
  int64_t bytes_ = 0;
  int64_t peak_ = 0;
  bool ready_ = false;
};

}  // namespace meshgrad
