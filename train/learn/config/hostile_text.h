// SPDX-License-Identifier: Apache-2.0
// Text that the TOML library must not see.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace meshgrad {

struct HostileText {
  int64_t line = 0;
  std::string message;  ///< "a zero byte"
};

/// The library parses recursively, computes 0b... in a signed integer, takes quadratic time over a list
/// and reads out of bounds if a literal string is not UTF-8. Such text is refused before it is parsed.
/// Returns the fault and its line.
std::optional<HostileText> find_hostile(const std::string& text);

}  // namespace meshgrad
