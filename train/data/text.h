// SPDX-License-Identifier: Apache-2.0
// Text as people read it: counts with their noun, and lines that fit a terminal.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// "1 step", "3 steps", "2 meshes"; `plural` empty: the singular with an s.
std::string counted(int64_t count, std::string_view singular, std::string_view plural = {});

/// "a", "a and b", "a, b and c".
std::string listed(const std::vector<std::string>& names);

/// `text` with its control characters written as "\x1b", but for tabs and line breaks: so that no name in a
/// file gives commands to a terminal, or makes XML invalid.
std::string printable(std::string_view text);

/// The width that text is written for where no terminal says its own.
inline constexpr size_t kTextWidth = 80;

/// `text` broken at blanks into lines of at most `width` columns of UTF-8; a longer word has a line of its
/// own. The first line starts with `first`, further ones with `further`. Ends without a line break.
std::string wrapped(std::string_view text, size_t width, std::string_view first = {},
                    std::string_view further = {});

/// Lines of `text` that are wider than `width`, wrapped: below the last column where they have columns (two
/// blanks or more between words), else by two more than their own indent.
std::string fitted(std::string_view text, size_t width);

}  // namespace meshgrad
