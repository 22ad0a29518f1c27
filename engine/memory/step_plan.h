// SPDX-License-Identifier: Apache-2.0
// Places for the allocations of a step that is the same every time. The first time it is recorded what is
// allocated and for how long; then every block gets an offset in one region, so that blocks which live at the
// same time lie apart and the region is little larger than the most that lives at once.
//
// That is dynamic storage allocation with all lifetimes known (NP-hard). Method: first fit, large blocks
// first; then again and again with those blocks earlier that stuck out ("squeaky wheel" optimization, Joslin
// and Clements, 1999).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshgrad {

class StepPlan {
 public:
  struct Entry {
    int64_t bytes = 0;   ///< as the allocator rounds them
    int64_t born = 0;    ///< when, in allocations and frees of the step
    int64_t dies = -1;   ///< -1: it outlives the step, and has no place here
    int64_t offset = 0;  ///< in the region
  };

  /// Offsets are there: the step was recorded.
  bool ready() const { return ready_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// Of the region.
  int64_t bytes() const { return bytes_; }
  /// The most that lives at once: no region is smaller.
  int64_t peak() const { return peak_; }

  // For the allocator while the step is recorded:
  void start() { *this = StepPlan(); }
  /// Returns the entry's number, for freed().
  int64_t allocated(int64_t bytes);
  void freed(int64_t entry) { entries_[static_cast<size_t>(entry)].dies = clock_++; }
  /// The step ended: computes the offsets.
  void finish();

 private:
  std::vector<Entry> entries_;
  int64_t clock_ = 0;
  int64_t bytes_ = 0;
  int64_t peak_ = 0;
  bool ready_ = false;
};

}  // namespace meshgrad
