// SPDX-License-Identifier: Apache-2.0
// A text file that says which split each file or trajectory belongs to.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

/// A file that a list may name.
struct ListableFile {
  std::string path;  ///< relative to the input, with "/"
  int64_t records = 0;
};

/// The splits of all records, file after file: "train", "valid" or "test"; empty for unused ones.
///
/// Lines are "SPLIT: NAME, NAME, ..."; a split may have several, "#" begins a comment. SPLIT is train, valid
/// or test (or a word that means one of them, is_split_folder()), or unused. NAME is a file's path or, where
/// no other file has it, its name; with ":3" or ":0-7" only records of it, counted from 0. Names with a comma
/// or "#" stand in double quotes. A byte order mark (UTF-8) is skipped. Throws DataError
/// for other lines, and one for all names that are no data and for all records in no split or in several.
std::vector<std::string> splits_of_list(const std::filesystem::path& list,
                                        const std::vector<ListableFile>& files);
/// Likewise of a list's content; `list` names it in errors. Defined for any bytes.
std::vector<std::string> parse_split_list(std::string content, const std::string& list,
                                          const std::vector<ListableFile>& files);

}  // namespace meshgrad
