// SPDX-License-Identifier: Apache-2.0
// An allocator's history as one page for a browser: memory over time, and what lay where at the peak.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>
#include <string>

namespace meshgrad {

/// The page, which needs nothing from elsewhere and stays below 2 MB however long the history is: curves keep
/// their extremes, and the smallest of very many blocks are drawn together. The snapshot must be of the time
/// just after the last event; where the history has lost its beginning, the page is worked out back from it.
std::string history_page(const MemorySnapshot& snapshot, const MemoryHistory& history);

/// Writes the page. Throws DataError when the file cannot be written.
void write_history_html(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                        const MemoryHistory& history);

}  // namespace meshgrad
