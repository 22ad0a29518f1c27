// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/graph_arrays.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <meshgrad/engine/error.h>

namespace meshgrad {
namespace {

std::string array_of(const std::string& where, const NamedArray& array) {
  return fmt::format("{}: array {}", where, array.source);
}

// "edge_index" of "data/edge_index".
std::string_view leaf_of(std::string_view name) { return name.substr(name.rfind('/') + 1); }

constexpr int64_t kMostSplits = 4096;

struct Mask {
  NodeSplit split;
  std::string suffix;
};

std::optional<Mask> mask_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, NodeSplit>, 4> kMasks{{{"train_mask", NodeSplit::train},
                                                                          {"valid_mask", NodeSplit::valid},
                                                                          {"val_mask", NodeSplit::valid},
                                                                          {"test_mask", NodeSplit::test}}};
  if (name.starts_with("node:")) name.remove_prefix(5);
  for (const auto& [start, split] : kMasks)
    if (name.starts_with(start)) return Mask{split, std::string(name.substr(start.size()))};
  return std::nullopt;
}

using Masks = std::map<std::string, std::map<NodeSplit, std::vector<const NamedArray*>>>;

// By suffix, those that make a split.
Masks masks_of(const std::vector<NamedArray>& arrays) {
  Masks masks;
  for (const NamedArray& array : arrays)
    if (const auto mask = mask_named(array.name); mask && array.numbers)
      masks[mask->suffix][mask->split].push_back(&array);
  std::erase_if(masks, [](const auto& entry) {
    return entry.second.size() < 2 || !entry.second.contains(NodeSplit::train);
  });
  return masks;
}

// Rows on nodes; nothing for an array that says none.
std::optional<int64_t> rows_of(const NamedArray& array) {
  const std::vector<int64_t>& shape = array.array.shape;
  if (!array.numbers || shape.empty() || shape.size() > 3) return std::nullopt;
  return shape[shape.size() == 3 ? 1 : 0];
}

// Whether the name says that rows are nodes, says that they are not, or does not say it.
enum class Rows { nodes, others, unsaid };

Rows rows_said_by(const NamedArray& array, const std::set<std::string>& masks) {
  if (array.name == "node_type" || array.name.starts_with("node:") || masks.contains(array.name))
    return Rows::nodes;
  const bool prefixed = std::ranges::any_of(
      kFieldOnNames, [&](std::string_view on) { return array.name.starts_with(std::string(on) + ":"); });
  const bool times = array.name == "times" || array.name == "time" || array.name == "t";
  if (prefixed || is_mesh_array(array.name) || array.name == "dt" || times) return Rows::others;
  return Rows::unsaid;
}

// How many splits a mask has.
size_t columns_of(const NamedArray& mask, int64_t nodes, const std::string& where) {
  const std::vector<int64_t>& shape = mask.array.shape;
  const bool fits = (shape.size() == 1 || shape.size() == 2) && shape[0] == nodes;
  const int64_t columns = !fits ? 0 : shape.size() == 2 ? shape[1] : 1;
  if (columns >= 1 && columns <= kMostSplits) return static_cast<size_t>(columns);
  throw data_error(array_of(where, mask), fmt::format("[{0}] or [{0}, 1 to {1} splits]", nodes, kMostSplits),
                   shape_text(mask.array), "save a boolean for each node");
}

void add_mask(std::vector<RawField>& fields, const NamedArray& array, NodeSplit split, int64_t nodes,
              const std::string& where) {
  const size_t columns = columns_of(array, nodes, where);
  if (columns != fields.size()) {
    throw data_error(array_of(where, array), fmt::format("{} splits, as train_mask has", fields.size()),
                     shape_text(array.array), "save all masks of a split in one shape");
  }
  const std::vector<int32_t> numbers = to_indices(array.array, array_of(where, array));
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == 0) continue;
    if (numbers[i] != 1) {
      throw data_error(array_of(where, array), "booleans", fmt::format("a number of node {}", i / columns),
                       "save it as bool");
    }
    int32_t& at = std::get<std::vector<int32_t>>(fields[i % columns].values)[i / columns];
    if (at != 0) {
      throw data_error(
          array_of(where, array), "each node in one split at most",
          fmt::format("node {} in {} and {}", i / columns, kNodeSplitNames[static_cast<size_t>(at)],
                      kNodeSplitNames[static_cast<size_t>(split)]),
          "take it out of one of the masks");
    }
    at = static_cast<int32_t>(split);
  }
}

}  // namespace

