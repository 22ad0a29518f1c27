// SPDX-License-Identifier: Apache-2.0
// Arrays of a host application, which meshgrad borrows: in the host's memory, or with a Device in that of the
// runtime's GPU. The function that takes one says for how long, and throws InvalidArgument, or DataError of a
// mesh, when its size, its values or its device do not fit.
//
// Arrays on a GPU are read and written on the runtime's stream: what wrote them ran on that stream
// (RuntimeOptions::stream), or has ended. On a stream of the Runtime's own a call returns when it is done
// with them. A MeshPredictor's steps use them where they are; other calls copy them to the host, or back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Where the numbers of an array with gaps are: number c of row i is i * row bytes from the first one, and
/// where c > 0 second + (c - 1) * further bytes more.
struct Strides {
  size_t columns = 0;  ///< numbers of a row; 0: rows follow one another without gaps
  ptrdiff_t row = 0, second = 0, further = 0;

  bool gaps(size_t number) const {
    const auto bytes = static_cast<ptrdiff_t>(number);
    return columns > 0 && (row != static_cast<ptrdiff_t>(columns) * bytes ||
                           (columns > 1 && second != bytes) || (columns > 2 && further != bytes));
  }
  template <class T>
  T* at(T* first, size_t i) const {
    const size_t c = i % columns;
    const ptrdiff_t bytes = static_cast<ptrdiff_t>(i / columns) * row +
                            (c == 0 ? 0 : second + static_cast<ptrdiff_t>(c - 1) * further);
    return reinterpret_cast<T*>(reinterpret_cast<intptr_t>(first) + bytes);
  }
};

/// An array with gaps in the host's memory, for Numbers and WritableNumbers.
template <class T>
struct StridedArray {
  T* first = nullptr;
  size_t rows = 0;
  Strides strides;
};

/// `rows` rows of `columns` numbers, each row_bytes after the one before, as in an array of structures:
/// strided_rows(&nodes[0].velocity[0], nodes.size(), 2, sizeof nodes[0]).
template <class T>
StridedArray<T> strided_rows(T* first, size_t rows, size_t columns, size_t row_bytes) {
  constexpr ptrdiff_t kNumber = sizeof(T);
  return {first, rows, {columns, static_cast<ptrdiff_t>(row_bytes), kNumber, kNumber}};
}

/// Rows of two or three components that are arrays of their own: separate_components(u, v). Throws
/// InvalidArgument for arrays of different sizes.
template <std::ranges::contiguous_range First, class... Others>
requires(sizeof...(Others) == 1 || sizeof...(Others) == 2) auto separate_components(First&& first,
                                                                                    Others&&... others) {
  using T = std::remove_reference_t<std::ranges::range_reference_t<First>>;
  const size_t rows = std::ranges::size(first);
  T* at[] = {std::ranges::data(first), std::ranges::data(others)...};
  for (const size_t other : {std::ranges::size(others)...}) {
    if (other != rows)
      throw invalid_argument("separate_components", "components of the same size", std::to_string(other),
                             "give one number a row, as the first one has: " + std::to_string(rows));
  }
  const auto bytes = [&](size_t c) {
    return reinterpret_cast<intptr_t>(at[c]) - reinterpret_cast<intptr_t>(at[c - 1]);
  };
  constexpr size_t kColumns = 1 + sizeof...(Others);
  return StridedArray<T>{at[0], rows, {kColumns, sizeof(T), bytes(1), bytes(kColumns - 1)}};
}

/// f32 or f64 numbers to read, row by row. f32 numbers without gaps are read where they are; others are
/// rounded to f32, or gathered, each time they are read.
class Numbers {
 public:
  Numbers() = default;
  Numbers(std::span<const float> values, Device device = {})
      : data_(values.data()), size_(values.size()), device_(device) {}
  Numbers(std::span<const double> values, Device device = {})
      : data_(values.data()), size_(values.size()), wide_(true), device_(device) {}
  template <std::ranges::contiguous_range Values>
  requires std::is_same_v < std::ranges::range_value_t<Values>,
  float > || std::is_same_v<std::ranges::range_value_t<Values>, double> Numbers(const Values& values)
      : Numbers(std::span<const std::ranges::range_value_t<Values>>(std::ranges::data(values),
                                                                    std::ranges::size(values))) {}
  template <class T>
  requires std::is_same_v < std::remove_const_t<T>,
  float > || std::is_same_v<std::remove_const_t<T>, double> Numbers(const StridedArray<T>& array)
      : data_(array.first),
  size_(array.rows * array.strides.columns), wide_(sizeof(T) == sizeof(double)) {
    if (array.strides.gaps(sizeof(T))) strides_ = array.strides;
  }

