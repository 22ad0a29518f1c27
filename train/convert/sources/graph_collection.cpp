// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/graph_collection.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/graph_arrays.h>

namespace meshgrad {
namespace {

bool are_offsets(const NamedArray& array) {
  return array.name == GraphCollection::kNodeOffsets || array.name == GraphCollection::kEdgeOffsets;
}

/// Arrays of the nodes of a mesh, which are no fields.
bool is_of_nodes(std::string_view name) {
  return name == "mesh_pos" || name == "node_type" || name.ends_with("_mask");
}

std::string array_in(const std::string& name, const NamedArray& array) {
  return fmt::format("{}: array {}", name, array.source.empty() ? array.name : array.source);
}

std::vector<int64_t> offsets_of(const NamedArray& array, const std::string& where) {
  std::vector<int64_t> offsets;
  for (const int32_t offset : to_indices(array.array, where)) offsets.push_back(offset);
  if (array.array.shape.size() == 1 && offsets.size() >= 2 && offsets.front() == 0 &&
      std::ranges::is_sorted(offsets))
    return offsets;
  throw data_error(where, "one number more than there are graphs, ascending from 0, below 2^31",
                   offsets.empty() ? "none"
                                   : fmt::format("{} to {} in {}", offsets.front(), offsets.back(),
                                                 fmt::join(array.array.shape, " x ")),
                   "write where each graph begins, and where the last one ends");
}

}  // namespace

std::optional<GraphCollection> GraphCollection::of(std::vector<NamedArray>& arrays, const std::string& name,
                                                   const ArrayMap& map, const WarningCallback& warn) {
  const bool many =
      std::ranges::any_of(arrays, [](const NamedArray& array) { return array.name == kNodeOffsets; });
  if (!many) return std::nullopt;
  std::vector<NamedArray> offsets, others;
  for (NamedArray& array : arrays) (are_offsets(array) ? offsets : others).push_back(std::move(array));
  arrays = arrays_by_map(std::move(others), name, map, warn);  // before prefixes hide their names
  std::ranges::move(offsets, std::back_inserter(arrays));
  return GraphCollection(std::exchange(arrays, {}), name);
}

GraphCollection::GraphCollection(std::vector<NamedArray> arrays, const std::string& name) {
  const NamedArray* edges = nullptr;
  for (const NamedArray& array : arrays) {
    if (array.name == kNodeOffsets) nodes_ = offsets_of(array, array_in(name, array));
    if (array.name == kEdgeOffsets) edges_ = offsets_of(array, array_in(name, array));
    if (array.name == "mesh_edge") edges = &array;
  }
  if (edges_.size() != nodes_.size() || edges == nullptr) {
    throw data_error(name, fmt::format("edges, and edge_offsets of {} graphs beside node_offsets", size()),
                     edges == nullptr ? "no array edge_index, edges or mesh_edge"
                                      : fmt::format("{} edge_offsets", edges_.size()),
                     "save them under these names");
  }
  read_edges(*edges, array_in(name, *edges));
  for (NamedArray& array : arrays) {
    if (&array == edges || are_offsets(array)) continue;
    const Rows rows = array.numbers ? rows_of(array, array_in(name, array)) : Rows::file;
    arrays_.push_back({std::move(array), rows});
  }
}

void GraphCollection::read_edges(const NamedArray& array, const std::string& where) {
  const std::vector<int32_t> both = edges_of_array(array, where);
  const auto count = static_cast<int64_t>(both.size()) / 2;
  if (count != edges_.back()) {
    throw data_error(where, fmt::format("{} edges, where edge_offsets end", edges_.back()),
                     std::to_string(count), "write the offsets again");
  }
  const auto middle = both.begin() + count;
  senders_.assign(both.begin(), middle);
  receivers_.assign(middle, both.end());
  bool within_graphs = true, within_file = true, differ = false;
  const auto each_edge = [&](const auto& use) {
    for (size_t g = 0; g + 1 < nodes_.size(); ++g)
      for (auto e = static_cast<size_t>(edges_[g]); e < static_cast<size_t>(edges_[g + 1]); ++e)
        for (std::vector<int32_t>* ends : {&senders_, &receivers_}) use(g, e, (*ends)[e]);
  };
  each_edge([&](size_t g, size_t, int32_t node) {
    within_graphs = within_graphs && node < nodes_[g + 1] - nodes_[g];
    within_file = within_file && node >= nodes_[g] && node < nodes_[g + 1];
    differ = differ || nodes_[g] > 0;
  });
  if (within_graphs && within_file && differ) {
    throw data_error(where, "nodes numbered from 0 in each graph, or in the file",
                     "numbers that fit both: of graphs that begin at 0, and of nodes of the file",
                     "write the graph with the most nodes first, with which only one fits");
  }
  each_edge([&](size_t g, size_t edge, int32_t& node) {
    const int64_t first = within_graphs ? 0 : nodes_[g];
    const int64_t number = node - first;
    if (number < 0 || number >= nodes_[g + 1] - nodes_[g]) {
      throw data_error(where,
                       fmt::format("nodes of graph {}, numbered from 0 in each graph or in the file", g),
                       fmt::format("{} at edge {}", node, edge), "number them one way");
    }
    node = static_cast<int32_t>(number);
  });
}

GraphCollection::Rows GraphCollection::rows_of(const NamedArray& array, const std::string& where) const {
  const std::vector<int64_t>& shape = array.array.shape;
  if (shape.empty()) return Rows::file;
  const int64_t rows = shape.front();
  const auto fits = [&](Rows which) {
    return rows == (which == Rows::nodes ? nodes_.back() : which == Rows::edges ? edges_.back() : size());
  };
  std::vector<Rows> found;
  const std::pair<const char*, Rows> named[] = {
      {"node:", Rows::nodes}, {"edge:", Rows::edges}, {"graph:", Rows::graphs}};
  const auto said =
      std::ranges::find_if(named, [&](const auto& prefix) { return array.name.starts_with(prefix.first); });
  if (said != std::end(named)) {
    if (fits(said->second)) found = {said->second};
  } else if (is_of_nodes(array.name)) {
    if (fits(Rows::nodes)) found = {Rows::nodes};
  } else {
    if (array.array.size() == 1 && size() != 1) return Rows::file;
    for (const Rows which : {Rows::nodes, Rows::edges, Rows::graphs})
      if (fits(which)) found.push_back(which);
  }
  if (found.size() != 1) {
    std::vector<std::string_view> as_many;
    for (const Rows which : found)
      as_many.push_back(which == Rows::nodes ? "nodes" : which == Rows::edges ? "edges" : "graphs");
    throw data_error(
        where,
        fmt::format("{} rows of nodes, {} of edges or {} of graphs", nodes_.back(), edges_.back(), size()),
        fmt::format("{} rows{}", rows,
                    found.empty() ? "" : ", as many as " + fmt::format("{}", fmt::join(as_many, " and "))),
        found.empty() ? "leave it out, or correct the offsets"
                      : "save it as node:NAME, edge:NAME or graph:NAME");
  }
  if (array.array.fortran_order && shape.size() > 1)
    throw data_error(where, "an array in C order", "Fortran's order", "save numpy.ascontiguousarray of it");
  return found.front();
}

NamedArray GraphCollection::part(const Array& array, int64_t number) const {
  if (array.rows == Rows::file) return array.whole;  // a view of the bytes that this keeps
  const NpyArray& whole = array.whole.array;
  const auto at = static_cast<size_t>(number);
  std::pair<int64_t, int64_t> range{number, number + 1};
  if (array.rows == Rows::nodes) range = {nodes_[at], nodes_[at + 1]};
  if (array.rows == Rows::edges) range = {edges_[at], edges_[at + 1]};
  NamedArray part;
  part.name = array.whole.name;
  part.unit = array.whole.unit;
  part.numbers = array.whole.numbers;
  part.array = whole;
  const auto row = whole.data.size() / static_cast<size_t>(std::max<int64_t>(1, whole.shape.front()));
  const auto bytes = whole.data.subspan(static_cast<size_t>(range.first) * row,
                                        static_cast<size_t>(range.second - range.first) * row);
  part.bytes.assign(bytes.begin(), bytes.end());
  part.array.data = part.bytes;
  part.array.shape.front() = range.second - range.first;
  // One frame: [rows, components] could also be read as frames of another one.
  if (array.rows != Rows::graphs && part.array.shape.size() == 2 && !is_of_nodes(part.name))
    part.array.shape.insert(part.array.shape.begin(), 1);
  if (array.rows == Rows::graphs) part.array.shape.erase(part.array.shape.begin());
  const std::string_view prefix = array.rows == Rows::nodes   ? "node:"
                                  : array.rows == Rows::edges ? "edge:"
                                                              : "graph:";
  if (!is_of_nodes(part.name) && !part.name.starts_with(prefix)) part.name.insert(0, prefix);
  return part;
}

std::vector<NamedArray> GraphCollection::graph(int64_t number) const {
  std::vector<NamedArray> arrays;
  for (const Array& array : arrays_) arrays.push_back(part(array, number));
  NamedArray& edges = arrays.emplace_back();
  edges.name = "mesh_edge";
  const auto first = edges_[static_cast<size_t>(number)], end = edges_[static_cast<size_t>(number) + 1];
  for (const std::vector<int32_t>* ends : {&senders_, &receivers_}) {
    const auto bytes =
        std::as_bytes(std::span(*ends).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
    edges.bytes.insert(edges.bytes.end(), bytes.begin(), bytes.end());
  }
  edges.array = {.kind = 'i', .bytes = 4, .shape = {2, end - first}, .data = edges.bytes};
  return arrays;
}

}  // namespace meshgrad
