// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/detail/block_heap.h>

#include <algorithm>

namespace meshgrad {
namespace {

// `alignment` is a power of two.
constexpr int64_t align_down(int64_t address, int64_t alignment) { return address & ~(alignment - 1); }
constexpr int64_t align_up(int64_t address, int64_t alignment) {
  return align_down(address + alignment - 1, alignment);
}

/// Size that suffices at any address: free blocks start at multiples of kRounding, and stricter alignment may
/// skip bytes.
int64_t worst_case(int64_t bytes, int64_t alignment) {
  return bytes + std::max<int64_t>(alignment - BlockHeap::kRounding, 0);
}

bool is(const Block* block, Block::State state) { return block != nullptr && block->state == state; }

/// Whether a free block fills its run of adjacent mappings.
bool is_whole_run(const Block& block) {
  return (block.previous == nullptr || block.previous->state == Block::State::hole) &&
         (block.next == nullptr || block.next->state == Block::State::hole);
}

}  // namespace

Block* BlockHeap::make(int64_t address, int64_t bytes, Block* previous, Block* next) {
  if (unused_nodes_ == nullptr) {
    constexpr int kNodes = 256;
    node_chunks_.push_back(std::make_unique<Block[]>(kNodes));
    for (int i = 0; i < kNodes; ++i) {
      node_chunks_.back()[i].next = unused_nodes_;
      unused_nodes_ = &node_chunks_.back()[i];
    }
  }
  Block* const block = unused_nodes_;
  unused_nodes_ = block->next;
  const Block* const neighbour = previous != nullptr ? previous : next;
  block->range = neighbour != nullptr ? neighbour->range : 0;
  block->address = address;
  block->bytes = bytes;
  block->state = Block::State::hole;
  block->slab = Block::kNoSlab;
  block->owner = nullptr;
  block->indexed_ = false;
  block->previous = previous;
  block->next = next;
  if (previous != nullptr) previous->next = block;
  if (next != nullptr) next->previous = block;
  return block;
}

void BlockHeap::destroy(Block* block) {
  if (block->previous != nullptr) block->previous->next = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  block->next = unused_nodes_;
  unused_nodes_ = block;
}

void BlockHeap::add_range(int64_t address, int64_t bytes) {
  Block* const block = make(address, bytes, nullptr, nullptr);
  block->range = ranges_so_far_++;
  ranges_[address] = block;
  index_hole(block);
}

void BlockHeap::remove_range(int64_t address) {
  const auto range = ranges_.find(address);
  check_internal(
      range != ranges_.end() && range->second->state == Block::State::hole && range->second->next == nullptr,
      "a range with mapped memory was removed");
  unindex_hole(range->second);
  destroy(range->second);
  ranges_.erase(range);
}

/// The number of the range that an address lies in; 0 when there is none below it.
int64_t BlockHeap::range_around(int64_t address) const {
  const auto above = ranges_.upper_bound(address);
  return above == ranges_.begin() ? 0 : std::prev(above)->second->range;
}

/// Updates block->mapping_ after the block's first byte moved up, usually within the same mapping.
void BlockHeap::find_mapping(Block* block) {
  const Mapping& mapping = block->mapping_->second;
  if (mapping.address + mapping.bytes <= block->address)
    block->mapping_ = std::prev(mappings_.upper_bound(block->address));
}

/// Splits an unindexed block at `bytes` and returns the second part.
Block* BlockHeap::split(Block* block, int64_t bytes) {
  Block* const rest = make(block->address + bytes, block->bytes - bytes, block, block->next);
  rest->state = block->state;
  rest->slab = block->slab;
  block->bytes = bytes;
  if (block->state != Block::State::hole) {
    rest->mapping_ = block->mapping_;
    find_mapping(rest);
  }
  return rest;
}

/// Splits `bytes` off the front of a block, which stays in the index, and returns the front.
Block* BlockHeap::split_front(Block* block, int64_t bytes) {
  Block* const front = make(block->address, bytes, block->previous, block);
  front->slab = block->slab;
  front->mapping_ = block->mapping_;
  block->address += bytes;
  block->bytes -= bytes;
  find_mapping(block);
  if (front->previous == nullptr) ranges_[front->address] = front;
  return front;
}

/// Merges an unindexed block with the next one, which is destroyed.
void BlockHeap::merge_next(Block* block) {
  block->bytes += block->next->bytes;
  destroy(block->next);
}

/// Merges an unindexed block with the previous one, which is destroyed.
void BlockHeap::merge_previous(Block* block) {
  Block* const front = block->previous;
  block->address = front->address;
  block->bytes += front->bytes;
  block->mapping_ = front->mapping_;
  destroy(front);
  if (block->previous == nullptr) ranges_[block->address] = block;
}

void BlockHeap::index_hole(Block* hole) {
  hole->weight = hole->bytes;
  if (is(hole->previous, Block::State::free) && hole->previous->slab == Block::kNoSlab)
    hole->weight += hole->previous->bytes;
  if (hole->next != nullptr) ++inner_holes_;
  holes_.insert(hole);
}

void BlockHeap::unindex_hole(Block* hole) {
  if (hole->next != nullptr) --inner_holes_;
  holes_.erase(hole);
}

void BlockHeap::update_hole_after(Block* block) {
  Block* const hole = block->next;
  if (!is(hole, Block::State::hole)) return;
  const bool counts = block->state == Block::State::free && block->slab == Block::kNoSlab;
  hole->weight = hole->bytes + (counts ? block->bytes : 0);
  holes_.reweigh(hole);
}

/// Adds a free block to the totals (sign +1) or subtracts it (-1), with the neighbours that it has now.
void BlockHeap::count_free(const Block& block, int64_t sign) {
  const int64_t bytes = sign * block.bytes;
  free_bytes_.total += bytes;
  if (!is_whole_run(block)) free_bytes_.split += bytes;
  if (block.slab != Block::kNoSlab) free_bytes_.slab += bytes;
}

void BlockHeap::index_free(Block* block) {
  block->state = Block::State::free;
  block->weight = block->bytes;
  count_free(*block, +1);
  if (block->indexed_) {
    index_of(*block).reweigh(block);
  } else {
    index_of(*block).insert(block);
    block->indexed_ = true;
  }
  update_hole_after(block);
}

void BlockHeap::unindex_free(Block* block) {
  count_free(*block, -1);
  unindex(block);
}

void BlockHeap::unindex(Block* block) {
  if (block->indexed_) index_of(*block).erase(block);
  block->indexed_ = false;
}

/// Updates index and totals after an indexed block changed its size; it was subtracted from the totals
/// before.
void BlockHeap::resized(Block* block) {
  block->weight = block->bytes;
  count_free(*block, +1);
  index_of(*block).reweigh(block);
  update_hole_after(block);
}

/// Adds a used block to the used and pinned bytes of its mappings, or subtracts it.
void BlockHeap::count_used(const Block& block, int64_t sign) {
  const auto pinned = [](const Mapping& mapping) {
    return mapping.used > 0 ? mapping.bytes - mapping.used : 0;
  };
  for (auto at = block.mapping_;; ++at) {
    Mapping& mapping = at->second;
    const int64_t end = mapping.address + mapping.bytes;
    free_bytes_.pinned -= pinned(mapping);
    mapping.used += sign * (std::min(end, block.end()) - std::max(mapping.address, block.address));
    free_bytes_.pinned += pinned(mapping);
    if (block.end() <= end) return;
  }
}

Block* BlockHeap::find_free(int64_t bytes, int64_t alignment, Placement placement) const {
  const int64_t worst = worst_case(bytes, alignment);
  const BlockIndex& index = placement == Placement::slab ? small_ : blocks_;
  return static_cast<Block*>(placement == Placement::high ? index.highest(worst) : index.lowest(worst));
}

/// Turns part of a free block into a used block; the rest stays free.
Block* BlockHeap::carve(Block* block, int64_t address, int64_t bytes) {
  const int64_t head = address - block->address, tail = block->end() - address - bytes;
  if (head == 0 && tail == 0) {
    // It stays in the index, with weight 0: when it is freed, usually nothing else has changed there.
    count_free(*block, -1);
    block->weight = 0;
    index_of(*block).reweigh(block);
    block->state = Block::State::used;
    count_used(*block, +1);
    update_hole_after(block);
    return block;
  }
  count_free(*block, -1);
  Block* const used = head > 0 ? split(block, head) : split_front(block, bytes);
  Block* const rest = head > 0 && tail > 0 ? split(used, bytes) : nullptr;
  used->state = Block::State::used;
  count_used(*used, +1);
  resized(block);
  if (rest != nullptr) index_free(rest);
  if (tail == 0) update_hole_after(used);
  return used;
}

/// Turns free memory into an empty slab; nullptr when there is none.
Block* BlockHeap::make_slab() {
  Block* block = static_cast<Block*>(blocks_.lowest(kSlab));
  if (block == nullptr) return nullptr;
  unindex_free(block);
  Block* const rest = block->bytes > kSlab ? split(block, kSlab) : nullptr;
  block->slab = block->address;
  slabs_ += kSlab;
  index_free(block);
  if (rest != nullptr) index_free(rest);
  return block;
}

Block* BlockHeap::allocate(int64_t bytes, int64_t alignment, Placement placement) {
  Block* block = find_free(bytes, alignment, placement);
  if (block == nullptr && placement == Placement::slab && worst_case(bytes, alignment) <= kSlab)
    block = make_slab();
  if (block == nullptr) return nullptr;
  return carve(block,
               placement == Placement::high ? align_down(block->end() - bytes, alignment)
                                            : align_up(block->address, alignment),
               bytes);
}

Block* BlockHeap::allocate_at(int64_t address, int64_t bytes) {
  auto* const block = static_cast<Block*>(blocks_.at_or_below(address, range_around(address)));
  const bool fits =
      is(block, Block::State::free) && block->address <= address && address + bytes <= block->end();
  return fits ? carve(block, address, bytes) : nullptr;
}

Block* BlockHeap::split_used(Block* block, int64_t bytes) {
  unindex(block);
  Block* const rest = split(block, bytes);
  rest->owner = nullptr;
  return rest;
}

/// Makes an unindexed block free and merges it with free neighbours. The block keeps its state until these
/// are subtracted from the totals, because the totals depend on neighbours' states.
void BlockHeap::merge_free(Block* block) {
  const auto joins = [&](const Block* other) {
    return is(other, Block::State::free) && other->slab == block->slab;
  };
  Block* const next = joins(block->next) ? block->next : nullptr;
  Block* const previous = joins(block->previous) ? block->previous : nullptr;
  Block* whole = block;
  if (previous != nullptr) {
    whole = previous;
    count_free(*previous, -1);
    if (next != nullptr) unindex_free(next);
    unindex(block);
    merge_next(previous);
    if (next != nullptr) merge_next(previous);
    resized(previous);
  } else if (next != nullptr) {
    whole = next;
    count_free(*next, -1);
    unindex(block);
    merge_previous(next);
    resized(next);
  } else {
    index_free(block);
  }
  if (whole->slab == Block::kNoSlab || whole->bytes < kSlab) return;
  unindex_free(whole);
  whole->slab = Block::kNoSlab;
  slabs_ -= kSlab;
  merge_free(whole);
}

void BlockHeap::free(Block* block) {
  count_used(*block, -1);
  block->owner = nullptr;
  merge_free(block);
}

Growth BlockHeap::plan_growth(int64_t bytes, int64_t alignment, Placement placement,
                              int64_t granularity) const {
  const int64_t worst = placement == Placement::slab ? kSlab : worst_case(bytes, alignment);
  // A hole's weight includes the free block below it, so the hole itself may be smaller than `worst`.
  const auto* hole = static_cast<const Block*>(holes_.lowest(worst));
  if (hole == nullptr) return {};
  const int64_t below = hole->weight - hole->bytes;
  return {hole->address, round_up(std::max<int64_t>(worst - below, 1), granularity)};
}

void BlockHeap::map(int64_t address, int64_t bytes) {
  auto* hole = static_cast<Block*>(holes_.at_or_below(address, range_around(address)));
  check_internal(hole != nullptr && hole->address <= address && address + bytes <= hole->end(),
                 "mapped memory was mapped again");
  unindex_hole(hole);
  if (hole->address < address) {
    Block* const below = hole;
    hole = split(hole, address - hole->address);
    index_hole(below);
  }
  if (hole->bytes > bytes) index_hole(split(hole, bytes));
  hole->mapping_ = mappings_.insert({address, Mapping{address, bytes, 0}}).first;
  mapped_ += bytes;
  merge_free(hole);
}

void BlockHeap::unmap(int64_t address) {
  const auto mapping = mappings_.find(address);
  check_internal(mapping != mappings_.end() && mapping->second.used == 0, "memory in use was unmapped");
  const int64_t bytes = mapping->second.bytes;
  auto* block = static_cast<Block*>(blocks_.at_or_below(address, range_around(address)));
  unindex_free(block);
  Block* const below = block->address < address ? block : nullptr;
  if (below != nullptr) block = split(block, address - block->address);
  Block* const above = block->bytes > bytes ? split(block, bytes) : nullptr;
  block->state = Block::State::hole;
  mappings_.erase(mapping);
  mapped_ -= bytes;
  if (is(block->next, Block::State::hole)) {
    unindex_hole(block->next);
    merge_next(block);
  }
  if (is(block->previous, Block::State::hole)) {
    block = block->previous;
    unindex_hole(block);
    merge_next(block);
  }
  index_hole(block);
  if (below != nullptr) index_free(below);
  if (above != nullptr) index_free(above);
}

std::vector<Mapping> BlockHeap::unused_mappings() const {
  // A slab may lie across two mappings and be used in only one of them; it must not be split.
  const auto covered = [&](const Mapping& mapping) {
    const int64_t range = range_around(mapping.address);
    const auto* block = static_cast<const Block*>(blocks_.at_or_below(mapping.address, range));
    return block != nullptr && block->range == range && mapping.address + mapping.bytes <= block->end();
  };
  std::vector<Mapping> unused;
  for (const auto& [address, mapping] : mappings_)
    if (mapping.used == 0 && covered(mapping)) unused.push_back(mapping);
  return unused;
}

std::vector<const Block*> BlockHeap::ranges() const {
  std::vector<const Block*> blocks;
  for (const auto& [address, block] : ranges_) blocks.push_back(block);
  return blocks;
}

int64_t BlockHeap::largest_free() const { return std::max(blocks_.heaviest(), small_.heaviest()); }

}  // namespace meshgrad
