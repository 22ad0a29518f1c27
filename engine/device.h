// SPDX-License-Identifier: Apache-2.0
// Which devices this machine has, and the numbers of the machine that reports print.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:0".
std::string name_of(Device device);

struct CudaDevice {
  std::string name;
  int64_t memory_bytes = 0;
  int major = 0;  ///< compute capability
  int minor = 0;
};

/// The CUDA devices that the driver shows; empty without a driver, a device, or a build with CUDA.
/// Never throws: a machine without a GPU is an ordinary machine.
std::vector<CudaDevice> cuda_devices();

/// CPUs this process may run on: the calling thread's affinity mask, cut to the control groups' quota
/// (rounded up; cgroup.h); at least 1.
int available_cpus();

/// Bytes of memory this process may still use: what the machine has available, or its control groups' limit
/// where that is lower.
int64_t available_memory();

/// Resolves `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`. With "auto", `note` (if given) receives one line
/// saying what was chosen and why. Throws DeviceError when a named device is not there or the build cannot
/// use it, InvalidArgument for another word.
Device resolve_device(const std::string& word, std::string* note = nullptr);

}  // namespace meshgrad
#pragma GCC visibility pop