  size_t size() const { return size_; }  ///< numbers, of all rows
  bool wide() const { return wide_; }    ///< f64
  bool has_gaps() const { return strides_.columns > 0; }
  Device device() const { return device_; }
  const void* data() const { return data_; }
  /// The numbers if they are f32 without gaps, else nothing; doubles() likewise. Not copied. Read only on the
  /// host.
  std::span<const float> floats() const {
    return {static_cast<const float*>(data_), wide_ || has_gaps() ? 0 : size_};
  }
  std::span<const double> doubles() const {
    return {static_cast<const double*>(data_), wide_ && !has_gaps() ? size_ : 0};
  }
  double operator[](size_t i) const {
    if (has_gaps()) return wide_ ? strided<double>(i) : static_cast<double>(strided<float>(i));
    return wide_ ? doubles()[i] : static_cast<double>(floats()[i]);
  }

 private:
  template <class T>
  T strided(size_t i) const {
    T value;
    std::memcpy(&value, strides_.at(data_, i), sizeof value);
    return value;
  }
  const void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
  Device device_;
  Strides strides_;
};

/// Node numbers and types to read, of 32 or 64 bits. Those of 64 bits are copied to 32 when they are read;
/// one that does not fit is refused with DataError.
class Integers {
 public:
  Integers() = default;
  Integers(std::span<const int32_t> values, Device device = {})
      : data_(values.data()), size_(values.size()), device_(device) {}
  Integers(std::span<const int64_t> values, Device device = {})
      : data_(values.data()), size_(values.size()), wide_(true), device_(device) {}
  template <std::ranges::contiguous_range Values>
  requires std::is_same_v<std::ranges::range_value_t<Values>, int32_t> ||
      std::is_same_v<std::ranges::range_value_t<Values>, int64_t>
      Integers(const Values& values)
      : Integers(std::span<const std::ranges::range_value_t<Values>>(std::ranges::data(values),
                                                                     std::ranges::size(values))) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool wide() const { return wide_; }  ///< of 64 bits
  Device device() const { return device_; }
  const void* data() const { return data_; }
  /// Those of 32 bits, else nothing. Read only on the host.
  std::span<const int32_t> values() const { return {static_cast<const int32_t*>(data_), wide_ ? 0 : size_}; }
  std::span<const int64_t> wide_values() const {
    return {static_cast<const int64_t*>(data_), wide_ ? size_ : 0};
  }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
  Device device_;
};

/// f32 or f64 numbers to write, row by row. Results are computed in f32: f64 receives the same
/// values, without more digits.
class WritableNumbers {
 public:
  WritableNumbers(std::span<float> values, Device device = {})
      : data_(values.data()), size_(values.size()), device_(device) {}
  WritableNumbers(std::span<double> values, Device device = {})
      : data_(values.data()), size_(values.size()), wide_(true), device_(device) {}
  template <std::ranges::contiguous_range Values>
  requires std::is_same_v < std::ranges::range_reference_t<Values>,
  float& > || std::is_same_v<std::ranges::range_reference_t<Values>, double&> WritableNumbers(Values& values)
      : WritableNumbers(std::span(std::ranges::data(values), std::ranges::size(values))) {}
  template <class T>
  requires std::is_same_v<T, float> || std::is_same_v<T, double> WritableNumbers(const StridedArray<T>& array)
      : data_(array.first), size_(array.rows * array.strides.columns), wide_(sizeof(T) == sizeof(double)) {
    if (array.strides.gaps(sizeof(T))) strides_ = array.strides;
  }

  size_t size() const { return size_; }
  bool wide() const { return wide_; }
  bool has_gaps() const { return strides_.columns > 0; }
  Device device() const { return device_; }
  void* data() const { return data_; }
  /// Only on the host.
  void set(size_t i, double value) {
    const auto narrow = static_cast<float>(value);
    if (has_gaps()) {
      std::memcpy(strides_.at(data_, i), wide_ ? static_cast<const void*>(&value) : &narrow,
                  wide_ ? sizeof value : sizeof narrow);
    } else if (wide_) {
      static_cast<double*>(data_)[i] = value;
    } else {
      static_cast<float*>(data_)[i] = narrow;
    }
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
  Device device_;
  Strides strides_;
};

/// A mesh of the host application, by its cells or by its edges: one of the two. Node numbers start at 0. A
/// cell of one node alone is refused; edges from a node to itself are left out.
struct MeshArrays {
  Numbers positions;           ///< [nodes, dim], of the checkpoint's or configuration's dim
  Integers cells{};            ///< [cells, nodes_per_cell]
  int nodes_per_cell = 0;      ///< 3: triangles; 4: quads in 2-D, tetrahedra in 3-D; 8: hexahedra, as in VTK
  Integers first{}, second{};  ///< where there are no cells: edges, once or both ways
  Integers node_type{};        ///< [nodes]; empty: all 0

  /// Whether this is one rank's part of a mesh that a solver has partitioned. Then the arrays above hold the
  /// nodes that the rank owns, then its ghost nodes, and every cell or edge of an owned node. A rank may have
  /// none of them.
  bool in_parts = false;
  Integers ghost_owner{};   ///< [ghosts]: the rank that owns the node
  Integers ghost_number{};  ///< [ghosts]: its row among the nodes of that rank
};

}  // namespace meshgrad
#pragma GCC visibility pop
