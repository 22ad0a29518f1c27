// SPDX-License-Identifier: Apache-2.0
// The files that show what an allocator did, in one folder.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>

#include <filesystem>

namespace meshgrad {

/// Writes history.json (for `meshgrad memory replay`, and for scripts/memory-pickle, which makes of it what
/// pytorch.org/memory_viz opens) and memory.html (a page for a browser) into `dir`, which is created if
/// missing. The allocator should record a history, AllocatorOptions::history > 0; without one the files show
/// the present only. Throws DataError when a file cannot be written.
void write_memory_files(const std::filesystem::path& dir, CachingAllocator& allocator);

}  // namespace meshgrad
