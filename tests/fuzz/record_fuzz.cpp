// SPDX-License-Identifier: Apache-2.0
// TFRecord framing: any file as it is, and once more with the CRCs of its first record fixed, so that the
// code after the checks is reached, too.
#include <meshgrad/train/data/crc32c.h>
#include <meshgrad/train/data/tfrecord.h>

#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

void read_all(std::span<const std::byte> file) {
  if (count_records(file) < 0) __builtin_trap();
  fuzz::expect_value_or_error([&] {
    size_t offset = 0;
    while (offset < file.size()) {
      const size_t before = offset;
      const auto record = read_record(file, offset, "fuzz.tfrecord");
      if (offset <= before || offset > file.size() || record.size() > offset - before) __builtin_trap();
    }
  });
}

std::vector<std::byte> with_valid_crcs(std::span<const std::byte> file) {
  std::vector<std::byte> copy(file.begin(), file.end());
  const uint32_t length_crc = masked_crc32c(std::span(copy).first(8));
  std::memcpy(copy.data() + 8, &length_crc, sizeof length_crc);
  uint64_t length = 0;
  std::memcpy(&length, copy.data(), sizeof length);
  if (length <= copy.size() - 16) {
    const uint32_t data_crc = masked_crc32c(std::span(copy).subspan(12, length));
    std::memcpy(copy.data() + 12 + length, &data_crc, sizeof data_crc);
  }
  return copy;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::bytes_of(data, size);
  read_all(file);
  if (size >= 16) read_all(with_valid_crcs(file));
  return 0;
}
