// SPDX-License-Identifier: Apache-2.0
// Reads files with a library that may crash or loop on damaged input, in a child process with limits.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// What a child may use. It has no terminal and no standard streams.
struct ChildLimits {
  uint64_t memory = 0;      ///< bytes beyond those of the parent
  int64_t cpu_seconds = 0;  ///< for opening, for each trajectory, and anew from each AliveCallback on
};

/// To be called where a part of a trajectory is read, such as a frame: no file may keep the library busy for
/// ever, but a long one may take its time. `unpacked` is how many bytes the next part has in memory, where
/// that is known: a child may use as much more, a few times, for a file that is compressed well.
using AliveCallback = std::function<void(uint64_t unpacked)>;
using OpenSource =
    std::function<std::unique_ptr<TrajectorySource>(const WarningCallback& warn, const AliveCallback& alive)>;

/// The trajectories of `open`, which is called only in child processes: one that counts records, here, and
/// one from the first to the last next(). Errors of the source are thrown here. A child that crashes or
/// exceeds its limits is one DataError naming `path`; `library` reads the file there ("HDF5").
std::unique_ptr<TrajectorySource> read_in_child(const std::filesystem::path& path, const std::string& library,
                                                const ChildLimits& limits, OpenSource open,
                                                WarningCallback warn);

}  // namespace meshgrad
