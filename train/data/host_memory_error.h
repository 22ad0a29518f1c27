// SPDX-License-Identifier: Apache-2.0
// What is said when the host has no memory left for a data set.
#pragma once
#include <meshgrad/engine/error.h>

#include <filesystem>
#include <new>
#include <string>

namespace meshgrad {

/// "data.mgd has 1.2 GiB; this process may use 4.0 GiB of memory, the cgroup limit is 4.0 GiB (FILE), ...":
/// a data set (a file, or a folder), its size, and what limits this process: its control groups, and
/// RLIMIT_AS (`ulimit -v`), each named also where it sets no limit.
std::string describe_host_memory(const std::filesystem::path& data);

/// One that ends with that description.
struct HostOutOfMemory : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};
/// `needed` says for what there is none.
HostOutOfMemory host_out_of_memory(const std::filesystem::path& data, const std::string& needed);

/// Runs `work`; std::bad_alloc becomes the error above, and an OutOfMemory of the engine, where that computes
/// on the host, ends with the same description.
template <class Work>
auto with_host_memory_named(const std::filesystem::path& data, bool on_host, const std::string& needed,
                            Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw host_out_of_memory(data, needed);
  } catch (const HostOutOfMemory&) {
    throw;
  } catch (const OutOfMemory& error) {
    if (!on_host) throw;
    throw HostOutOfMemory(std::string(error.what()) + "\n" + describe_host_memory(data));
  }
}

}  // namespace meshgrad
