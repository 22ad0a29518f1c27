// SPDX-License-Identifier: Apache-2.0
// The mesh of a trajectory, as a solver gives it.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/embed/arrays.h>

namespace meshgrad::test {

inline MeshArrays arrays_of(const MeshView& mesh) {
  return {.positions = mesh.positions,
          .cells = mesh.cells,
          .nodes_per_cell = mesh.nodes_per_cell,
          .node_type = mesh.node_type};
}

}  // namespace meshgrad::test
