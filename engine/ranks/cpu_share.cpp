// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/cpu_share.h>
#include <meshgrad/engine/threads/cgroup.h>
#include <meshgrad/engine/threads/cpu_affinity.h>

#include <algorithm>
#include <bitset>

namespace meshgrad {
namespace {

constexpr size_t kMostCpus = 4096;

struct CpuSet {
  std::bitset<kMostCpus> cpus;
  uint64_t host = 0;
};

}  // namespace

int threads_of_rank(const std::vector<std::vector<int>>& local_cpus, int local_rank, double quota) {
  double share = 0.0;
  for (const int cpu : local_cpus[static_cast<size_t>(local_rank)]) {
    const auto uses = [cpu](const std::vector<int>& cpus) {
      return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
    };
    share += 1.0 / static_cast<double>(std::count_if(local_cpus.begin(), local_cpus.end(), uses));
  }
  if (quota > 0.0) share = std::min(share, quota / static_cast<double>(local_cpus.size()));
  constexpr double kRounding = 1e-6;  // three thirds of a CPU are one
  return std::max(1, static_cast<int>(share + kRounding));
}

int threads_of_rank(Ranks& ranks) {
  if (ranks.single()) return available_cpus();
  CpuSet mine{.cpus = {}, .host = ranks.host()};
  for (const int cpu : allowed_cpus())
    if (static_cast<size_t>(cpu) < kMostCpus) mine.cpus.set(static_cast<size_t>(cpu));
  std::vector<std::vector<int>> local_cpus;
  for (const CpuSet& other : all_gather(ranks, mine, "CPUs of the ranks")) {
    if (other.host != mine.host) continue;
    std::vector<int>& cpus = local_cpus.emplace_back();
    for (size_t cpu = 0; cpu < kMostCpus; ++cpu)
      if (other.cpus.test(cpu)) cpus.push_back(static_cast<int>(cpu));
  }
  if (local_cpus[static_cast<size_t>(ranks.local_rank())].empty()) return 1;  // the system does not tell
  return threads_of_rank(local_cpus, ranks.local_rank(), cgroup_limits().cpus);
}

}  // namespace meshgrad
