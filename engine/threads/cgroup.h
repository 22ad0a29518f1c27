// SPDX-License-Identifier: Apache-2.0
// Limits of the Linux control groups (cgroups) that this process belongs to, versions 1 and 2.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshgrad {

struct CgroupLimits {
  double cpus = 0.0;         ///< CPU seconds per second (quota / period); 0: no quota
  int64_t memory_bytes = 0;  ///< 0: no limit
  std::string memory_file;   ///< the file that holds the memory limit, for messages
};

/// The lowest limits of the process's groups and of all groups above them. Reads proc/self/cgroup and
/// sys/fs/cgroup below `root` (tests give another). Files that are missing or malformed set no limit; never
/// throws for them.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace meshgrad
