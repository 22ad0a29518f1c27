// SPDX-License-Identifier: Apache-2.0
// What every fuzz target shares. A target feeds the bytes that libFuzzer makes to one parser; meshgrad's own
// errors are the right answer to most of them, anything else that escapes is a finding.
#pragma once
#include <meshgrad/engine/error.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace meshgrad::fuzz {

/// Runs `parse`; an Error must name where it happened and say something, an InternalError is a bug.
template <class Parse>
void expect_value_or_error(Parse&& parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal || error.what()[0] == '\0') __builtin_trap();
  }
}

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

}  // namespace meshgrad::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
