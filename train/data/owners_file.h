// SPDX-License-Identifier: Apache-2.0
// A partition from outside: the rank of each node, as METIS's programs write it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace meshgrad {

/// One integer a line, from 0; `file` is for errors. Throws DataError naming the line.
std::vector<int32_t> parse_owners(std::string_view text, std::string_view file);
/// The same of a file.
std::vector<int32_t> read_owners(const std::filesystem::path& path);

}  // namespace meshgrad
