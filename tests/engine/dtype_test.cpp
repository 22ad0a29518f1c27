// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/dtype.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace meshgrad {
namespace {

half half_of(int bits) {
  half value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}
bfloat16 bfloat16_of(int bits) {
  bfloat16 value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

/// binary16 by its definition.
double half_value(int bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_CASE("half: all 65536 bit patterns survive conversion") {
  int wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<float>(half_of(bits));
    const half back(value);
    const bool special = ((bits >> 10) & 31) == 31;
    const bool nan = special && (bits & 1023) != 0;
    if (nan) {
      wrong += std::isnan(value) && std::isnan(static_cast<float>(back)) ? 0 : 1;
    } else {
      const bool right = special ? std::isinf(value) && std::signbit(value) == ((bits & 0x8000) != 0)
                                 : static_cast<double>(value) == half_value(bits);
      wrong += right && back.bits == bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16: all 65536 bit patterns survive conversion") {
  int wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<float>(bfloat16_of(bits));
    const bfloat16 back(value);
    if (std::isnan(value)) {
      wrong += std::isnan(static_cast<float>(back)) ? 0 : 1;
    } else {
      wrong +=
          std::bit_cast<uint32_t>(value) == static_cast<uint32_t>(bits) << 16 && back.bits == bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

/// Between each two neighbours: the midpoint goes to the even one, and a float to either side of it to the
/// nearer.
template <class Small>
int wrong_roundings(int largest_finite, Small (*of)(int), float overflow_midpoint) {
  int wrong = 0;
  for (int bits = 0; bits <= largest_finite; ++bits) {
    const auto low = static_cast<double>(static_cast<float>(of(bits)));
    const double high = bits == largest_finite ? 0.0 : static_cast<double>(static_cast<float>(of(bits + 1)));
    const float middle =
        bits == largest_finite ? overflow_midpoint : static_cast<float>(0.5 * low + 0.5 * high);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    wrong += Small(middle).bits == even ? 0 : 1;
    wrong += Small(std::nextafter(middle, 0.0f)).bits == bits ? 0 : 1;
    wrong += Small(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits == bits + 1 ? 0 : 1;
    wrong += Small(-middle).bits == (even | 0x8000) ? 0 : 1;
  }
  return wrong;
}

TEST_CASE("half and bfloat16 round to nearest even") {
  CHECK(wrong_roundings<half>(0x7bff, half_of, 65520.0f) == 0);
  CHECK(wrong_roundings<bfloat16>(0x7f7f, bfloat16_of, std::bit_cast<float>(0x7f7f8000u)) == 0);
  CHECK(half(1e30f).bits == 0x7c00);
  CHECK(half(-1e30f).bits == 0xfc00);
  CHECK(half(std::numeric_limits<float>::infinity()).bits == 0x7c00);
  CHECK(half(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(half(-0.0f).bits == 0x8000);
  CHECK(bfloat16(-0.0f).bits == 0x8000);
  CHECK(std::isnan(static_cast<float>(half(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload lies in the half that is cut off must not become infinity.
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(half(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("dtypes have names, sizes and types that agree") {
  std::set<std::string> names;
  for (const DType dtype :
       {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i32, DType::i64, DType::u8}) {
    names.insert(std::string(name_of(dtype)));
  }
  CHECK(names == std::set<std::string>{"f16", "bf16", "f32", "f64", "i32", "i64", "u8"});
  CHECK(size_of(dtype_of<half>()) == sizeof(half));
  CHECK(size_of(dtype_of<bfloat16>()) == sizeof(bfloat16));
  CHECK(size_of(dtype_of<float>()) == 4);
  CHECK(size_of(dtype_of<double>()) == 8);
  CHECK(size_of(dtype_of<int32_t>()) == 4);
  CHECK(size_of(dtype_of<int64_t>()) == 8);
  CHECK(size_of(dtype_of<uint8_t>()) == 1);
  CHECK(name_of(dtype_of<float>()) == "f32");
  CHECK(name_of(dtype_of<int64_t>()) == "i64");
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::u8));
}

TEST_CASE("dispatch_cpu_storage refuses types without kernels") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    CHECK(dispatch_cpu_storage(dtype, []<class T>() { return dtype_of<T>(); }) == dtype);
  }
  CHECK_THROWS_AS(dispatch_cpu_storage(DType::u8, []<class T>() { return sizeof(T); }), InvalidArgument);
}

TEST_CASE("dispatch_storage refuses types without kernels") {
  CHECK(dispatch_storage(DType::f32, []<class T>() { return sizeof(T); }) == 4);
  CHECK(dispatch_storage(DType::f64, []<class T>() { return sizeof(T); }) == 8);
  CHECK_THROWS_AS(dispatch_storage(DType::i32, []<class T>() { return sizeof(T); }), InvalidArgument);
}

}  // namespace
}  // namespace meshgrad
