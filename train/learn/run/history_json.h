// SPDX-License-Identifier: Apache-2.0
// An allocator's state and history as JSON: for `meshgrad memory replay`, scripts/memory-pickle, or a script
// of your own.
#pragma once
#include <meshgrad/engine/memory/options.h>
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>

namespace meshgrad {

/// {"format": "meshgrad-memory-history", "version": 1, "names": [text...], "dropped": number of older events,
/// "events": [{kind, address, bytes, stream, tag, name (index into names), time_ns}...], "segments":
/// [{address, bytes, stream, small, blocks: [{address, bytes}, or of a block in use {address, bytes,
/// requested, tag, name (text)}...]}...], "settings": {memory_limit, expandable_segments,
/// garbage_collection_threshold}}. Segments are those of the snapshot, which must be of the time just after
/// the last event. Throws DataError when the file cannot be written.
void write_history_json(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                        const MemoryHistory& history, const AllocatorOptions& options);

}  // namespace meshgrad
