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

/// Near the beginning of each file of a prediction; in VTU, PVD and SVG files as a comment, kMark.
inline constexpr std::string_view kMarkWords = "written by meshgrad";
inline constexpr std::string_view kMark = "<!-- written by meshgrad -->\n";
bool has_mark(const std::filesystem::path& file);

/// The opening tag of an SVG and the mark; in pixels. Text is drawn in the viewer's sans-serif font.
std::string svg_start(double width, double height);

}  // namespace meshgrad
