// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <meshgrad/train/formats/atomic_file.h>
#include <meshgrad/train/report/environment.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace meshgrad {
namespace {

using Json = nlohmann::ordered_json;

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

Json or_null(std::string value) { return value.empty() ? Json(nullptr) : Json(std::move(value)); }

Json cpu_facts() {
  constexpr std::string_view kIsa[] = {
      "sse4_2",      "avx",         "avx2",        "fma",      "f16c",     "avx512f", "avx512bw", "avx512vl",
      "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "asimd",   "sve",      "bf16"};
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags") + " " +
                           proc_value("/proc/cpuinfo", "Features"));
  Json isa = Json::array();
  for (std::string flag; flags >> flag;) {
    for (const std::string_view known : kIsa) {
      if (flag == known) isa.push_back(flag);
    }
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  return {{"model", or_null(proc_value("/proc/cpuinfo", "model name"))},
          {"cores", std::thread::hardware_concurrency()},
          {"usable_cores", known ? Json(CPU_COUNT(&allowed)) : Json(nullptr)},
          {"isa", std::move(isa)}};
}

Json memory_value(std::string_view key) {
  const std::string text = proc_value("/proc/meminfo", key);  // "65842112 kB"
  return text.empty() ? Json(nullptr) : Json(std::strtoull(text.c_str(), nullptr, 10) * 1024);
}

/// The first number of a control file; null when there is no such file or it says "max".
Json limit_of(const char* file) {
  std::ifstream input(file);
  double value = 0;
  if (!(input >> value) || value >= 9e18 || value < 0) return nullptr;
  return static_cast<std::uint64_t>(value);
}

Json cgroup_facts() {
  Json memory = limit_of("/sys/fs/cgroup/memory.max");
  if (memory.is_null()) memory = limit_of("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  Json cpus = nullptr;
  double quota = 0;
  double period = 0;
  if (std::ifstream input("/sys/fs/cgroup/cpu.max"); input >> quota >> period && period > 0)
    cpus = quota / period;
  return {{"memory_bytes", std::move(memory)}, {"cpus", std::move(cpus)}};
}

Json host_facts() {
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

Json build_facts() {
  Json commit = nullptr;
#ifdef MESHGRAD_COMMIT
  commit = MESHGRAD_COMMIT;
#endif
#ifdef NDEBUG
  constexpr std::string_view kBuild = "optimised";
#else
  constexpr std::string_view kBuild = "with assertions";
#endif
#ifdef __clang__
  constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
  constexpr std::string_view kCompiler = "gcc " __VERSION__;
#endif
  return {{"version", MESHGRAD_VERSION},
          {"commit", std::move(commit)},
          {"compiler", kCompiler},
          {"build", kBuild}};
}

/// By name, not by prefix: job systems also keep secrets in variables.
Json relevant_variables() {
  Json result = Json::object();
  for (const char* name : {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID",
                           "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "MESHGRAD_ALLOC_CONF"}) {
    if (const char* value = std::getenv(name)) result[name] = value;
  }
  return result;
}

}  // namespace

std::string environment_json(std::span<const std::string> command,
                             const std::map<std::string, std::string>& extra) {
  std::error_code ignored;
  Json facts;
  facts["meshgrad"] = build_facts();
  facts["time"] =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                  fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  facts["command"] = std::vector<std::string>(command.begin(), command.end());
  facts["directory"] = std::filesystem::current_path(ignored).string();
  facts["host"] = host_facts();
  facts["cpu"] = cpu_facts();
  facts["memory"] = {{"total_bytes", memory_value("MemTotal")},
                     {"available_bytes", memory_value("MemAvailable")}};
  facts["cgroup"] = cgroup_facts();
  facts["variables"] = relevant_variables();
  facts["extra"] = Json::object();
  for (const auto& [key, value] : extra) facts["extra"][key] = value;
  return facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_environment(const std::filesystem::path& path, std::span<const std::string> command,
                       const std::map<std::string, std::string>& extra) {
  write_file_atomically(path, environment_json(command, extra));
}

}  // namespace meshgrad
