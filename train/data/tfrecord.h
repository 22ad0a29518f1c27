// SPDX-License-Identifier: Apache-2.0
// TFRecord framing: u64 length, u32 masked CRC-32C of the length, the data, u32 masked CRC-32C of the data;
// little endian. TensorBoard's event files use the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// The record that starts at `offset`; moves `offset` past it. `where` names it in errors. Throws DataError
/// when it is cut short or one of its two CRCs is wrong. Defined for any bytes; `offset` must be within them.
std::span<const std::byte> read_record(std::span<const std::byte> file, size_t& offset,
                                       std::string_view where);

/// How many records the lengths in the file promise; a last one that is cut short counts. Reads only lengths.
int64_t count_records(std::span<const std::byte> file);

/// Appends one framed record to `to`.
void write_record(std::vector<std::byte>& to, std::span<const std::byte> data);

}  // namespace meshgrad
