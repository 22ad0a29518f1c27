// SPDX-License-Identifier: Apache-2.0
// Steps that follow a StepPlan. A planned place is a wish: the block is taken there when that is free, so
// that whatever the step does differently costs memory, never correctness.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

namespace meshgrad {

void CachingAllocator::begin_step(StepPlan& plan, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  check_internal(step_ == nullptr, "one planned step at a time");
  Heap& heap = heap_of(stream);
  step_ = make_recycled<Step>(recycling_, Step{plan, heap, ++steps_});
  if (!plan.ready()) return plan.start();
  if (plan.bytes() == 0 || plan.bytes() > limit_) return;
  // The region is found as one block, and free again at once: the step's blocks are taken out of it.
  const Request request{.stream = &stream,
                        .home = &heap,
                        .requested = plan.bytes(),
                        .bytes = plan.bytes(),
                        .alignment = BlockHeap::kRounding};
  const Found found = find(heap, request);
  if (found.block == nullptr) return;
  if (found.heap == &heap) step_->base = found.block->address;
  found.heap->blocks.give_back(found.block);
  count_free(*found.heap);
}

void CachingAllocator::end_step(bool complete) {
  const std::lock_guard lock(mutex_);
  check_internal(step_ != nullptr, "a planned step that has begun");
  StepPlan& plan = step_->plan;
  step_.reset();
  if (plan.ready()) return;
  if (!complete) return plan.start();
  plan.finish();
  release_unused([] { return false; });
}

void CachingAllocator::Step::place(Request& request) {
  if (!plan.ready()) {
    request.entry = plan.allocated(request.bytes);
    return;
  }
  if (base < 0) return;
  const bool expected = next < plan.entries().size() && plan.entries()[next].bytes == request.bytes;
  if (!expected) {
    base = -1;
    return;
  }
  const StepPlan::Entry& entry = plan.entries()[next++];
  if (entry.dies >= 0) request.address = base + entry.offset;
}

}  // namespace meshgrad
