// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and 16-bit floating types that need no CUDA header.
#pragma once
#include <meshgrad/engine/error.h>

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class DType : uint8_t { f16, bf16, f32, f64, i32, i64, u8 };

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
  }
  return 0;
}

/// "f32", "i64", ... as written in configuration files.
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f16", "bf16", "f32", "f64", "i32", "i64", "u8"};
  return kNames[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

/// bfloat16: the upper half of an IEEE binary32; conversion rounds to nearest even.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<uint16_t>((word >> 16) | 0x40u)
               : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE binary16; conversion rounds to nearest even and overflows to infinity at 65520.
struct half {
  uint16_t bits = 0;
  half() = default;
  explicit half(float value);
  explicit operator float() const;
};

/// The DType of a C++ type.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, half>) return DType::f16;
  if constexpr (std::is_base_of_v<bfloat16, T>) return DType::bf16;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
}

/// The accumulation type for values of storage type T: double for double, float for everything else.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The accumulation dtype for values stored as `dtype`. Biases, norm parameters, master weights, weight
/// gradients and targets have this dtype too.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Calls `body.template operator()<T>()` with the type of f32, f16 or bf16, the storage types on GPUs. Throws
/// InvalidArgument for another dtype.
template <class Body>
decltype(auto) dispatch_gpu_storage(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f16:
      return body.template operator()<half>();
    case DType::bf16:
      return body.template operator()<bfloat16>();
    default:
      throw invalid_argument("dtype", "storage in f32, f16 or bf16", name_of(dtype),
                             "set precision = \"f32\", \"f16\" or \"bf16\"");
  }
}

/// Like dispatch_gpu_storage, and f64: the storage types on CPUs, where f64 serves gradient checks.
template <class Body>
decltype(auto) dispatch_cpu_storage(DType dtype, Body&& body) {
  if (dtype == DType::f64) return body.template operator()<double>();
  return dispatch_gpu_storage(dtype, body);
}

/// Calls `body.template operator()<T>()` with f32 or f64, the types of master weights, weight gradients and
/// host data. Throws InvalidArgument for another dtype.
template <class Body>
decltype(auto) dispatch_storage(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f64:
      return body.template operator()<double>();
    default:
      throw invalid_argument("dtype", "storage in f32 or f64", name_of(dtype), "set precision = \"f32\"");
  }
}

}  // namespace meshgrad
#pragma GCC visibility pop
