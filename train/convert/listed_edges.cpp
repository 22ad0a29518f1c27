// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/listed_edges.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace meshgrad {
namespace {

// What a symmetric graph without loops would not have; a part of it is enough.
struct OneWay {
  int64_t loops = 0, repeated = 0, unreturned = 0;
};

OneWay one_way_of(std::span<const int32_t> pairs) {
  const size_t columns = pairs.size() / 2;
  std::vector<std::pair<int32_t, int32_t>> listed;
  listed.reserve(columns);
  OneWay found;
  for (size_t i = 0; i < columns; ++i) {
    listed.emplace_back(pairs[i], pairs[columns + i]);
    if (pairs[i] == pairs[columns + i]) ++found.loops;
  }
  std::ranges::sort(listed);
  const auto last = std::unique(listed.begin(), listed.end());
  found.repeated = listed.end() - last;
  listed.erase(last, listed.end());
  for (const auto& [from, to] : listed)
    if (!std::ranges::binary_search(listed, std::pair(to, from))) ++found.unreturned;
  return found;
}

bool has_edge_fields(const RawTrajectory& t) {
  return std::ranges::any_of(t.fields, [](const RawField& field) { return field.on == FieldOn::edge; });
}

void sort_edge_fields(RawTrajectory& t, const std::vector<int32_t>& columns) {
  const auto rows = static_cast<size_t>(t.rows(FieldOn::edge));
  for (RawField& field : t.fields) {
    if (field.on != FieldOn::edge) continue;
    const auto width = static_cast<size_t>(field.components);
    const auto frames = static_cast<size_t>(field.dynamic ? t.frames : 1);
    std::visit(
        [&](auto& values) {
          std::remove_reference_t<decltype(values)> sorted;
          sorted.reserve(frames * columns.size() * width);
          for (size_t frame = 0; frame < frames; ++frame) {
            for (const int32_t column : columns) {
              const auto* row = values.data() + (frame * rows + static_cast<size_t>(column)) * width;
              sorted.insert(sorted.end(), row, row + width);
            }
          }
          values = std::move(sorted);
        },
        field.values);
  }
  // cut_frames counts rows by the columns.
  t.edges.assign(columns.size() * 2, 0);
}

}  // namespace

void choose_direction(RawTrajectory& t, std::optional<bool> directed) {
  t.directed = directed.value_or(false);
  const bool of_cells = t.rows(FieldOn::cell) > 0;
  if (t.directed && of_cells) {
    throw data_error(t.name, "edges that are listed, for --directed", "cells, whose sides join both ways",
                     "leave --directed out");
  }
  if (directed || t.dim > 0 || of_cells) return;
  const OneWay found = one_way_of(t.edges);
  if (found.loops + found.repeated + found.unreturned == 0) return;
  throw data_error(
      t.name + ": field edges", "to know whether edges are directed",
      fmt::format("{} edges, of which {} have none back, {} are loops and {} are listed again",
                  t.edges.size() / 2, found.unreturned, found.loops, found.repeated),
      "--directed keeps all of them as they are; --undirected joins nodes both ways, once, without loops");
}

std::vector<std::string> graph_notes(const RawTrajectory& t) {
  std::vector<std::string> notes;
  const int64_t once = t.directed || !has_edge_fields(t) ? 0 : one_way_of(t.edges).unreturned;
  if (once > 0) {
    notes.push_back(
        fmt::format("[{}] {} of {} edges are listed in one direction: both directions get the values of "
                    "their fields. Of a "
                    "field with a sign, list both, or convert with --directed",
                    t.name, once, t.edges.size() / 2));
  }
  if (t.dim == 0) {
    notes.push_back(fmt::format(
        "[{}] there are no positions: read as a graph of {} nodes; --map positions=ARRAY names positions",
        t.name, t.nodes));
  }
  for (const RawField& field : t.fields) {
    if (!field.node_split) continue;
    std::array<int64_t, kNodeSplitNames.size()> counts{};
    for (const int32_t split : std::get<std::vector<int32_t>>(field.values))
      ++counts[static_cast<size_t>(split)];
    notes.push_back(fmt::format("[{}] {} splits the nodes: {} train, {} valid, {} test, {} in none", t.name,
                                field.name, counts[1], counts[2], counts[3], counts[0]));
  }
  return notes;
}

MeshEdges take_edges(RawTrajectory& t, CellKind kind) {
  const std::string where = t.name + ": field edges";
  const std::span<const int32_t> pairs(t.edges);
  const std::span<const int32_t> first = pairs.first(pairs.size() / 2), second = pairs.subspan(first.size());
  // A graph without positions may have no edge at all.
  if (t.directed || (t.dim == 0 && t.edges.empty())) {
    DirectedEdges listed = directed_edges(first, second, t.nodes, where);
    sort_edge_fields(t, listed.columns);
    return std::move(listed.edges);
  }
  MeshEdges edges = t.cells.empty() ? edges_from_pairs(first, second, t.nodes, where)
                                    : edges_from_cells(t.cells, kind, t.nodes, t.name + ": field cells");
  if (has_edge_fields(t)) sort_edge_fields(t, columns_of_edges(edges, pairs, where));
  return edges;
}

}  // namespace meshgrad
