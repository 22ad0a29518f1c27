// SPDX-License-Identifier: Apache-2.0
// Says where in its heap a block should go, by foretelling how long it will live. Training repeats itself:
// steps on meshes of other sizes allocate other bytes, but in the same order, and free after as many
// allocations. So the policy keeps a log of the last allocations and, as a Lempel-Ziv matcher does (Ziv and
// Lempel 1977), follows the place in it where the same things happened before; what became of the block
// there, scaled by how much larger blocks are now, is the forecast. Its unit is bytes allocated until the
// block is freed: that is what has to fit around the block meanwhile. That forecasts of lifetimes from the
// past keep heaps compact was shown by Barrett and Zorn (1993) for programs and by Maas et al. (2020) for
// servers.
#pragma once
#include <meshgrad/engine/memory/detail/block_heap.h>

#include <vector>

namespace meshgrad {

/// One heap's. Deterministic; its memory is bounded, and taken at the first call.
class PlacementPolicy {
 public:
  /// What the policy keeps with a live block.
  struct Ticket {
    uint64_t number = 0;
    int64_t born = 0;
    bool brief = false;  ///< large, and should soon be gone
  };

  /// To be called for each allocation, in order: `bytes` (rounded) are asked for; `owner` is a hash of tag
  /// and name, 0 when nothing is known.
  Placement place(int64_t bytes, uint64_t owner, Ticket& ticket);
  /// To be called after place(), when there was room for the block.
  void taken(int64_t bytes, const Ticket& ticket);
  /// To be called for each block that was taken, when it is given back.
  void freed(int64_t bytes, const Ticket& ticket);

 private:
  /// An allocation, and its block's life in bytes allocated until it was freed; unknown while it lives.
  struct Birth {
    uint32_t context = 0;
    float bytes = 0;
    float life = 0;
    float foretold = 0;
  };
  Birth& birth(uint64_t number);
  bool in_log(uint64_t number) const;
  const Birth* precedent(uint32_t context);
  float foretell(int64_t bytes, uint64_t owner);

  std::vector<Birth> log_;      // a ring
  std::vector<uint64_t> last_;  // by a hash of the last contexts: the birth that came with them most recently
  uint64_t births_ = 1;         // number of the next one; 0 is no birth
  uint64_t followed_ = 0;       // the birth that resembles the latest one
  uint64_t contexts_ = 0;       // the last eight, a byte each
  uint64_t frees_ = 0;          // hash of the ages of what was freed since the latest birth
  int trust_ = 0;               // how many forecasts came true lately, less those that did not
  int strikes_ = 0;             // how often births differed lately from those followed
  int64_t previous_bytes_ = 0;
  float size_now_ = 1, size_then_ = 1;  // running means of the latest blocks and of those followed
  int64_t clock_ = 0;                   // bytes ever allocated
  int64_t live_ = 0;
  int64_t small_ = 0;                           // of the live bytes, those in small blocks
  int64_t recent_peak_ = 0, earlier_peak_ = 0;  // of live_, since window_ and in as many births before
  float recent_bytes_ = 0, brief_bytes_ = 0;  // allocated lately, and of these what was foretold to be brief
  uint64_t window_ = 0;
};

}  // namespace meshgrad
