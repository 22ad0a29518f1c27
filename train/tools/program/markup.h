// SPDX-License-Identifier: Apache-2.0
// What writers of SVG and XML share.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace meshgrad {

/// `text`, printable, with &, <, > and " escaped, for the content and for quoted attributes of XML and HTML.
std::string escape_markup(std::string_view text);

/// RFC 4648, with padding.
std::string base64(std::span<const std::byte> bytes);

/// A comment near the beginning of each VTU, PVD and SVG file that is written here.
inline constexpr std::string_view kMark = "<!-- written by meshgrad -->\n";
bool has_mark(const std::filesystem::path& file);

/// The opening tag of an SVG and the mark; in pixels. Text is drawn in the viewer's sans-serif font.
std::string svg_start(double width, double height);

}  // namespace meshgrad
