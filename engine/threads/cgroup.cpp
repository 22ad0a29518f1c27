// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/threads/cgroup.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

// Version 1 has no word for "none": it shows the largest multiple of a page instead.
constexpr int64_t kUnlimitedFrom = int64_t{1} << 60;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void limit_cpus(CgroupLimits& limits, double quota, double period) {
  if (quota <= 0.0 || period <= 0.0) return;
  if (limits.cpus == 0.0 || quota / period < limits.cpus) limits.cpus = quota / period;
}

void limit_memory(CgroupLimits& limits, const fs::path& file) {
  const int64_t bytes = std::strtoll(first_line(file).c_str(), nullptr, 10);  // of "max" it makes 0
  if (bytes <= 0 || bytes >= kUnlimitedFrom) return;
  if (limits.memory_bytes != 0 && bytes >= limits.memory_bytes) return;
  limits.memory_bytes = bytes;
  limits.memory_file = file.string();
}

/// Calls `visit` for the group and all groups above it, down from `mount`. In a container the group's name
/// may be the host's, and only the mount itself exists.
void for_each_group(const fs::path& mount, const std::string& group,
                    const std::function<void(const fs::path&)>& visit) {
  visit(mount);
  fs::path at = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    at /= part;
    visit(at);
  }
}

void read_unified(CgroupLimits& limits, const fs::path& folder) {
  double quota = 0.0;
  double period = 0.0;
  if (std::sscanf(first_line(folder / "cpu.max").c_str(), "%lf %lf", &quota, &period) == 2)
    limit_cpus(limits, quota, period);
  limit_memory(limits, folder / "memory.max");
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines are NUMBER:CONTROLLERS:GROUP; version 2 has number 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (second == first + 1) {
      for_each_group(mounts, group, [&](const fs::path& folder) { read_unified(limits, folder); });
    }
    for (std::string controller; std::getline(controllers, controller, ',');) {
      for_each_group(mounts / controller, group, [&](const fs::path& folder) {
        if (controller == "cpu") {
          limit_cpus(limits, std::strtod(first_line(folder / "cpu.cfs_quota_us").c_str(), nullptr),
                     std::strtod(first_line(folder / "cpu.cfs_period_us").c_str(), nullptr));
        } else if (controller == "memory") {
          limit_memory(limits, folder / "memory.limit_in_bytes");
        }
      });
    }
  }
  return limits;
}

}  // namespace meshgrad
