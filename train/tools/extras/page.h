// SPDX-License-Identifier: Apache-2.0
// Pages that a browser opens without a network: one file with its style, its script and its data. What a page
// says and how it looks is written in train/tools/extras/page; the build puts style and script into each
// page.
#pragma once
#include <string>
#include <string_view>

namespace meshgrad {

extern const std::string_view kMemoryPage;  ///< train/tools/extras/page/memory.html
extern const std::string_view kReportPage;  ///< train/tools/extras/page/report.html
extern const std::string_view kCheckPage;   ///< train/tools/extras/page/check.html

/// `page` with `json`, which must be valid JSON in UTF-8, in its element #data. No string in it can end that
/// element or start another.
std::string make_page(std::string_view page, std::string_view json);

}  // namespace meshgrad
