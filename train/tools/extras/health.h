// SPDX-License-Identifier: Apache-2.0
// What `meshgrad doctor` examines: the machine, and what a run's own files say of its health.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct HealthCheck {
  enum class Verdict : uint8_t {
    good,
    note,    ///< something could be better
    bad,     ///< something is wrong
    unknown  ///< there are no figures, or too few
  };
  std::string name;  ///< "memory"
  Verdict verdict = Verdict::good;
  std::string found;   ///< the figures that the verdict follows from
  std::string remedy;  ///< what to do; empty where nothing is to be done
  std::string gain;    ///< what the remedy brings, computed from the same figures; may be empty
};
constexpr std::string_view name_of(HealthCheck::Verdict verdict) {
  constexpr std::string_view kNames[] = {"good", "note", "bad", "unknown"};
  return kNames[static_cast<size_t>(verdict)];
}

/// CPU, threads, memory, GPU, the disk under `folder` (written and read with a file of 64 MiB that has no
/// name) and MPI. Never throws for what it cannot find out.
std::vector<HealthCheck> examine_machine(const std::filesystem::path& folder);

/// Seven checks of a run directory: how it ended, memory, training loss, validation, gradients, speed, and
/// work that is done once; of a run with a gradient noise scale also its batch. Reads metrics.jsonl,
/// config.resolved.toml and events.jsonl. Throws ConfigError for a folder without metrics.jsonl, DataError
/// for files that cannot be read.
std::vector<HealthCheck> examine_run(const std::filesystem::path& run);

}  // namespace meshgrad
