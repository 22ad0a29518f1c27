// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/safetensors.h>

#include <cstring>

namespace meshgrad {
namespace {

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
  const auto widen = [](auto value) { return static_cast<To>(static_cast<float>(value)); };
  switch (tensor.dtype) {
    case SafetensorsDtype::f64:
      return convert_all<double, To>(tensor, cast);
    case SafetensorsDtype::f32:
      return convert_all<float, To>(tensor, cast);
    case SafetensorsDtype::f16:
      return convert_all<half, To>(tensor, widen);
    case SafetensorsDtype::bf16:
      return convert_all<bfloat16, To>(tensor, widen);
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
