// SPDX-License-Identifier: Apache-2.0
// What this build is and what it runs on, for `meshgrad info`.
#pragma once
#include <meshgrad/engine/device.h>

#include <string>
#include <vector>

namespace meshgrad {

struct MachineInfo {
  std::string version;   ///< of meshgrad
  std::string compiler;  ///< "gcc 12.2.0"
  bool cuda_build = false;
  std::string cpu;                ///< model name; may be empty
  std::string isa;                ///< whose instructions the CPU's kernels use
  std::vector<std::string> isas;  ///< those that MESHGRAD_CPU_ISA may name here, narrowest first
  int cpus = 0;                   ///< that this process may run on
  int64_t memory_bytes = 0;       ///< that this process may use
  std::vector<CudaDevice> gpus;
  std::string default_device;  ///< what device = "auto" comes to
};

MachineInfo machine_info();

/// One JSON object with the fields of MachineInfo.
std::string to_json(const MachineInfo& machine);

/// The same as lines of text.
std::string to_text(const MachineInfo& machine);

}  // namespace meshgrad