std::vector<int32_t> edges_of_array(const NamedArray& array, const std::string& where) {
  std::vector<int64_t> shape = array.array.shape;
  while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() == 1) shape.push_back(1);
  if (shape.size() != 2 || (shape[0] != 2 && shape[1] != 2)) {
    throw data_error(where, "[2, edges] or [edges, 2]", shape_text(array.array),
                     "save the array in that shape");
  }
  std::vector<int32_t> numbers = to_indices(array.array, where);
  const std::string_view name = leaf_of(array.source);
  const bool senders_first = shape[0] == 2;
  if (senders_first && (shape[1] != 2 || name == "edge_index" || name == "mesh_edge")) return numbers;
  if (senders_first) {
    if (numbers[1] == numbers[2]) return numbers;
    throw data_error(
        where, "edges that are the same as [2, edges] and as [edges, 2]",
        fmt::format("[2, 2]: {} to {} and {} to {}, or {} to {} and {} to {}", numbers[0], numbers[2],
                    numbers[1], numbers[3], numbers[0], numbers[1], numbers[2], numbers[3]),
        "save senders, then receivers as edge_index [2, edges]");
  }
  const size_t count = numbers.size() / 2;
  std::vector<int32_t> pairs(numbers.size());
  for (size_t i = 0; i < count; ++i) {
    pairs[i] = numbers[2 * i];
    pairs[count + i] = numbers[2 * i + 1];
  }
  return pairs;
}

int64_t nodes_of_graph(const std::vector<NamedArray>& arrays, int64_t edges, const std::string& where) {
  const std::set<std::string> masks = node_masks(arrays);
  const NamedArray* first = nullptr;
  for (const Rows said : {Rows::nodes, Rows::unsaid}) {
    for (const NamedArray& array : arrays) {
      const auto rows = rows_of(array);
      if (!rows || rows_said_by(array, masks) != said) continue;
      if (said == Rows::unsaid && *rows == edges) {
        const bool either = first == nullptr || rows_of(*first) == edges;
        throw data_error(array_of(where, array), "a name that says what its rows belong to",
                         fmt::format("{}: {} edges are listed{}", shape_text(array.array), edges,
                                     either ? ", and there may be as many nodes" : ""),
                         fmt::format("--map edge:{0}={0} where they are edges, --map node:{0}={0} where they "
                                     "are nodes; or save it under such a name",
                                     array.source));
      }
      if (first == nullptr) first = &array;
      if (rows_of(*first) == *rows || rows_said_by(*first, masks) != said) continue;
      throw data_error(where, "arrays that agree on the number of nodes, since there are no positions",
                       fmt::format("{} {} and {} {}", first->source, shape_text(first->array), array.source,
                                   shape_text(array.array)),
                       "name what their rows belong to: node:NAME, edge:NAME or graph:NAME");
    }
  }
  if (first != nullptr && *rows_of(*first) > 0) return *rows_of(*first);
  throw data_error(where, "positions (mesh_pos), or an array on nodes that says how many there are",
                   "arrays of edges and splits only",
                   "--map positions=ARRAY; or save the features of the nodes as [nodes, components]");
}

std::set<std::string> node_masks(const std::vector<NamedArray>& arrays) {
  std::set<std::string> names;
  for (const auto& [suffix, masks] : masks_of(arrays))
    for (const auto& [split, of_split] : masks)
      for (const NamedArray* mask : of_split) names.insert(mask->name);
  return names;
}

std::vector<RawField> node_splits(const std::vector<NamedArray>& arrays, int64_t nodes,
                                  const std::string& where) {
  std::vector<RawField> all;
  for (const auto& [suffix, masks] : masks_of(arrays)) {
    const size_t columns = columns_of(*masks.at(NodeSplit::train).front(), nodes, where);
    std::vector<RawField> fields;
    for (size_t column = 0; column < columns; ++column) {
      RawField& field = fields.emplace_back();
      field.name = "mask" + suffix + (columns > 1 ? fmt::format(".{}", column) : "");
      field.dynamic = false;
      field.node_split = true;
      field.values = std::vector<int32_t>(static_cast<size_t>(nodes), 0);
    }
    for (const auto& [split, of_split] : masks) {
      if (of_split.size() > 1) {
        throw data_error(array_of(where, *of_split[1]), "one mask of each split",
                         of_split[0]->source + " beside " + of_split[1]->source, "leave one of them out");
      }
      add_mask(fields, *of_split.front(), split, nodes, where);
    }
    std::ranges::move(fields, std::back_inserter(all));
  }
  return all;
}

}  // namespace meshgrad
