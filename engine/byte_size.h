// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes as people write them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshgrad {

/// Bytes of "8GiB", "1.5 GB", "4096B", or of "" and "0" (none); nothing for any other text.
std::optional<int64_t> parse_size(std::string_view text);

/// A size as text that `parse_size` reads back exactly; "" for 0.
std::string format_size(int64_t bytes);

}  // namespace meshgrad
