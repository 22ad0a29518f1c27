// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace meshgrad {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// CPUs of the cgroup (version 2) quota, or 0 where there is none.
int quota_cpus() {
  const std::string line = first_line("/sys/fs/cgroup/cpu.max");
  long quota = 0;
  long period = 0;
  if (std::sscanf(line.c_str(), "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

constexpr int kLeastCapability = 8;  // what the kernels are compiled for

}  // namespace

std::string name_of(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::vector<CudaDevice> cuda_devices() { return gpu::devices(); }

int available_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask)
                                                           : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int quota = quota_cpus();
  if (quota > 0) cpus = std::min(cpus, quota);
  return std::max(1, cpus);
}

int64_t available_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kibibytes) == 1) bytes = kibibytes * 1024;
  }
  const std::string limit = first_line("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max")
    bytes = std::min<int64_t>(bytes, std::strtoll(limit.c_str(), nullptr, 10));
  return bytes;
}

Device resolve_device(const std::string& word, std::string* note) {
  const bool named_cuda = word == "cuda" || word.rfind("cuda:", 0) == 0;
  if (word != "auto" && word != "cpu" && !named_cuda) {
    throw invalid_argument("run.device", "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\"", "\"" + word + "\"",
                           "use one of these words");
  }
  const std::vector<CudaDevice> devices = cuda_devices();
  if (named_cuda) {
    const std::string number = word == "cuda" ? "0" : word.substr(5);
    int index = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || end != number.data() + number.size() || index < 0) {
      throw invalid_argument("run.device", "\"cuda:N\" with a number N", "\"" + word + "\"",
                             "use \"cuda\" or \"cuda:0\"");
    }
    if (index >= static_cast<int>(devices.size())) {
      const std::string found = !gpu::built()     ? "a build without CUDA"
                                : devices.empty() ? "no CUDA device that the driver shows"
                                                  : fmt::format("devices 0 to {}", devices.size() - 1);
      throw device_error("run.device", word, found,
                         gpu::built()
                             ? "see that `nvidia-smi` lists it and that its driver is of CUDA 13, or set "
                               "run.device = \"auto\" or \"cpu\""
                             : "build with -DMESHGRAD_CUDA=ON, or set run.device = \"auto\" or \"cpu\"");
    }
    const CudaDevice& device = devices[static_cast<size_t>(index)];
    if (device.major < kLeastCapability) {
      throw device_error("run.device", fmt::format("compute capability {}.0 or more", kLeastCapability),
                         fmt::format("{} with {}.{}", device.name, device.major, device.minor),
                         "set run.device = \"cpu\"");
    }
    return {DeviceKind::cuda, index};
  }
  if (word == "cpu" || devices.empty() || devices.front().major < kLeastCapability) {
    if (word == "auto" && note != nullptr) {
      *note = !gpu::built()     ? "device: cpu (a build without CUDA)"
              : devices.empty() ? "device: cpu (no CUDA device found)"
                                : fmt::format("device: cpu ({} is too old)", devices.front().name);
    }
    return Device{};
  }
  if (note != nullptr) *note = fmt::format("device: cuda:0 ({})", devices.front().name);
  return {DeviceKind::cuda, 0};
}

}  // namespace meshgrad
