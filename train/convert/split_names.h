// SPDX-License-Identifier: Apache-2.0
// Which split the name of a file or a folder says.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshgrad {

/// "train", "valid" or "test"; empty when the name says none. A name says a split when it is one of train,
/// training; valid, val, validation; test, testing, in any case, or begins or ends with one of them and a
/// separator: "a_train", "Test-3", "run.val".
std::string split_of_name(std::string_view name);

/// Whether a folder of this name contains the files of one split: it is exactly that word.
bool is_split_folder(std::string_view name);

/// "a, b, c and 7 more" of at most `most` items.
std::string abridged(const std::vector<std::string>& items, size_t most = 10);

/// "c.npz -> ?, a_train.npz -> train", those without a split first, relative to `root`; abridged.
std::string splits_as_read(const std::filesystem::path& root,
                           const std::vector<std::pair<std::filesystem::path, std::string>>& files);

}  // namespace meshgrad
