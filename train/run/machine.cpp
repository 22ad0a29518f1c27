// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cpu_isa.h>
#include <meshgrad/train/run/machine.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo machine;
  machine.version = MESHGRAD_VERSION;
  machine.compiler = compiler();
  machine.cuda_build = gpu::built();
  machine.cpu = cpu_model();
  for (const cpu::Isa isa : cpu::machine_isas()) machine.isas.emplace_back(cpu::name_of(isa));
  machine.isa = cpu::name_of(cpu::isa());
  machine.cpus = available_cpus();
  machine.memory_bytes = available_memory();
  machine.gpus = cuda_devices();
  machine.default_device = name_of(resolve_device("auto"));
  return machine;
}

std::string to_json(const MachineInfo& machine) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const CudaDevice& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)}});
  }
  const nlohmann::ordered_json json = {
      {"version", machine.version},
      {"compiler", machine.compiler},
      {"cuda_build", machine.cuda_build},
      {"cpu", machine.cpu},
      {"isa", machine.isa},
      {"isas", machine.isas},
      {"cpus", machine.cpus},
      {"memory_bytes", machine.memory_bytes},
      {"gpus", gpus},
      {"default_device", machine.default_device},
  };
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string to_text(const MachineInfo& machine) {
  std::string text = fmt::format("meshgrad  {} ({}, {})\n", machine.version, machine.compiler,
                                 machine.cuda_build ? "with CUDA" : "without CUDA");
  text += fmt::format("cpu       {}\n", machine.cpu.empty() ? "unknown" : machine.cpu);
  text += fmt::format("isa       {} (of {})\n", machine.isa, fmt::join(machine.isas, ", "));
  text += fmt::format("cpus      {}\n", machine.cpus);
  text += fmt::format("memory    {}\n", gibibytes(machine.memory_bytes));
  for (const CudaDevice& gpu : machine.gpus) {
    text += fmt::format("gpu       {}, {}, compute capability {}.{}\n", gpu.name, gibibytes(gpu.memory_bytes),
                        gpu.major, gpu.minor);
  }
  if (machine.gpus.empty()) text += "gpu       none\n";
  return text + fmt::format("device    {} (what device = \"auto\" comes to)\n", machine.default_device);
}

}  // namespace meshgrad
