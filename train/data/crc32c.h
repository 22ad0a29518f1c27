// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, as in RFC 3720) and the masked form that TFRecord
// stores.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace meshgrad {

uint32_t crc32c(std::span<const std::byte> bytes);

/// Rotated right by 15 bits plus a constant, so that a CRC over data that contains CRCs keeps its strength.
uint32_t masked_crc32c(std::span<const std::byte> bytes);

}  // namespace meshgrad
