// SPDX-License-Identifier: Apache-2.0
// The devices of this machine, and how many CPUs and how much memory this process may use.
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

/// The CUDA devices that the driver reports; empty without a driver, without a device, or in a build without
/// CUDA. Never throws: having no GPU is no error.
std::vector<CudaDevice> cuda_devices();

/// CPUs this process may use: those of the calling thread's affinity mask, limited by the control groups'
/// quota (rounded up; threads/cgroup.h); at least 1.
int available_cpus();

/// Bytes of memory for this process: what the machine has available now (MemAvailable), or its control
/// groups' limit where that is lower.
int64_t available_memory();

/// Resolves `"cpu"`, `"cuda"`, `"cuda:N"` or `"auto"`, the first CUDA device with code in this build. Of it,
/// `note` receives one line on what was chosen and why. Throws DeviceError for a named device that is absent,
/// too old or without code, InvalidArgument for another word; `option` names the setting.
Device resolve_device(const std::string& word, std::string* note = nullptr,
                      std::string_view option = "run.device");

}  // namespace meshgrad
#pragma GCC visibility pop
