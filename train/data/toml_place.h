// SPDX-License-Identifier: Apache-2.0
// Where a statement of a TOML text stands, whatever library parsed it.
#pragma once
#include <cstdint>
#include <string>

namespace meshgrad {

/// A statement is a header, or a key with its value, which may span lines.
struct SyntaxPlace {
  int64_t line = 1;  ///< the first of the statement
  std::string
      excerpt;  ///< that line, with a caret below its value (or its first character), each after a newline
};

/// The place of the statement that holds line `line` of `text`, both from 1. Versions of the TOML library
/// name different lines and columns of a faulty statement; this is the same for all.
SyntaxPlace find_statement(const std::string& text, int64_t line);

}  // namespace meshgrad
