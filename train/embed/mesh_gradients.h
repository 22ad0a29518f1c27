// SPDX-License-Identifier: Apache-2.0
// Gradients of a scalar with respect to what a model reads of a mesh: the transposes of what mesh_inputs.h
// and MeshTask compute on the host. In f64, physical units.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/task/field_selection.h>

#include <span>
#include <vector>

namespace meshgrad {

/// Of one mesh.
struct MeshGradients {
  std::vector<double> current;              ///< [nodes, outputs]
  std::vector<double> previous;             ///< [frames, nodes, outputs], latest first, as FieldState
  std::vector<std::vector<double>> fields;  ///< by input, [rows, components]; empty where it is a target too
  std::vector<double> positions;            ///< [nodes, dim]
  std::vector<double> world;  ///< of data.world_position, [nodes, components]; empty where it is a target
  /// By known change, [nodes, components]: of the values that set_next_known took, and of those that the
  /// model read in add_node_gradients; 0 but at nodes of data.kinematic_types.
  std::vector<std::vector<double>> next;

  /// [nodes, outputs] of the frame that many before the current one.
  std::span<double> frame(int64_t before);
};

MeshGradients zero_gradients(const FieldSelection& fields, const MeshView& mesh);

/// From the state in which nodes of data.kinematic_types have their known values: these leave it for `next`.
void set_next_known(const FieldSelection& fields, const MeshView& mesh, MeshGradients& gradients);
/// Of the normalised prediction, [nodes, outputs], from those of the state after the step.
void prediction_gradients(const FieldSelection& fields, const MeshView& mesh, const Normalizer& targets,
                          const MeshGradients& after, std::span<double> rows);
/// From the state after a step to the state before it, without the part that passes through the model.
void step_back(const FieldSelection& fields, const MeshView& mesh, MeshGradients& gradients);
/// The part that does: adds gradients of normalised node features, [nodes, node_inputs], of normalised edge
/// features, [edges, edge_inputs], and of those of world edges, [edges, world_inputs], to those of fields and
/// positions. `current`: FieldSelection::current_positions of the step, empty for meshes that do not move. An
/// edge of length 0 has no direction; its length counts as constant.
void add_node_gradients(const FieldSelection& fields, const MeshView& mesh, const Normalizer& nodes,
                        std::span<const double> rows, MeshGradients& gradients);
void add_edge_gradients(const FieldSelection& fields, const MeshView& mesh, std::span<const float> current,
                        const Normalizer& edges, std::span<const double> rows, MeshGradients& gradients);
void add_world_gradients(const FieldSelection& fields, const MeshView& world, std::span<const float> current,
                         const Normalizer& edges, std::span<const double> rows, MeshGradients& gradients);

}  // namespace meshgrad
