// SPDX-License-Identifier: Apache-2.0
// Where commands print: results to stdout, everything else to stderr.
#pragma once
#include <string>
#include <string_view>

namespace meshgrad::cli {

/// Writes a result to stdout. Throws DataError if writing fails, for example on a full disk.
void print_result(std::string_view text);

/// Writes `meshgrad: error: text` to stderr, with "error:" in red if `color`.
void print_error(std::string_view text, bool color);

/// Writes a line to stderr that is neither a result nor an error.
void print_note(std::string_view text);

/// Whether to use colour on stderr: it is a terminal, TERM is not "dumb" and NO_COLOR is not set.
bool stderr_takes_color();

}  // namespace meshgrad::cli
