// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/stream_fences.h>

#include <algorithm>

namespace meshgrad {

void StreamFences::remove(int64_t begin, int64_t end,
                          const std::function<void(int64_t, const Fence&)>& visit) {
  auto at = fences_.lower_bound(begin);
  if (at != fences_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != fences_.end() && at->first < end) {
    const int64_t first = at->first;
    const Fence fence = std::move(at->second);
    at = fences_.erase(at);
    visit(std::min(fence.end, end) - std::max(first, begin), fence);
    if (first < begin) fences_.emplace(first, Fence{begin, fence.tag, fence.small, fence.events});
    if (fence.end > end) fences_.emplace(end, fence);
  }
}

}  // namespace meshgrad
