// SPDX-License-Identifier: Apache-2.0
// Arrays of a host application, which meshgrad borrows: in the host's memory, or with a Device in that of the
// runtime's GPU. The function that takes one says for how long, and throws InvalidArgument, or DataError of a
// mesh, when its size, its values or its device do not fit.
//
// Arrays on a GPU are copied to the host, or back, once each time that one is read or written, on the
// runtime's stream: what wrote them ran on that stream (RuntimeOptions::stream), or has ended.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

#include <meshgrad/engine/device.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// f32 or f64 numbers to read, row by row without gaps. f32 numbers are read where they are; f64 numbers are
/// rounded to f32 each time they are read.
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

  size_t size() const { return size_; }  ///< numbers, of all rows
  bool wide() const { return wide_; }    ///< f64
  Device device() const { return device_; }
  const void* data() const { return data_; }
  /// The numbers if they are f32, else nothing; doubles() likewise. Not copied. Read only on the host.
  std::span<const float> floats() const { return {static_cast<const float*>(data_), wide_ ? 0 : size_}; }
  std::span<const double> doubles() const { return {static_cast<const double*>(data_), wide_ ? size_ : 0}; }
  double operator[](size_t i) const { return wide_ ? doubles()[i] : static_cast<double>(floats()[i]); }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
  Device device_;
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

/// f32 or f64 numbers to write, row by row without gaps. Results are computed in f32: f64 receives the same
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

  size_t size() const { return size_; }
  bool wide() const { return wide_; }
  Device device() const { return device_; }
  void* data() const { return data_; }
  /// Only on the host.
  void set(size_t i, double value) {
    if (wide_) {
      static_cast<double*>(data_)[i] = value;
    } else {
      static_cast<float*>(data_)[i] = static_cast<float>(value);
    }
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
  Device device_;
};

/// A mesh of the host application, by its cells or by its edges: one of the two. Node numbers start at 0.
struct MeshArrays {
  Numbers positions;           ///< [nodes, dim], of the checkpoint's or configuration's dim
  Integers cells{};            ///< [cells, nodes_per_cell]
  int nodes_per_cell = 0;      ///< 3: triangles; 4: quads in 2-D, tetrahedra in 3-D; 8: hexahedra, as in VTK
  Integers first{}, second{};  ///< where there are no cells: edges, once or both ways
  Integers node_type{};        ///< [nodes]; empty: all 0

  /// Whether this is one rank's part of a mesh that a solver has partitioned. Then the arrays above hold the
  /// nodes that the rank owns, then its ghost nodes, and every cell or edge of an owned node.
  bool in_parts = false;
  Integers ghost_owner{};   ///< [ghosts]: the rank that owns the node
  Integers ghost_number{};  ///< [ghosts]: its row among the nodes of that rank
};

}  // namespace meshgrad
#pragma GCC visibility pop
