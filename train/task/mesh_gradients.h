// SPDX-License-Identifier: Apache-2.0
// Gradients of a scalar with respect to what a model reads of a mesh: the transposes of what MeshInputs and
// the tasks compute on the host. In f64, physical units.
#pragma once
#include <meshgrad/train/task/mesh_inputs.h>

#include <span>
#include <vector>

namespace meshgrad {

/// How a prediction becomes the next state.
enum class Advance : uint8_t {
  change,         ///< current + prediction
  second_change,  ///< 2 current - previous + prediction
  replace         ///< prediction: steady fields; data.value_targets are replaced whatever others are
};

/// Of one mesh.
struct MeshGradients {
  std::vector<double> current, previous;    ///< [nodes, outputs], as FieldState
  std::vector<std::vector<double>> fields;  ///< by input, [rows, components]; empty where it is a target too
  std::vector<double> positions;            ///< [nodes, dim]
};

MeshGradients zero_gradients(const MeshInputs& inputs, const MeshView& mesh, Advance advance);

/// Of the normalised prediction, [nodes, outputs], from those of the state behind the step.
void prediction_gradients(const MeshInputs& inputs, const MeshView& mesh, const Normalizer& targets,
                          const MeshGradients& after, std::span<double> rows);
/// From the state behind a step to the state before it, without the part that passes through the model.
void step_back(const MeshInputs& inputs, const MeshView& mesh, Advance advance, MeshGradients& gradients);
/// The part that does: adds gradients of normalised node features, [nodes, node_inputs], and of normalised
/// edge features, [edges, dim + 1], to those of fields and positions. An edge of length 0 has no direction;
/// its length counts as constant.
void add_node_gradients(const MeshInputs& inputs, const Normalizer& nodes, std::span<const double> rows,
                        MeshGradients& gradients);
void add_edge_gradients(const MeshView& mesh, const Normalizer& edges, std::span<const double> rows,
                        MeshGradients& gradients);

}  // namespace meshgrad
