// SPDX-License-Identifier: Apache-2.0
// An allocator's history as a page for a browser: memory over time, and the address space at the peak.
#pragma once
#include <meshgrad/train/tools/extras/history_file.h>

#include <string>

namespace meshgrad {

/// The page, below 2 MB however long the history is: curves keep their extremes, and of very many blocks the
/// smallest are drawn together. The snapshot must be of the time just after the last event; where the history
/// has lost its beginning, the page is reconstructed backwards from it.
std::string history_page(const HistoryFile& file);

}  // namespace meshgrad
