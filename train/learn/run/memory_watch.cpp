// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/memory_watch.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

constexpr double kGrowth = 0.05;  // of waste, that raises an alarm

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

MemoryWatch::Epoch MemoryWatch::end_epoch(int64_t number, const MemoryStats& stats) {
  Epoch epoch;
  if (stats.reserved.peak > 0)
    epoch.waste = 1.0 - static_cast<double>(stats.allocated.peak) / static_cast<double>(stats.reserved.peak);
  const int64_t headroom = stats.capacity - stats.reserved.peak;
  epoch.row = {{"epoch", number},
               {"memory_allocated_bytes", stats.allocated.current},
               {"memory_reserved_bytes", stats.reserved.current},
               {"memory_peak_bytes", stats.allocated.peak},
               {"memory_headroom_bytes", headroom},
               {"memory_waste", epoch.waste}};
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats.tags_at_peak[static_cast<size_t>(tag)];
    if (bytes > 0)
      epoch.row.emplace_back(fmt::format("memory_peak_{}_bytes", name_of(static_cast<Tag>(tag))), bytes);
  }
  const std::string figures =
      fmt::format("memory {} allocated, {} reserved, peak {}, headroom {}", gib(stats.allocated.current),
                  gib(stats.reserved.current), gib(stats.allocated.peak), gib(headroom));
  epoch.line = fmt::format("epoch {}: {}", number, figures);
  epoch.changed = std::exchange(figures_, figures) != figures;
  if (least_epoch_ == 0 || epoch.waste < least_waste_) {
    least_epoch_ = number;
    least_waste_ = alarmed_waste_ = epoch.waste;
  } else if (epoch.waste >= alarmed_waste_ + kGrowth) {
    alarmed_waste_ = epoch.waste;
    epoch.alarm = fmt::format(
        "memory: fragmentation has grown from {:.0f} % of what is reserved (epoch {}) to {:.0f} % (epoch "
        "{}); {} reserved for {} at most in use; fix: set memory.history, and see with `meshgrad memory "
        "page` what holds it",
        100.0 * least_waste_, least_epoch_, 100.0 * epoch.waste, number, gib(stats.reserved.peak),
        gib(stats.allocated.peak));
  }
  return epoch;
}

}  // namespace meshgrad
