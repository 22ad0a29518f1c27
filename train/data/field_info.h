// SPDX-License-Identifier: Apache-2.0
// What a data set is described by: fields (name, unit, dtype, what their rows belong to) and cells.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/engine/dtype.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What one row of a field belongs to.
enum class FieldOn : uint8_t { node, edge, cell, graph };
constexpr std::array<std::string_view, 4> kFieldOnNames{"node", "edge", "cell", "graph"};
constexpr std::string_view name_of(FieldOn on) { return kFieldOnNames[static_cast<size_t>(on)]; }

/// The numbers of a field and their type, borrowed.
struct FieldData {
  DType dtype = DType::f32;
  std::span<const std::byte> bytes;

  FieldData() = default;
  FieldData(std::span<const float> values) : FieldData(DType::f32, values) {}
  FieldData(std::span<const int32_t> values) : FieldData(DType::i32, values) {}
  FieldData(std::span<const int64_t> values) : FieldData(DType::i64, values) {}
  template <class T>
  FieldData(const std::vector<T>& values) : FieldData(std::span<const T>(values)) {}

  /// Of an f32 field.
  std::span<const float> floats() const {
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

 private:
  template <class T>
  FieldData(DType dtype_of_values, std::span<const T> values)
      : dtype(dtype_of_values), bytes(std::as_bytes(values)) {}
};

/// Where a node split puts a node.
enum class NodeSplit : int32_t { none = 0, train = 1, valid = 2, test = 3 };
constexpr std::array<std::string_view, 4> kNodeSplitNames{"none", "train", "valid", "test"};

/// One field of the schema, which all trajectories of a file share.
struct FieldInfo {
  std::string name;
  int components = 0;
  bool dynamic = true;  ///< false: one frame that holds for all times
  std::string unit;     ///< empty when unknown
  FieldOn on = FieldOn::node;
  DType dtype = DType::f32;
  /// Per component, in the field's unit: a value of the data is the stored one plus this. Empty: 0 for all.
  std::vector<double> offset;
  /// A split of the nodes of each graph: a static i32 field of one component on nodes that holds NodeSplit.
  bool node_split = false;

  double offset_of(size_t component) const { return offset.empty() ? 0.0 : offset[component]; }
};

/// Rows of a field on each kind of place of a mesh.
struct RowCounts {
  uint64_t nodes = 0;
  uint64_t edges = 0;  ///< directed
  uint64_t cells = 0;

  uint64_t of(FieldOn on) const {
    switch (on) {
      case FieldOn::node:
        return nodes;
      case FieldOn::edge:
        return edges;
      case FieldOn::cell:
        return cells;
      case FieldOn::graph:
        break;
    }
    return 1;
  }
};

/// What is counted of a field x: its value x[t], its change x[t+1] - x[t], or its second change
/// x[t+1] - 2 x[t] + x[t-1].
enum class Quantity { value = 0, change = 1, second_change = 2 };

enum class CellKind : uint16_t { none = 0, triangle = 1, quad = 2, tetrahedron = 3, hexahedron = 4 };

}  // namespace meshgrad
#pragma GCC visibility pop
