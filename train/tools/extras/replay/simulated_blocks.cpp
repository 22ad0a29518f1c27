// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/extras/replay/simulated_blocks.h>

#include <limits>

namespace meshgrad {

SimulatedBlock* SimulatedBlocks::make(int64_t address, int64_t bytes, int pool) {
  if (spare_ == nullptr) spare_ = &store_.emplace_back();
  SimulatedBlock* const block = spare_;
  spare_ = block->next;
  block->address = address;
  block->bytes = bytes;
  block->pool = pool;
  block->previous = block->next = nullptr;
  return block;
}

void SimulatedBlocks::remove(SimulatedBlock* block) {
  block->next = spare_;
  spare_ = block;
}

SimulatedBlock* SimulatedBlocks::split(SimulatedBlock* block, int64_t bytes) {
  SimulatedBlock* const rest = make(block->address + bytes, block->bytes - bytes, block->pool);
  rest->state = block->state;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  return rest;
}

void SimulatedBlocks::merge_next(SimulatedBlock* block) {
  SimulatedBlock* const next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next != nullptr) block->next->previous = block;
  remove(next);
}

void FreeBlocks::insert(SimulatedBlock* block, int64_t weight) {
  block->state = SimulatedBlock::State::free;
  block->weight = weight;
  if (fit_ == Fit::best) {
    by_size_.insert(block);
  } else {
    by_address_.insert(block);
  }
}

void FreeBlocks::erase(SimulatedBlock* block) {
  if (fit_ == Fit::best) {
    by_size_.erase(block);
  } else {
    by_address_.erase(block);
  }
}

SimulatedBlock* FreeBlocks::find(int64_t bytes) const {
  if (fit_ == Fit::first) return static_cast<SimulatedBlock*>(by_address_.lowest(bytes));
  for (auto block = by_size_.lower_bound(bytes); block != by_size_.end(); ++block) {
    if ((*block)->bytes >= bytes) return *block;  // its weight exceeds its bytes when it could grow
  }
  return nullptr;
}

std::vector<SimulatedBlock*> FreeBlocks::all() const {
  if (fit_ == Fit::best) return {by_size_.begin(), by_size_.end()};
  std::vector<SimulatedBlock*> blocks;
  BlockIndex::Node* node = by_address_.at_or_below(std::numeric_limits<int64_t>::max());
  for (; node != nullptr; node = by_address_.at_or_below(node->address - 1)) {
    blocks.push_back(static_cast<SimulatedBlock*>(node));
  }
  return blocks;
}

}  // namespace meshgrad
