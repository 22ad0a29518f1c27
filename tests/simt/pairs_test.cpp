// SPDX-License-Identifier: Apache-2.0
// Operations on pairs of 16-bit values that are done with integers, for all values.
#include <doctest/doctest.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {
namespace {

/// Values whose bit is wrong, whichever half they are in and whatever the other half and the place are.
template <class T>
int wrong_bits() {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    T x;
    x.bits = static_cast<uint16_t>(bits);
    const float value = to_float(x);
    const uint32_t nonzero = value == 0.0f ? 0 : 1;  // of a NaN, too
    for (int i = 0; i < 16; ++i) {
      for (const uint32_t other : {0x0000u, 0x8000u, 0x7fffu, 0xffffu, 0x0001u}) {
        const uint32_t others = (other & 0x7fffu) == 0 ? 0 : 1;
        wrong += nonzero_halves<T>(bits | other << 16, i) != (nonzero << i | others << (16 + i));
        wrong += nonzero_halves<T>(bits << 16 | other, i) != (nonzero << (16 + i) | others << i);
      }
    }
  }
  return wrong;
}

TEST_CASE("nonzero_halves compares every 16-bit value with 0") {
  CHECK(wrong_bits<half>() == 0);
  CHECK(wrong_bits<bfloat16>() == 0);
}

}  // namespace
}  // namespace meshgrad::cuda
