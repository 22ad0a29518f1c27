// SPDX-License-Identifier: Apache-2.0
// An allocator's state and history as JSON: for `meshgrad memory`, scripts/memory-pickle, or a script of your
// own.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>

#include <filesystem>

namespace meshgrad {

/// {"format": "meshgrad-memory-history", "version": 1, "names": [text...], "dropped": number of older events,
/// "events": [{kind, address, bytes, stream, tag, name (index into names), time_ns}...], "segments":
/// [{address, bytes, stream, small, mappings: [address...], blocks: [{address, bytes}, or of a block in use
/// {address, bytes, requested, tag, name (text)}...]}...], "stats": {counters as [now, most], numbers,
/// by_tag: {tag: [requested now, most]...}}, "settings": {memory_limit, expandable_segments,
/// garbage_collection_threshold}}. Segments are those of the snapshot, which must be of the time just after
/// the last event. Throws DataError when the file cannot be written.
void write_history_json(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                        const MemoryHistory& history, const AllocatorOptions& options);

/// Writes history.json of an allocator into `dir`, which is made where it is missing. The allocator should
/// record a history (AllocatorOptions::history > 0): without one the file shows the present only. Throws
/// DataError when the file cannot be written.
void write_memory_history(const std::filesystem::path& dir, CachingAllocator& allocator);

}  // namespace meshgrad
