// SPDX-License-Identifier: Apache-2.0
// The build and the machine that a run uses: for `meshgrad info`, and for environment.json, which explains a
// difference between two runs.
#pragma once
#include <meshgrad/engine/device.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

struct MachineInfo {
  std::string version;   ///< of meshgrad
  std::string compiler;  ///< "gcc 12.2.0"
  bool cuda_build = false;
  std::string cpu;                ///< model name; may be empty
  std::string isa;                ///< instruction set of the CPU kernels in use
  std::vector<std::string> isas;  ///< supported values of MESHGRAD_CPU_ISA, narrowest first
  int cpus = 0;                   ///< available to this process
  int64_t memory_bytes = 0;       ///< available to this process
  std::vector<CudaDevice> gpus;
  std::string default_device;  ///< what device = "auto" resolves to
};

MachineInfo machine_info();

/// One JSON object with the fields of MachineInfo.
std::string to_json(const MachineInfo& machine);

/// Writes a JSON object to a file, atomically: "time" (UTC, ISO 8601), "command" (list of arguments),
/// "directory", "commit" (of the sources; null when the build did not know it), "machine" (MachineInfo),
/// "cpu_flags" (CPU features that can change a numeric result), "host" {name, system, kernel}, "memory"
/// {total_bytes, available_bytes}, "cgroup" {memory_bytes, cpus; null without a limit}, "variables"
/// (environment variables of threads, GPUs and job schedulers) and "extra" (`extra`, for example the device
/// chosen). A fact that cannot be read is null. DataError when the file cannot be written.
void write_environment(const std::filesystem::path& path, std::span<const std::string> command,
                       const std::map<std::string, std::string>& extra = {});

}  // namespace meshgrad
