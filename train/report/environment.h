// SPDX-License-Identifier: Apache-2.0
// What a run ran on, for environment.json: enough to explain a difference between two runs.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace meshgrad {

/// A JSON object with: "meshgrad" {version, commit (null when unknown), compiler, build}, "time" (UTC, ISO
/// 8601), "command" (list of arguments), "directory", "host" {name, system, kernel}, "cpu" {model, cores,
/// usable_cores (allowed by affinity), isa (list of instruction sets that matter here)}, "memory"
/// {total_bytes, available_bytes}, "cgroup" {memory_bytes, cpus; null where there is no limit}, "variables"
/// (those OMP_*, SLURM_*, CUDA_*, OMPI_COMM_WORLD_* and MESHGRAD_* that are set) and "extra" (`extra`, for
/// example the device). A fact that cannot be read is null; never throws for one.
std::string environment_json(std::span<const std::string> command,
                             const std::map<std::string, std::string>& extra = {});

/// Writes environment_json to a file, atomically. DataError when it cannot be written.
void write_environment(const std::filesystem::path& path, std::span<const std::string> command,
                       const std::map<std::string, std::string>& extra = {});

}  // namespace meshgrad
