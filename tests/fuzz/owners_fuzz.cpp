// SPDX-License-Identifier: Apache-2.0
// Partitions from outside: any bytes give ranks from 0 or a DataError.
#include <meshgrad/train/data/owners_file.h>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_value_or_error([&] {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const int32_t owner : parse_owners(text, "fuzz.part"))
      if (owner < 0) __builtin_trap();
  });
  return 0;
}
