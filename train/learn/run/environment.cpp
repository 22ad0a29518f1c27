// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cpu_isa.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/environment.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

namespace meshgrad {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The value of the first line `key : value` of a file such as /proc/cpuinfo; empty when there is none.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream input(file);
  for (std::string line; std::getline(input, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == line.npos) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

OrderedJson or_null(std::string value) {
  return value.empty() ? OrderedJson(nullptr) : OrderedJson(std::move(value));
}

/// Of the CPU features that the processor reports, those that decide which kernels run.
OrderedJson cpu_flags() {
  constexpr std::string_view kRelevant[] = {
      "avx",         "avx2",        "fma",      "f16c",     "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
      "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "asimd",   "sve",      "bf16"};
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags") + " " +
                           proc_value("/proc/cpuinfo", "Features"));
  OrderedJson found = OrderedJson::array();
  for (std::string flag; flags >> flag;) {
    if (std::ranges::find(kRelevant, flag) != std::end(kRelevant)) found.push_back(flag);
  }
  return found;
}

OrderedJson memory_value(std::string_view key) {
  const std::string text = proc_value("/proc/meminfo", key);  // "65842112 kB"
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(std::strtoull(text.c_str(), nullptr, 10) * 1024);
}

/// The first number of a control file; null when there is no such file or it says "max".
OrderedJson limit_of(const char* file) {
  std::ifstream input(file);
  double value = 0;
  if (!(input >> value) || value >= 9e18 || value < 0) return nullptr;
  return static_cast<std::uint64_t>(value);
}

OrderedJson cgroup_facts() {
  OrderedJson memory = limit_of("/sys/fs/cgroup/memory.max");
  if (memory.is_null()) memory = limit_of("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  OrderedJson cpus = nullptr;
  double quota = 0;
  double period = 0;
  if (std::ifstream input("/sys/fs/cgroup/cpu.max"); input >> quota >> period && period > 0)
    cpus = quota / period;
  return {{"memory_bytes", std::move(memory)}, {"cpus", std::move(cpus)}};
}

OrderedJson host_facts() {
  utsname system{};
  if (::uname(&system) != 0) return nullptr;
  std::string name;
  std::ifstream release("/etc/os-release");
  for (std::string line; std::getline(release, line);) {
    if (line.starts_with("PRETTY_NAME=")) name = line.substr(12);
  }
  std::erase(name, '"');
  return {{"name", system.nodename},
          {"system", or_null(std::move(name))},
          {"kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
}

OrderedJson build_commit() {
#ifdef MESHGRAD_COMMIT
  return MESHGRAD_COMMIT;
#else
  return nullptr;
#endif
}

OrderedJson machine_facts(const MachineInfo& machine) {
  OrderedJson gpus = OrderedJson::array();
  for (const CudaDevice& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)}});
  }
  return {
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
}

/// By name, not by prefix: job systems also keep secrets in variables.
OrderedJson relevant_variables() {
  OrderedJson result = OrderedJson::object();
  for (const char* name : {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "CUDA_VISIBLE_DEVICES",
                           "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NODELIST",
                           "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MESHGRAD_ALLOC_CONF"}) {
    if (const char* value = std::getenv(name)) result[name] = value;
  }
  return result;
}

std::string dumped(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo machine;
  machine.version = MESHGRAD_VERSION;
  machine.compiler = compiler();
  machine.cuda_build = gpu::built();
  machine.cpu = proc_value("/proc/cpuinfo", "model name");
  for (const cpu::Isa isa : cpu::machine_isas()) machine.isas.emplace_back(cpu::name_of(isa));
  machine.isa = cpu::name_of(cpu::isa());
  machine.cpus = available_cpus();
  machine.memory_bytes = available_memory();
  machine.gpus = cuda_devices();
  machine.default_device = name_of(resolve_device("auto"));
  return machine;
}

std::string to_json(const MachineInfo& machine) { return dumped(machine_facts(machine)); }

void write_environment(const std::filesystem::path& path, std::span<const std::string> command,
                       const std::map<std::string, std::string>& extra) {
  std::error_code ignored;
  OrderedJson facts;
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  facts["time"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  facts["command"] = std::vector<std::string>(command.begin(), command.end());
  facts["directory"] = std::filesystem::current_path(ignored).string();
  facts["commit"] = build_commit();
  facts["machine"] = machine_facts(machine_info());
  facts["cpu_flags"] = cpu_flags();
  facts["host"] = host_facts();
  facts["memory"] = {{"total_bytes", memory_value("MemTotal")},
                     {"available_bytes", memory_value("MemAvailable")}};
  facts["cgroup"] = cgroup_facts();
  facts["variables"] = relevant_variables();
  facts["extra"] = OrderedJson::object();
  for (const auto& [key, value] : extra) facts["extra"][key] = value;
  write_file_atomically(path, dumped(facts));
}

}  // namespace meshgrad
