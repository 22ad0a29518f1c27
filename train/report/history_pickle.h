// SPDX-License-Identifier: Apache-2.0
// An allocator's state and history as the pickle that PyTorch's viewer opens (pytorch.org/memory_viz, which
// uploads nothing) and its Python tools read.
#pragma once
#include <meshgrad/engine/memory/options.h>
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>

namespace meshgrad {

/// The snapshot must be of the time just after the last event: the viewer goes back from it, event by event.
/// Everything stands as device 0. A block's stack is one frame: its name as the file, its tag as the
/// function. Throws DataError when the file cannot be written.
void write_history_pickle(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                          const MemoryHistory& history, const AllocatorOptions& options);

}  // namespace meshgrad
