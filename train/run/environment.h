// SPDX-License-Identifier: Apache-2.0
// What a run ran on, for environment.json: enough to explain a difference between two runs.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace meshgrad {

/// A JSON object with: "time" (UTC, ISO 8601), "command" (list of arguments), "directory", "commit" (of the
/// sources; null when the build did not know it), "machine" (as `meshgrad info --json`), "cpu_flags"
/// (instruction sets that matter to a numeric result), "host" {name, system, kernel}, "memory" {total_bytes,
/// available_bytes}, "cgroup" {memory_bytes, cpus; null where there is no limit}, "variables" (settings of
/// threads, GPUs and jobs) and "extra"
/// (`extra`, for example the device chosen). A fact that cannot be read is null; never throws for one.
std::string environment_json(std::span<const std::string> command,
                             const std::map<std::string, std::string>& extra = {});

/// Writes environment_json to a file, atomically. DataError when it cannot be written.
void write_environment(const std::filesystem::path& path, std::span<const std::string> command,
                       const std::map<std::string, std::string>& extra = {});

}  // namespace meshgrad
