// SPDX-License-Identifier: Apache-2.0
// What the control groups that this process is in allow it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshgrad {

struct CgroupLimits {
  double cpus = 0.0;         ///< CPU time per time, quota over period; 0: no quota
  int64_t memory_bytes = 0;  ///< 0: no limit
  std::string memory_file;   ///< where that limit stands
};

/// The lowest limits of the process's groups and of those above them, of version 1 and 2. Reads proc/self and
/// sys/fs/cgroup below `root`; what is not there or not understood limits nothing.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace meshgrad
