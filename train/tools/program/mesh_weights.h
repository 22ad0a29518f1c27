// SPDX-License-Identifier: Apache-2.0
// Values at points of a mesh and integrals over it, as sums of node values times weights.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshgrad {

/// A sum over `nodes` of their values times `weights`; a node may occur several times.
struct NodeWeights {
  std::vector<int32_t> nodes;
  std::vector<double> weights;
};

/// A point at which values are wanted.
struct Probe {
  std::string text;        ///< as the user wrote it
  std::vector<double> at;  ///< [2 or 3], in the unit of the data's positions
};

/// Of "X,Y" or "X,Y,Z". Throws ConfigError for other text.
Probe parse_probe(const std::string& text);

/// Where a point is in a mesh, and the weights of its value.
struct ProbePlace {
  enum class In {
    cell,    ///< linear in the triangle or tetrahedron around it; the value of a cell that is a node
    node,    ///< of a mesh without cells of its own dimension: the value of the nearest node
    outside  ///< of all cells, or of the box around the nodes: no weights
  };
  In in = In::outside;
  NodeWeights weights;
  int32_t nearest = 0;  ///< node
  double distance = 0;  ///< from it
};
constexpr std::string_view name_of(ProbePlace::In in) {
  constexpr std::string_view kNames[] = {"cell", "node", "outside"};
  return kNames[static_cast<size_t>(in)];
}

/// Other cells than triangles and tetrahedra are cut into them (DrawnMesh). A point that is outside by 1e-6
/// of a cell's size counts as inside. Throws ConfigError for a point of other dimensions than the mesh.
ProbePlace place_of(const Probe& probe, const MeshView& mesh);

/// A part of a mesh that values are integrated over, or summed over.
struct MeshRegion {
  enum class Over {
    mesh,      ///< all cells
    boundary,  ///< sides that only one cell has, all of whose corners have the type
    cells,     ///< of a graph on cells: those of the type
    nodes      ///< where the type has none of these: its nodes, each with the weight 1
  };
  Over over = Over::mesh;
  int32_t node_type = -1;  ///< -1: all
  double measure = 0.0;    ///< length, area or volume, in the data's unit of length; of nodes their number
  NodeWeights weights;     ///< they add up to `measure`
};
constexpr std::string_view name_of(MeshRegion::Over over) {
  constexpr std::string_view kNames[] = {"mesh", "boundary", "cells", "nodes"};
  return kNames[static_cast<size_t>(over)];
}

/// The mesh, where it has cells, and then a region for each node type that occurs. Values are linear in
/// triangles, tetrahedra and sides; other cells and sides are cut into such. Positions are those of the mesh,
/// also where it moves.
std::vector<MeshRegion> regions_of(const MeshView& mesh);

}  // namespace meshgrad
