// SPDX-License-Identifier: Apache-2.0
// What meshgrad check found, as a page for a browser.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <filesystem>
#include <string_view>

namespace meshgrad {

/// Writes the page, atomically: `report` is the JSON of `meshgrad check --json`, in UTF-8. The page adds a
/// picture of the first mesh of the training split by node type, of at most 20000 nodes; in 3-D, along z.
void write_check_page(const std::filesystem::path& path, const Dataset& dataset, std::string_view report);

}  // namespace meshgrad
