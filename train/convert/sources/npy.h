// SPDX-License-Identifier: Apache-2.0
// One NumPy array file (.npy, format versions 1 to 3).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// A parsed array; `data` is a span into the file, product(shape) numbers of `bytes` bytes.
struct NpyArray {
  char kind = 'f';  ///< 'f', 'i', 'u' or 'b', as NumPy names them
  int bytes = 4;    ///< of one number; numbers are little endian
  bool fortran_order = false;
  std::vector<int64_t> shape;  ///< empty for one number
  std::span<const std::byte> data;

  int64_t size() const;
};

/// Throws DataError with `where` for anything else than a whole array of little-endian floats (of 4 or 8
/// bytes), integers or booleans. Defined for any bytes.
NpyArray parse_npy(std::span<const std::byte> file, std::string_view where);

/// The numbers in row-major order.
std::vector<float> to_floats(const NpyArray& array);
std::vector<double> to_doubles(const NpyArray& array);
/// Likewise, as the narrowest of f32, i32 and i64 that holds every number of the array's type; f8 becomes
/// f32. Throws DataError with `where` for unsigned numbers of 8 bytes that i64 does not hold.
FieldValues to_field_values(const NpyArray& array, std::string_view where);
/// Numbers outside 0..2^31 - 1 become -1. Throws DataError with `where` for floats.
std::vector<int32_t> to_indices(const NpyArray& array, std::string_view where);

}  // namespace meshgrad
