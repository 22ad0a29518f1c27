// SPDX-License-Identifier: Apache-2.0
// Values at the nodes of one frame: the input of the writers of files and pictures.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct PointField {
  std::string name;
  int components = 1;
  std::span<const float> values;  ///< [nodes, components], borrowed
  std::vector<double> offset;     ///< per component, added where values are written; empty: 0
};

/// InvalidArgument, naming `where`, unless the mesh's positions, cells and edges fit its sizes and every
/// index is a node. Only nodes, dim, cell_kind, positions, cells, senders, receivers and source are
/// read; a caller need not fill the rest.
void check_mesh(std::string_view where, const MeshView& mesh);

/// InvalidArgument, naming `where` and the field, unless there is a value for every node and component.
void check_field(std::string_view where, const MeshView& mesh, const PointField& field);

}  // namespace meshgrad
