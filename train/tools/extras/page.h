// SPDX-License-Identifier: Apache-2.0
// Pages that a browser opens without a network: one file with its style, its script and its data. What a page
// says and how it looks is written in train/tools/extras/page; the build puts style and script into each
// page.
#pragma once
#include <meshgrad/train/data/atomic_file.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

extern const std::string_view kMemoryPage;  ///< train/tools/extras/page/memory.html
extern const std::string_view kReportPage;  ///< train/tools/extras/page/report.html
extern const std::string_view kCheckPage;   ///< train/tools/extras/page/check.html

/// `page` with `json`, which must be valid JSON in UTF-8, in its element #data. No string in it can end that
/// element or start another.
std::string make_page(std::string_view page, std::string_view json);

/// A page to be written, for check_output: it replaces a page that make_page made, known by its generator,
/// and nothing else.
OutputFile page_output(std::string option, std::filesystem::path path,
                       std::vector<std::filesystem::path> taken = {});

}  // namespace meshgrad
