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
#include <cstdlib>
#include <fstream>

namespace meshgrad {
namespace {

// What kernels are compiled for at least, and the fused ones (cmake/Targets.cmake).
constexpr int kMinCapability = 75, kMinFused = 80;

/// One architecture: a number, perhaps a letter, and "-real" or "-virtual" or both without. A number with an
/// "a" is for that device only; one without fused kernels is for devices without them.
gpu::Code code_of(int capability, std::string_view architecture) {
  int number = 0;
  const char* const last = architecture.data() + architecture.size();
  const auto [end, error] = std::from_chars(architecture.data(), last, number);
  if (error != std::errc()) return gpu::Code::binary;  // "native", "all", "all-major"
  if (number < kMinFused && capability >= kMinFused) return gpu::Code::none;
  const std::string_view rest(end, static_cast<size_t>(last - end));
  if (rest.starts_with("a")) return number == capability ? gpu::Code::binary : gpu::Code::none;
  const bool real = !rest.ends_with("-virtual"), ptx = !rest.ends_with("-real");
  if (real && number / 10 == capability / 10 && number <= capability) return gpu::Code::binary;
  return ptx && number <= capability ? gpu::Code::ptx : gpu::Code::none;
}

int capability_of(const CudaDevice& device) { return 10 * device.major + device.minor; }

/// Why this build cannot use the device; empty if it can.
std::string why_unusable(const CudaDevice& device) {
  const std::string it =
      fmt::format("{} has compute capability {}.{}", device.name, device.major, device.minor);
  if (capability_of(device) < kMinCapability)
    return fmt::format("{}, less than {}.{}", it, kMinCapability / 10, kMinCapability % 10);
  if (gpu::code_for(capability_of(device), gpu::architectures()) != gpu::Code::none) return {};
  return fmt::format("{}, and this build has code for {}", it, gpu::architectures());
}

/// What to do about it.
std::string fix_for(const CudaDevice& device) {
  if (capability_of(device) < kMinCapability) return "choose auto or cpu";
  return fmt::format("build with -DCMAKE_CUDA_ARCHITECTURES={}{}, or choose auto or cpu", device.major,
                     device.minor);
}

}  // namespace

int gpu::tested_multiprocessors(int usual, int most) {
  const char* const wanted = std::getenv("MESHGRAD_TEST_MULTIPROCESSORS");
  return wanted != nullptr ? std::clamp(std::atoi(wanted), 1, most) : usual;
}
int gpu::tested_shared_bytes(int most) {
  const char* const wanted = std::getenv("MESHGRAD_TEST_SHARED_BYTES");
  return wanted != nullptr ? std::clamp(std::atoi(wanted), kLeastSharedBytes, most) : most;
}

gpu::Code gpu::code_for(int capability, std::string_view architectures) {
  Code best = Code::none;
  while (!architectures.empty()) {
    const size_t end = std::min(architectures.find(' '), architectures.size());
    if (end > 0) best = std::max(best, code_of(capability, architectures.substr(0, end)));
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
  }
  return best;
}

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
    const std::string why = why_unusable(device);
    if (!why.empty())
      throw device_error(option, "a device that this build has code for", why, fix_for(device));
    return {DeviceKind::cuda, index};
  }
  if (word == "cpu") return Device{};
  std::string skipped = devices.empty() ? gpu::why_no_devices() : "";
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string why = why_unusable(devices[i]);
    if (why.empty()) {
      const Device chosen{DeviceKind::cuda, static_cast<int>(i)};
      if (note != nullptr) {
        *note = fmt::format("device: {} ({}{}{})", name_of(chosen), devices[i].name,
                            skipped.empty() ? "" : "; ", skipped);
      }
      return chosen;
    }
    skipped += (skipped.empty() ? "" : "; ") + why;
  }
  if (note != nullptr) *note = fmt::format("device: cpu ({})", skipped);
  return Device{};
}

}  // namespace meshgrad
