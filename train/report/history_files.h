// SPDX-License-Identifier: Apache-2.0
// Everything that shows what an allocator did, in one folder.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>

#include <filesystem>

namespace meshgrad {

/// Writes history.json (for `meshgrad memory replay`), snapshot.pickle (for pytorch.org/memory_viz) and
/// memory.html (a page to look at) into `dir`, which is made where it is missing. The allocator should keep a
/// history, AllocatorOptions::history > 0; without one the files show the present only. Throws DataError when
/// a file cannot be written.
void write_memory_files(const std::filesystem::path& dir, CachingAllocator& allocator);

}  // namespace meshgrad
