// SPDX-License-Identifier: Apache-2.0
// Reads history.json of a run (train/learn/run/history_json.h) for the page of it.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace meshgrad {

struct HistoryFile {
  MemoryRecord record;   ///< without the statistics of the snapshot
  nlohmann::json stats;  ///< these, as the file has them
};

/// Throws DataError for a file that is not such a history, or lacks one of its members.
HistoryFile read_history_file(const std::filesystem::path& path);

}  // namespace meshgrad
