// SPDX-License-Identifier: Apache-2.0
// Arrays of a host application, in host memory, which meshgrad borrows. The function that takes one says for
// how long, and throws InvalidArgument, or DataError of a mesh, when its size or its values do not fit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

#pragma GCC visibility push(default)
namespace meshgrad {

/// f32 or f64 numbers to read, row by row without gaps. f32 numbers are read where they are; f64 numbers are
/// rounded to f32 each time they are read.
class Numbers {
 public:
  Numbers() = default;
  Numbers(std::span<const float> values) : data_(values.data()), size_(values.size()) {}
  Numbers(std::span<const double> values) : data_(values.data()), size_(values.size()), wide_(true) {}
  template <std::ranges::contiguous_range Values>
  requires std::is_same_v < std::ranges::range_value_t<Values>,
  float > || std::is_same_v<std::ranges::range_value_t<Values>, double> Numbers(const Values& values)
      : Numbers(std::span(std::ranges::data(values), std::ranges::size(values))) {}

  size_t size() const { return size_; }  ///< numbers, of all rows
  bool wide() const { return wide_; }    ///< f64
  /// The numbers if they are f32, else nothing; doubles() likewise. Not copied.
  std::span<const float> floats() const { return {static_cast<const float*>(data_), wide_ ? 0 : size_}; }
  std::span<const double> doubles() const { return {static_cast<const double*>(data_), wide_ ? size_ : 0}; }
  double operator[](size_t i) const { return wide_ ? doubles()[i] : static_cast<double>(floats()[i]); }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
  bool wide_ = false;
};

/// f32 or f64 numbers to write, row by row without gaps. Results are computed in f32: f64 receives the same
/// values, without more digits.
class WritableNumbers {
 public:
  WritableNumbers(std::span<float> values) : data_(values.data()), size_(values.size()) {}
  WritableNumbers(std::span<double> values) : data_(values.data()), size_(values.size()), wide_(true) {}
  template <std::ranges::contiguous_range Values>
  requires std::is_same_v < std::ranges::range_reference_t<Values>,
  float& > || std::is_same_v<std::ranges::range_reference_t<Values>, double&> WritableNumbers(Values& values)
      : WritableNumbers(std::span(std::ranges::data(values), std::ranges::size(values))) {}

  size_t size() const { return size_; }
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
};

/// A mesh of the host application, by its cells or by its edges: one of the two. Node numbers start at 0.
struct MeshArrays {
  Numbers positions;                 ///< [nodes, dim], of the checkpoint's or configuration's dim
  std::span<const int32_t> cells{};  ///< [cells, nodes_per_cell]
  int nodes_per_cell = 0;  ///< 3: triangles; 4: quads in 2-D, tetrahedra in 3-D; 8: hexahedra, as in VTK
  std::span<const int32_t> first{}, second{};  ///< where there are no cells: edges, once or both ways
  std::span<const int32_t> node_type{};        ///< [nodes]; empty: all 0

  /// Whether this is one rank's part of a mesh that a solver has partitioned. Then the arrays above hold the
  /// nodes that the rank owns, then its ghost nodes, and every cell or edge of an owned node.
  bool in_parts = false;
  std::span<const int32_t> ghost_owner{};   ///< [ghosts]: the rank that owns the node
  std::span<const int32_t> ghost_number{};  ///< [ghosts]: its row among the nodes of that rank
};

}  // namespace meshgrad
#pragma GCC visibility pop
