// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/ranks/mpi.h>
#include <meshgrad/engine/threads/cgroup.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/tools/extras/health.h>
#include <meshgrad/train/tools/program/progress.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

namespace meshgrad {
namespace {

using Verdict = HealthCheck::Verdict;

std::string size_text(int64_t bytes) {
  return bytes_text(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)));
}

HealthCheck check_cpu(const MachineInfo& machine) {
  HealthCheck check{.name = "cpu"};
  check.found = fmt::format("{}; kernels use {}", machine.cpu.empty() ? "unknown" : machine.cpu, machine.isa);
  if (machine.isas.empty() || machine.isa == machine.isas.back()) return check;
  check.verdict = Verdict::note;
  check.remedy = "unset MESHGRAD_CPU_ISA";
  check.gain = fmt::format("vectors of {} instead of {}", machine.isas.back(), machine.isa);
  return check;
}

HealthCheck check_threads(const MachineInfo& machine) {
  HealthCheck check{.name = "threads"};
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  check.found = fmt::format("{} of {} CPUs", machine.cpus, online);
  if (machine.cpus >= online) return check;
  const double quota = cgroup_limits().cpus;
  check.verdict = Verdict::note;
  check.found += quota > 0.0 && quota <= machine.cpus
                     ? fmt::format(": a control group gives {:.3g} CPU seconds a second", quota)
                     : ": the process may run only on these (affinity)";
  check.remedy = "ask the job system or the container for more CPUs, if there are some to be had";
  check.gain = fmt::format("at most {:.3g} times the speed of CPU kernels",
                           static_cast<double>(online) / static_cast<double>(machine.cpus));
  return check;
}

HealthCheck check_memory_limit(const MachineInfo& machine) {
  HealthCheck check{.name = "memory"};
  const int64_t all = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const CgroupLimits limits = cgroup_limits();
  check.found = fmt::format("{} available of {}", size_text(machine.memory_bytes), size_text(all));
  if (limits.memory_bytes > 0 && limits.memory_bytes < all) {
    check.found +=
        fmt::format("; a control group allows {} ({})", size_text(limits.memory_bytes), limits.memory_file);
  }
  if (machine.memory_bytes >= all / 4) return check;
  check.verdict = Verdict::note;
  check.remedy = "end other programs, or raise the limit; meshgrad plan CONFIG says what a run needs";
  check.gain = fmt::format("up to {} more", size_text(all - machine.memory_bytes));
  return check;
}

HealthCheck check_gpu(const MachineInfo& machine) {
  HealthCheck check{.name = "gpu"};
  for (const CudaDevice& gpu : machine.gpus) {
    check.found += fmt::format("{}{}, {}, compute capability {}.{}", check.found.empty() ? "" : "; ",
                               gpu.name, size_text(gpu.memory_bytes), gpu.major, gpu.minor);
  }
  if (!machine.gpus.empty()) return check;
  check.verdict = Verdict::note;
  check.found = "none: " + gpu::why_no_devices();
  check.remedy = machine.cuda_build ? "see that nvidia-smi lists one, and update an old driver"
                                    : "build with -DMESHGRAD_CUDA=ON where there is one";
  return check;
}

/// Bytes a second of writing to the disk, and of reading again.
struct DiskSpeed {
  double write = 0.0, read = 0.0;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Nothing where the folder cannot be written.
std::optional<DiskSpeed> measure_disk(const std::filesystem::path& folder) {
  constexpr size_t kBytes = size_t{64} << 20, kPart = size_t{1} << 20;
  std::string name = (folder / ".meshgrad-doctor-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return std::nullopt;
  unlink(name.c_str());  // a killed process leaves nothing behind
  const std::vector<char> part(kPart, 'm');
  std::vector<char> back(kPart);
  const auto all_parts = [&](auto&& transfer) {
    for (size_t at = 0; at < kBytes;) {
      const ssize_t moved = transfer(static_cast<off_t>(at), std::min(kPart, kBytes - at));
      if (moved == 0) errno = EIO;  // a full disk moves less first, and says why at the next call
      if (moved <= 0) return false;
      at += static_cast<size_t>(moved);
    }
    return true;
  };
  DiskSpeed speed;
  auto begin = std::chrono::steady_clock::now();
  bool done = all_parts([&](off_t at, size_t bytes) { return pwrite(file, part.data(), bytes, at); }) &&
              fsync(file) == 0;
  speed.write = static_cast<double>(kBytes) / seconds_since(begin);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);  // else it is read from memory
  begin = std::chrono::steady_clock::now();
  done = done && all_parts([&](off_t at, size_t bytes) { return pread(file, back.data(), bytes, at); });
  speed.read = static_cast<double>(kBytes) / seconds_since(begin);
  const int why = errno;
  close(file);
  errno = why;
  return done ? std::optional(speed) : std::nullopt;
}

HealthCheck check_disk(const std::filesystem::path& folder) {
  HealthCheck check{.name = "disk"};
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  const std::optional<DiskSpeed> speed = measure_disk(folder);
  if (!speed) {
    check.verdict = Verdict::bad;
    check.found = fmt::format("64 MiB cannot be written in {}: {}", folder.string(), std::strerror(errno));
    check.remedy = "run it in a folder that can be written and has room, as run.dir must";
    return check;
  }
  check.found = fmt::format("{}: written at {:.0f} MB/s, read at {:.0f} MB/s", folder.string(),
                            speed->write / 1e6, speed->read / 1e6);
  if (!error) check.found += fmt::format(", {} free", size_text(static_cast<int64_t>(space.available)));
  constexpr double kSlow = 50e6;
  if (speed->write >= kSlow && speed->read >= kSlow) return check;
  check.verdict = Verdict::note;
  check.remedy = "put data.path and run.dir on a local disk";
  check.gain = "checkpoints and the first pass over the data take as long as the disk";
  return check;
}

HealthCheck check_ranks() {
  HealthCheck check{.name = "mpi"};
  check.found = "built in";
  if (!mpi_built()) {
    check.verdict = Verdict::note;
    check.found = "not built in: this program trains in one process";
    check.remedy = "scripts/setup and a new build, for mpirun and srun";
  }
  if (const std::optional<Launcher> launcher = found_launcher())
    check.found +=
        fmt::format("; started as one of {} processes ({})", launcher->processes, launcher->variable);
  return check;
}

}  // namespace

std::vector<HealthCheck> examine_machine(const std::filesystem::path& folder) {
  const MachineInfo machine = machine_info();
  return {check_cpu(machine), check_threads(machine), check_memory_limit(machine),
          check_gpu(machine), check_disk(folder),     check_ranks()};
}

}  // namespace meshgrad
