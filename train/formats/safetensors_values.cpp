// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/formats/safetensors.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace meshgrad {
namespace {

float widen_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return std::bit_cast<float>((std::uint32_t{bits} & 0x8000U) << 16 | 0x7f800000U |
                                static_cast<std::uint32_t>(fraction) << 13);
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

float widen_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Reads values of type Stored from any address, converts each.
template <class Stored, class To, class Convert>
std::vector<To> convert_all(const SafetensorsTensor& tensor, Convert convert) {
  std::vector<To> result(tensor.elements());
  for (std::size_t i = 0; i < result.size(); ++i) {
    Stored value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(Stored), sizeof(Stored));
    result[i] = convert(value);
  }
  return result;
}

template <class To>
std::vector<To> to_numbers(const SafetensorsTensor& tensor) {
  const auto cast = [](auto value) { return static_cast<To>(value); };
  switch (tensor.dtype) {
    case SafetensorsDtype::f64:
      return convert_all<double, To>(tensor, cast);
    case SafetensorsDtype::f32:
      return convert_all<float, To>(tensor, cast);
    case SafetensorsDtype::f16:
      return convert_all<std::uint16_t, To>(tensor, widen_half);
    case SafetensorsDtype::bf16:
      return convert_all<std::uint16_t, To>(tensor, widen_bfloat16);
    case SafetensorsDtype::i64:
      return convert_all<std::int64_t, To>(tensor, cast);
    case SafetensorsDtype::i32:
      return convert_all<std::int32_t, To>(tensor, cast);
    case SafetensorsDtype::i16:
      return convert_all<std::int16_t, To>(tensor, cast);
    case SafetensorsDtype::i8:
      return convert_all<std::int8_t, To>(tensor, cast);
    case SafetensorsDtype::u8:
      return convert_all<std::uint8_t, To>(tensor, cast);
    case SafetensorsDtype::boolean:
      return convert_all<std::uint8_t, To>(tensor, [](std::uint8_t value) { return To(value != 0); });
  }
  throw internal_error("a safetensors dtype without a conversion");
}

}  // namespace

std::vector<double> to_f64(const SafetensorsTensor& tensor) { return to_numbers<double>(tensor); }

std::vector<float> to_f32(const SafetensorsTensor& tensor) { return to_numbers<float>(tensor); }

std::vector<std::int64_t> to_i64(const SafetensorsTensor& tensor) {
  if (tensor.dtype <= SafetensorsDtype::bf16) {
    throw data_error(fmt::format("tensor \"{}\"", tensor.name), "an integer dtype", dtype_name(tensor.dtype),
                     "save it as I64 or I32");
  }
  return to_numbers<std::int64_t>(tensor);
}

}  // namespace meshgrad
