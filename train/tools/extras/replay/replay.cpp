// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/replay/default_policy.h>
#include <meshgrad/train/tools/extras/replay/replay.h>
#include <meshgrad/train/tools/extras/replay/simulated_policies.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace meshgrad {
namespace {

using Simulate = std::unique_ptr<ReplayedAllocator> (*)(int64_t);

template <Simulate simulate>
std::unique_ptr<ReplayedAllocator> make(const MemoryTrace&, int64_t capacity) {
  return simulate(capacity);
}

constexpr ReplayPolicy kReplayPolicies[] = {
    {"default", "this engine's allocator", make_default_allocator},
    {"pytorch-native", "PyTorch's segments", make<simulate_pytorch_native>},
    {"pytorch-expandable", "PyTorch's expandable segments", make<simulate_pytorch_expandable>},
    {"rmm-pool", "RMM's pool, 256 MiB at first", make<simulate_rmm_pool>},
    {"first-fit", "2 MiB pages, lowest address", make<simulate_first_fit>},
    {"first-fit-256k", "the same, small blocks apart", make<simulate_first_fit_256k>},
    {"best-fit", "2 MiB pages, smallest block", make<simulate_best_fit>},
};

double fragmentation(const ReplayedAllocator::FreeMemory& free) {
  if (free.total == 0) return 0;
  return 1.0 - static_cast<double>(free.largest) / static_cast<double>(free.total);
}

/// The smallest capacity with which a run completes; `unlimited` is a run without a limit.
int64_t smallest_capacity(const MemoryTrace& trace, const ReplayPolicy& policy, const ReplayRun& unlimited) {
  constexpr int64_t kResolution = 64 * 1024;
  // A policy notices its capacity only when a growth is refused. A completed run is therefore the same with a
  // capacity of what it reserved at most, which is enough, too.
  int64_t enough = unlimited.peak_reserved;
  int64_t too_little = trace.peak_requested - 1;
  const auto completes_at = [&](int64_t capacity) {
    const ReplayRun run = run_trace(trace, policy, capacity);
    if (run.completes) {
      enough = run.peak_reserved;
    } else {
      too_little = capacity;
    }
    return run.completes;
  };
  // Upwards, by doubled steps: if some capacities complete and larger ones do not, this finds the smaller
  // ones.
  int64_t step = std::max(trace.peak_requested / 512, kResolution);
  for (int64_t capacity = trace.peak_requested; capacity < enough && !completes_at(capacity); step *= 2) {
    capacity = trace.peak_requested + step;
  }
  while (enough - too_little > kResolution) completes_at(too_little + (enough - too_little) / 2);
  return enough;
}

double median_ns_per_operation(const MemoryTrace& trace, const ReplayPolicy& policy) {
  using Clock = std::chrono::steady_clock;
  std::array<double, 5> passes{};
  std::vector<void*> blocks(trace.slots);
  for (double& pass : passes) {
    const std::unique_ptr<ReplayedAllocator> allocator = policy.make(trace, kUnlimited);
    const Clock::time_point start = Clock::now();
    for (const MemoryTrace::Event& event : trace.events) {
      if (event.allocates()) {
        blocks[event.slot] = allocator->allocate(event);
      } else {
        allocator->free(blocks[event.slot]);
      }
    }
    pass = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }
  std::sort(passes.begin(), passes.end());
  return passes[passes.size() / 2] / static_cast<double>(trace.events.size());
}

}  // namespace

std::span<const ReplayPolicy> replay_policies() { return kReplayPolicies; }

const ReplayPolicy& find_replay_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const ReplayPolicy& policy : kReplayPolicies) {
    if (policy.name == name) return policy;
    names.emplace_back(policy.name);
  }
  const std::string meant = nearest_name(name, names);
  throw invalid_argument("--policy", fmt::format("{}", fmt::join(names, "|")), fmt::format("\"{}\"", name),
                         meant.empty() ? "use one of these" : "did you mean \"" + meant + "\"?");
}

ReplayRun run_trace(const MemoryTrace& trace, const ReplayPolicy& policy, int64_t capacity) {
  const std::unique_ptr<ReplayedAllocator> allocator = policy.make(trace, capacity);
  std::vector<void*> blocks(trace.slots);
  ReplayRun run;
  for (const MemoryTrace::Event& event : trace.events) {
    if (!event.allocates()) {
      allocator->free(blocks[event.slot]);
      continue;
    }
    blocks[event.slot] = allocator->allocate(event);
    if (blocks[event.slot] == nullptr) {
      run.completes = false;
      break;
    }
    if (allocator->reserved() > run.peak_reserved) {
      run.peak_reserved = allocator->reserved();
      run.fragmentation_at_peak = fragmentation(allocator->free_memory());
    }
  }
  run.driver_calls = allocator->driver_calls();
  run.flushes = allocator->flushes();
  return run;
}

ReplayReport replay_trace(const MemoryTrace& trace, const ReplayPolicy& policy,
                          std::optional<int64_t> capacity) {
  ReplayReport report;
  report.policy = policy.name;
  report.peak_requested = trace.peak_requested;
  report.unlimited = run_trace(trace, policy, kUnlimited);
  if (!report.unlimited.completes) {
    throw data_error(fmt::format("replay: {}", policy.name), "at most 1 PiB of reserved memory",
                     fmt::format("a trace with {} bytes in use", trace.peak_requested),
                     "correct the sizes of the trace, or use a smaller --scale");
  }
  report.min_capacity = smallest_capacity(trace, policy, report.unlimited);
  report.tight = run_trace(trace, policy, trace.peak_requested + trace.peak_requested / 20);
  if (capacity) report.at_capacity = run_trace(trace, policy, *capacity);
  report.ns_per_operation = median_ns_per_operation(trace, policy);
  return report;
}

}  // namespace meshgrad
