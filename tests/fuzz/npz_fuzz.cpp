// SPDX-License-Identifier: Apache-2.0
// NPZ files, and the single arrays in them, which a fuzzer would rarely get past the zip's CRCs.
#include <meshgrad/train/convert/sources/npy.h>
#include <meshgrad/train/convert/sources/npz_source.h>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::bytes_of(data, size);
  fuzz::expect_value_or_error([&] { validate(trajectory_of_npz(file, "fuzz.npz")); });
  fuzz::expect_value_or_error([&] {
    const NpyArray array = parse_npy(file, "fuzz.npz: array");
    if (array.size() < 0 || array.data.size() > size) __builtin_trap();
    if (to_floats(array).size() != static_cast<size_t>(array.size())) __builtin_trap();
    to_indices(array, "fuzz.npz: array");
    to_field_values(array, "fuzz.npz: array");
  });
  return 0;
}
