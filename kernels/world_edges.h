// SPDX-License-Identifier: Apache-2.0
// world_edges: finds the edges between nodes that are closer in space than a radius, without those of the
// mesh, and writes them as a graph with their features, all in the memory of the device. Sizes are fixed:
// room for edges is a capacity. Nodes are sorted by cells of a grid as wide as the radius, and each receiver
// searches the cells around its own (world_grid.h); a cell list, as in Hockney, Eastwood (1981), "Computer
// Simulation Using Particles". Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/work.h>

#include <array>

namespace meshgrad {

/// Edges between nodes of one mesh whose squared distance is below radius^2, in f64; both ways. The list is
/// in ascending order of (receiver, sender). Nodes whose positions are not finite have none, nor those 2^24
/// periods away. Where nodes are crowded (world_grid.h) none is searched for, and INT32_MAX are missing:
/// otherwise the time would be quadratic in the number of nodes.
struct FindWorldEdges {
  Graph mesh;  ///< whose edges are left out, senders ascending; of a union of meshes, without halo nodes
  Tensor positions;  ///< f32 [nodes, dim], dim 2 or 3
  Tensor labels;     ///< i32 [3, nodes]: which mesh of the union; node type; which node stands for its images
  double radius = 0.0;
  bool other_type = false;         ///< only between nodes of different types
  bool images = false;             ///< nodes have images: of those of one point only the nearest is joined
  std::array<double, 3> period{};  ///< distances are to the nearest image; 0: not periodic
  Tensor scale;                    ///< f64 [2, dim + 1]: mean, and 1 / standard deviation, of each feature
  Graph found;  ///< written, `counts` too; found.edges is the room, in which edges are not defined where some
                ///< are missing
  Tensor features;  ///< [found.edges, dim + 1], written: displacement (sender minus receiver) and its length,
                    ///< rounded to the accumulator of their dtype, then normalised
  Tensor missing;   ///< i64 [1], written: how many edges have no room
};

Work work_of(const FindWorldEdges& args);

struct WorldEdgeKernels {
  void (*find)(const FindWorldEdges&, Runtime&, const Stream&);
};

namespace kernels {
void find_world_edges(const FindWorldEdges& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
