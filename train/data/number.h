// SPDX-License-Identifier: Apache-2.0
// Numbers of text, read alike under every C and C++ locale.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace meshgrad {

/// The number that all of `text` spells: decimal, hexadecimal with "0x" (as "%a" prints), inf or nan, with an
/// optional sign. Nothing for other text, and for numbers beyond a double's range.
std::optional<double> parse_number(std::string_view text);

/// The same bits as hexadecimal text, "0x1.8p+1", that parse_number reads back.
std::string exact_text(double value);

}  // namespace meshgrad
