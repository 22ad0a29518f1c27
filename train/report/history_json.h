// SPDX-License-Identifier: Apache-2.0
// An allocator's history as a file that `meshgrad memory replay` and any JSON reader understand.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>

namespace meshgrad {

/// Writes `{"format": "meshgrad-memory-history", "version": 1, "names": [...], "dropped": n, "events":
/// [...]}` with an event a line, oldest first: kind, address, bytes, stream, tag, name (an index into names),
/// time_ns. Throws DataError when the file cannot be written.
void write_history_json(const std::filesystem::path& path, const MemoryHistory& history);

}  // namespace meshgrad
