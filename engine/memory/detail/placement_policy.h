// SPDX-License-Identifier: Apache-2.0
// Chooses where in its heap a block goes, by predicting its lifetime.
//
// What it gains: on 17 recorded training runs the heap reserves on average 3.1 % more than the peak request,
// with first fit alone 6.3 %; on the 6 of them that were not used to choose its constants 4.0 % against 7.3 %
// (docs/allocator.md, `meshgrad memory replay`). It gains where large short-lived blocks are a fifth or more
// of all bytes: recomputation, accumulation, op-by-op models. Otherwise, as in plain training with fused
// kernels, it does what first fit does.
//
// Method: training repeats itself. Steps on other meshes allocate other sizes, but in the same order, and
// free after the same number of allocations. So the policy keeps a log of recent allocations and, like a
// Lempel-Ziv matcher (Ziv and Lempel 1977), follows the position in it where the same sequence occurred
// before. The lifetime of the block there, scaled by the ratio of sizes, is the prediction. Its unit is bytes
// allocated between allocation and free: what must fit around the block meanwhile. That predicted lifetimes
// keep heaps compact was shown by Barrett and Zorn (1993) for programs and by Maas et al. (2020) for servers.
#pragma once
#include <meshgrad/engine/memory/detail/block_heap.h>

#include <vector>

namespace meshgrad {

/// For one heap. Deterministic. Uses 640 KiB, allocated at the first call.
class PlacementPolicy {
 public:
  /// The policy's data about a live block; the caller stores it.
  struct Ticket {
    uint64_t number = 0;       // of the allocation
    int64_t clock = 0;         // bytes allocated before it is freed are counted from here
    bool short_lived = false;  // large, and predicted to be freed soon
  };

  /// Call for each allocation, in order. `bytes` is the rounded size; `owner` a hash of tag and name, 0 if
  /// unknown.
  Placement place(int64_t bytes, uint64_t owner, Ticket& ticket);
  /// Call after place() when the block was allocated.
  void allocated(int64_t bytes, const Ticket& ticket);
  /// Call when an allocated block is freed.
  void freed(int64_t bytes, const Ticket& ticket);

 private:
  struct Entry {
    uint32_t context = 0;  // hash of what happened just before
    float bytes = 0;       // size
    float life = 0;        // bytes allocated until it was freed; infinite while it lives
    float predicted = 0;   // as `life`; infinite without a match
  };
  Entry& entry(uint64_t number);
  bool in_log(uint64_t number) const;
  const Entry* find_match(uint32_t context);
  float predict(int64_t bytes, uint64_t owner);

  std::vector<Entry> log_;      // ring buffer, by number
  std::vector<uint64_t> last_;  // by hash of the last eight contexts: the latest entry that followed them
  uint64_t next_ = 1;           // number of the next entry; 0 is none
  uint64_t match_ = 0;          // history position that matches the latest entry
  int mismatches_ = 0;          // recent entries that differed from the matched history
  uint64_t contexts_ = 0;       // the last eight, one byte each
  uint64_t frees_ = 0;          // hash of the ages of blocks freed since the latest entry
  int64_t previous_bytes_ = 0;  // size of the latest entry
  float size_now_ = 1, size_then_ = 1;  // running means of sizes, of recent entries and of their matches
  int confidence_ = 0;                  // recent correct predictions, less kPenalty for each wrong one
  int64_t clock_ = 0;                   // bytes allocated so far
  int64_t live_ = 0;                    // bytes in live blocks
  int64_t small_ = 0;                   // of them, in small blocks
  int64_t recent_peak_ = 0, earlier_peak_ = 0;  // of live_, in the current and the previous kLogSize entries
  uint64_t window_ = 0;                         // first entry of the current ones
  float recent_bytes_ = 0;                      // bytes allocated lately
  float short_lived_bytes_ = 0;                 // of them, predicted to be short-lived
};

}  // namespace meshgrad
