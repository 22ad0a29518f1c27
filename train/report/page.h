// SPDX-License-Identifier: Apache-2.0
// Pages that a browser opens without a network: one file with its style, its script and its data. What a page
// says and how it looks is written in train/report/page; the build puts style and script into each page.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace meshgrad {

extern const std::string_view kMemoryPage;  ///< train/report/page/memory.html

/// `page` with `data` as JSON in its element #data. No string in `data` can end that element or start
/// another, and bytes that are not UTF-8 become U+FFFD.
std::string make_page(std::string_view page, const nlohmann::json& data);

}  // namespace meshgrad
