// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include <meshgrad/train/data/crc32c.h>

namespace meshgrad {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

// kTable[k][b]: the CRC of byte b followed by k zero bytes, so that 8 bytes are folded at once.
constexpr Table make_table() {
  Table table{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    table[0][b] = crc;
  }
  for (size_t k = 1; k < table.size(); ++k) {
    for (size_t b = 0; b < 256; ++b)
      table[k][b] = (table[k - 1][b] >> 8U) ^ table[0][table[k - 1][b] & 0xffU];
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffffU;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTable[7 - k][(word >> (8 * k)) & 0xffU];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8U) ^ kTable[0][(crc ^ static_cast<uint32_t>(*at)) & 0xffU];
  return ~crc;
}

uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

}  // namespace meshgrad
