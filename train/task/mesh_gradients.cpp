// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/task/mesh_gradients.h>

#include <array>
#include <cmath>

namespace meshgrad {

MeshGradients zero_gradients(const MeshInputs& inputs, const MeshView& mesh, Advance advance) {
  const auto nodes = static_cast<size_t>(mesh.nodes);
  const size_t values = nodes * static_cast<size_t>(inputs.outputs());
  MeshGradients zero;
  zero.current.resize(values);
  zero.previous.resize(advance == Advance::second_change ? values : 0);
  for (const MeshInputs::Input& input : inputs.inputs()) {
    const size_t rows = input.target_column >= 0 ? 0 : input.field.on == FieldOn::node ? nodes : 1;
    zero.fields.emplace_back(rows * static_cast<size_t>(input.field.components));
  }
  zero.positions.resize(nodes * static_cast<size_t>(mesh.dim));
  return zero;
}

void prediction_gradients(const MeshInputs& inputs, const MeshView& mesh, const Normalizer& targets,
                          const MeshGradients& after, std::span<double> rows) {
  const auto width = static_cast<size_t>(inputs.outputs());
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool predicted = inputs.is_predicted(mesh.node_type[i / width]);
    rows[i] = predicted ? after.current[i] * targets.standard_deviation(i % width) : 0.0;
  }
}

void step_back(const MeshInputs& inputs, const MeshView& mesh, Advance advance, MeshGradients& gradients) {
  const auto width = static_cast<size_t>(inputs.outputs());
  for (size_t i = 0; i < gradients.current.size(); ++i) {
    const bool predicted = inputs.is_predicted(mesh.node_type[i / width]);
    const double after = gradients.current[i];
    if (advance == Advance::replace || inputs.value_columns()[i % width] != 0) {
      gradients.current[i] = predicted ? 0.0 : after;
    } else if (advance == Advance::second_change) {
      gradients.current[i] = (predicted ? 2.0 : 1.0) * after + gradients.previous[i];
      gradients.previous[i] = predicted ? -after : 0.0;
    }
  }
}

void add_node_gradients(const MeshInputs& inputs, const Normalizer& nodes, std::span<const double> rows,
                        MeshGradients& gradients) {
  const auto width = static_cast<size_t>(inputs.node_inputs());
  const auto outputs = static_cast<size_t>(inputs.outputs());
  size_t column = 0;
  for (size_t k = 0; k < inputs.inputs().size(); ++k) {
    const MeshInputs::Input& input = inputs.inputs()[k];
    const auto components = static_cast<size_t>(input.field.components);
    for (size_t c = 0; c < components; ++c, ++column) {
      const double scale = 1.0 / nodes.standard_deviation(column);
      for (size_t i = 0; i < rows.size() / width; ++i) {
        const double gradient = rows[i * width + column] * scale;
        if (input.target_column < 0) {
          gradients.fields[k][(input.field.on == FieldOn::node ? i * components : 0) + c] += gradient;
          continue;
        }
        const size_t at = i * outputs + static_cast<size_t>(input.target_column) + c;
        gradients.current[at] += gradient;
        if (inputs.changes_alone(input)) gradients.previous[at] -= gradient;
      }
    }
  }
}

void add_edge_gradients(const MeshView& mesh, const Normalizer& edges, std::span<const double> rows,
                        MeshGradients& gradients) {
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e) {
    const size_t sender = static_cast<size_t>(mesh.senders[e]) * dim;
    const size_t receiver = static_cast<size_t>(mesh.receivers[e]) * dim;
    std::array<double, 3> d{};
    double squares = 0.0;
    for (size_t axis = 0; axis < dim; ++axis) {
      d[axis] = nearest_image(static_cast<double>(mesh.positions[sender + axis]) -
                                  static_cast<double>(mesh.positions[receiver + axis]),
                              mesh.period[axis]);
      squares += d[axis] * d[axis];
    }
    const double length = std::sqrt(squares);
    const double* row = rows.data() + e * (dim + 1);
    const double of_length = length > 0 ? row[dim] / (edges.standard_deviation(dim) * length) : 0.0;
    for (size_t axis = 0; axis < dim; ++axis) {
      const double gradient = row[axis] / edges.standard_deviation(axis) + of_length * d[axis];
      gradients.positions[sender + axis] += gradient;
      gradients.positions[receiver + axis] -= gradient;
    }
  }
}

}  // namespace meshgrad
