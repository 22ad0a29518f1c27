// SPDX-License-Identifier: Apache-2.0
// Many graphs in one file of named arrays, one after another: node_offsets [graphs + 1] says where the nodes
// of each begin, edge_offsets likewise of the edges.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_map.h>

namespace meshgrad {

class GraphCollection {
 public:
  static constexpr std::string_view kNodeOffsets = "node_offsets", kEdgeOffsets = "edge_offsets";

  /// Nothing where there is no array node_offsets. What an array's rows belong to says its prefix (node:,
  /// edge:, graph:), the name of an array of the mesh, or the number of its rows. Edges are numbered within
  /// their graph, or within the file. `map` and the names that are guessed count as for other files, and are
  /// used up: what graph() gives has the names of roles. Throws DataError with `name`, and the array, for
  /// offsets that do not ascend from 0 to the rows, an array whose rows belong to none or to several of
  /// these, edges that leave their graph, and such as fit both ways of numbering.
  static std::optional<GraphCollection> of(std::vector<NamedArray>& arrays, const std::string& name,
                                           const ArrayMap& map, const WarningCallback& warn);

  int64_t size() const { return static_cast<int64_t>(nodes_.size()) - 1; }
  /// The arrays of one graph, as trajectory_of_arrays reads them.
  std::vector<NamedArray> graph(int64_t number) const;

 private:
  enum class Rows : uint8_t { file, nodes, edges, graphs };
  struct Array {
    NamedArray whole;
    Rows rows = Rows::file;
  };
  GraphCollection(std::vector<NamedArray> arrays, const std::string& name);
  Rows rows_of(const NamedArray& array, const std::string& where) const;
  void read_edges(const NamedArray& array, const std::string& where);
  NamedArray part(const Array& array, int64_t number) const;

  std::vector<int64_t> nodes_, edges_;  // offsets
  std::vector<Array> arrays_;
  std::vector<int32_t> senders_, receivers_;  // within their graph
};

}  // namespace meshgrad
