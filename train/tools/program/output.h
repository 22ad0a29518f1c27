// SPDX-License-Identifier: Apache-2.0
// Where commands print: results to stdout, everything else to stderr.
#pragma once
#include <meshgrad/engine/runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace meshgrad::cli {

/// Writes a result to stdout. Throws DataError if writing fails, for example on a full disk.
void print_result(std::string_view text);

/// The columns of text on stdout: COLUMNS, else the terminal's, else 80.
size_t text_width();

/// As print_result, with lines wrapped to text_width().
void print_text(std::string_view text);

/// Writes `meshgrad: error: text` to stderr, with "error:" in red if `color`.
void print_error(std::string_view text, bool color);

/// Writes a line to stderr that is neither a result nor an error.
void print_note(std::string_view text);

/// A line of a Runtime's log, which begins with "warning: " if it is one.
std::string log_line(LogLevel level, std::string_view text);
/// The log of a command's Runtime: notes, none of them if `quiet`.
LogSink log_of(bool quiet);

/// Writes a note "UNIT 7 of 20" every two seconds.
std::function<void(int64_t done, int64_t total)> progress_lines(std::string unit);

/// Whether stderr should be coloured: it is a terminal, TERM is not "dumb" and NO_COLOR is not set.
bool stderr_takes_color();

}  // namespace meshgrad::cli
