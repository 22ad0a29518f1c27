// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/threads/cgroup.h>
#include <meshgrad/train/data/host_memory_error.h>

#include <fmt/format.h>
#include <sys/resource.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

std::string memory_text(int64_t bytes) {
  const double mib = mebibytes(bytes);
  if (mib < 1.0) return fmt::format("{:.1f} KiB", mib * 1024.0);
  return mib >= 1024.0 ? fmt::format("{:.1f} GiB", mib / 1024.0) : fmt::format("{:.1f} MiB", mib);
}

int64_t bytes_of(const fs::path& data) {
  std::error_code error;
  if (fs::is_regular_file(data, error)) {
    const auto bytes = fs::file_size(data, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  int64_t sum = 0;
  for (fs::directory_iterator at(data, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (const auto bytes = at->file_size(ignored); !ignored) sum += static_cast<int64_t>(bytes);
  }
  return sum;
}

}  // namespace

std::string describe_host_memory(const fs::path& data) {
  const CgroupLimits groups = cgroup_limits();
  const std::string cgroup =
      groups.memory_bytes > 0
          ? fmt::format("the cgroup limit is {} ({})", memory_text(groups.memory_bytes), groups.memory_file)
          : "no cgroup limit";
  rlimit addresses{};
  const bool limited = getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY;
  const std::string addresses_text = limited
                                         ? fmt::format("addresses are limited to {} (ulimit -v)",
                                                       memory_text(static_cast<int64_t>(addresses.rlim_cur)))
                                         : "no limit of addresses (ulimit -v)";
  return fmt::format("{} has {}; this process may use {} of memory, {}, {}", data.string(),
                     memory_text(bytes_of(data)), memory_text(available_memory()), cgroup, addresses_text);
}

HostOutOfMemory host_out_of_memory(const fs::path& data, const std::string& needed) {
  return HostOutOfMemory(
      fmt::format("[{}] needed memory of the host {}, got none: {}; fix: raise the limit, or "
                  "end what else takes memory",
                  data.string(), needed, describe_host_memory(data)));
}

}  // namespace meshgrad
