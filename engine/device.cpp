// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/threads/cgroup.h>
#include <meshgrad/engine/threads/cpu_affinity.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

namespace meshgrad {
namespace {

constexpr int kMinCapability = 8;  // what the kernels are compiled for

}  // namespace

std::string name_of(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::vector<CudaDevice> cuda_devices() { return gpu::devices(); }

int available_cpus() {
  int cpus = static_cast<int>(allowed_cpus().size());
  if (cpus == 0) cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = cgroup_limits().cpus;
  if (quota > 0.0) cpus = static_cast<int>(std::min<double>(cpus, std::ceil(quota)));
  return std::max(1, cpus);
}

int64_t available_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kibibytes) == 1) bytes = kibibytes * 1024;
  }
  const int64_t limit = cgroup_limits().memory_bytes;
  return limit > 0 ? std::min(bytes, limit) : bytes;
}

Device resolve_device(const std::string& word, std::string* note, std::string_view option) {
  const bool named_cuda = word == "cuda" || word.rfind("cuda:", 0) == 0;
  if (word != "auto" && word != "cpu" && !named_cuda) {
    throw invalid_argument(option, "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\"", "\"" + word + "\"",
                           "use one of these words");
  }
  const std::vector<CudaDevice> devices = cuda_devices();
  if (named_cuda) {
    const std::string number = word == "cuda" ? "0" : word.substr(5);
    int index = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || end != number.data() + number.size() || index < 0) {
      throw invalid_argument(option, "\"cuda:N\" with a number N", "\"" + word + "\"",
                             "use \"cuda\" or \"cuda:0\"");
    }
    if (index >= static_cast<int>(devices.size())) {
      const std::string found =
          devices.empty() ? gpu::why_no_devices() : fmt::format("devices 0 to {}", devices.size() - 1);
      throw device_error(option, word, found,
                         gpu::built()
                             ? "see that `nvidia-smi` lists it, update an old driver, or choose auto or cpu"
                             : "build with -DMESHGRAD_CUDA=ON, or choose auto or cpu");
    }
    const CudaDevice& device = devices[static_cast<size_t>(index)];
    if (device.major < kMinCapability) {
      throw device_error(option, fmt::format("compute capability {}.0 or more", kMinCapability),
                         fmt::format("{} with {}.{}", device.name, device.major, device.minor), "choose cpu");
    }
    return {DeviceKind::cuda, index};
  }
  if (word == "cpu" || devices.empty() || devices.front().major < kMinCapability) {
    if (word == "auto" && note != nullptr) {
      *note = devices.empty() ? fmt::format("device: cpu ({})", gpu::why_no_devices())
                              : fmt::format("device: cpu ({} is too old)", devices.front().name);
    }
    return Device{};
  }
  if (note != nullptr) *note = fmt::format("device: cuda:0 ({})", devices.front().name);
  return {DeviceKind::cuda, 0};
}

}  // namespace meshgrad
