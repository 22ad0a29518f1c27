// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/embed/mesh_gradients.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace meshgrad {
namespace {

/// Columns of edge features that write_displacements writes.
struct Displacements {
  std::span<const float> positions;  // [nodes, dim]
  size_t dim = 0;
  size_t column = 0;  // of dim + 1
  size_t width = 0;   // of the rows
};

/// Calls add(node, axis, gradient) with what each end of an edge gets of normalised rows.
template <class Add>
void visit_displacements(const MeshView& mesh, const Displacements& of, const Normalizer& normalizer,
                         std::span<const double> rows, Add&& add) {
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e) {
    const auto sender = static_cast<size_t>(mesh.senders[e]);
    const auto receiver = static_cast<size_t>(mesh.receivers[e]);
    std::array<double, 3> d{};
    double squares = 0.0;
    for (size_t axis = 0; axis < of.dim; ++axis) {
      d[axis] = nearest_image(static_cast<double>(of.positions[sender * of.dim + axis]) -
                                  static_cast<double>(of.positions[receiver * of.dim + axis]),
                              mesh.period[axis]);
      squares += d[axis] * d[axis];
    }
    const double length = std::sqrt(squares);
    const double* row = rows.data() + e * of.width + of.column;
    const double by_length = normalizer.standard_deviation(of.column + of.dim) * length;
    const double of_length = length > 0 ? row[of.dim] / by_length : 0.0;
    for (size_t axis = 0; axis < of.dim; ++axis) {
      const double gradient =
          row[axis] / normalizer.standard_deviation(of.column + axis) + of_length * d[axis];
      add(sender, axis, gradient);
      add(receiver, axis, -gradient);
    }
  }
}

/// Likewise, to the field data.world_position.
void add_current_positions(const FieldSelection& fields, const MeshView& mesh, const Displacements& of,
                           const Normalizer& normalizer, std::span<const double> rows,
                           MeshGradients& gradients) {
  const int64_t column = fields.world_position->target_column;
  const auto outputs = static_cast<size_t>(fields.outputs);
  visit_displacements(mesh, of, normalizer, rows, [&](size_t node, size_t axis, double gradient) {
    double& to = column < 0 ? gradients.world[node * of.dim + axis]
                            : gradients.current[node * outputs + static_cast<size_t>(column) + axis];
    to += gradient;
  });
}

}  // namespace

std::span<double> MeshGradients::frame(int64_t before) {
  if (before == 0) return current;
  return std::span(previous).subspan(static_cast<size_t>(before - 1) * current.size(), current.size());
}

MeshGradients zero_gradients(const FieldSelection& fields, const MeshView& mesh) {
  const auto nodes = static_cast<size_t>(mesh.nodes);
  const size_t values = nodes * static_cast<size_t>(fields.outputs);
  MeshGradients zero;
  zero.current.resize(values);
  zero.previous.resize(static_cast<size_t>(fields.earlier_frames()) * values);
  for (const FieldSelection::Input& input : fields.inputs) {
    const size_t rows = input.target_column >= 0 ? 0 : input.field.on == FieldOn::node ? nodes : 1;
    zero.fields.emplace_back(rows * static_cast<size_t>(input.field.components));
  }
  zero.positions.resize(nodes * static_cast<size_t>(mesh.dim));
  if (const auto& world = fields.world_position; world && world->target_column < 0)
    zero.world.resize(nodes * static_cast<size_t>(world->field.components));
  for (const FieldSelection::Input& known : fields.known_changes)
    zero.next.emplace_back(nodes * static_cast<size_t>(known.field.components));
  return zero;
}

void set_next_known(const FieldSelection& fields, const MeshView& mesh, MeshGradients& gradients) {
  const auto outputs = static_cast<size_t>(fields.outputs);
  for (size_t k = 0; k < fields.known_changes.size(); ++k) {
    const FieldSelection::Input& known = fields.known_changes[k];
    std::vector<double>& next = gradients.next[k];
    std::ranges::fill(next, 0.0);
    if (known.target_column < 0) continue;
    const auto components = static_cast<size_t>(known.field.components);
    for (size_t i = 0; i < mesh.node_type.size(); ++i) {
      if (!fields.is_kinematic(mesh.node_type[i])) continue;
      for (size_t c = 0; c < components; ++c) {
        const size_t at = i * outputs + static_cast<size_t>(known.target_column) + c;
        next[i * components + c] = std::exchange(gradients.current[at], 0.0);
      }
    }
  }
}

void prediction_gradients(const FieldSelection& fields, const MeshView& mesh, const Normalizer& targets,
                          const MeshGradients& after, std::span<double> rows) {
  const auto width = static_cast<size_t>(fields.outputs);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool predicted = fields.is_predicted(mesh.node_type[i / width]);
    rows[i] = predicted ? after.current[i] * targets.standard_deviation(i % width) : 0.0;
  }
}

void step_back(const FieldSelection& fields, const MeshView& mesh, MeshGradients& gradients) {
  // The frames before are handed on: the current one becomes the latest of them, the oldest is dropped.
  const auto width = static_cast<size_t>(fields.outputs);
  const size_t values = gradients.current.size(),
               frames = gradients.previous.size() / std::max<size_t>(values, 1);
  for (size_t i = 0; i < values; ++i) {
    const bool predicted = fields.is_predicted(mesh.node_type[i / width]);
    const bool value = fields.value_columns[i % width] != 0;
    const double after = gradients.current[i];
    double by_current = predicted && value ? 0.0 : after, by_previous = 0.0;
    if (predicted && !value && fields.second_change()) {
      by_current = 2.0 * after;
      by_previous = -after;
    }
    for (size_t age = 0; age < frames; ++age) {
      double& previous = gradients.previous[age * values + i];
      const double handed_on = previous;
      (age == 0 ? by_current : gradients.previous[(age - 1) * values + i]) += handed_on;
      previous = age == 0 ? by_previous : 0.0;
    }
    gradients.current[i] = by_current;
  }
}

void add_node_gradients(const FieldSelection& fields, const MeshView& mesh, const Normalizer& nodes,
                        std::span<const double> rows, MeshGradients& gradients) {
  const auto width = static_cast<size_t>(fields.node_inputs);
  const auto outputs = static_cast<size_t>(fields.outputs);
  const size_t count = mesh.node_type.size();
  size_t column = 0;
  // Calls add(node, component, gradient) for the columns of one input.
  const auto visit = [&](int components, const auto& add) {
    for (size_t c = 0; c < static_cast<size_t>(components); ++c, ++column) {
      const double scale = 1.0 / nodes.standard_deviation(column);
      for (size_t i = 0; i < count; ++i) add(i, c, rows[i * width + column] * scale);
    }
  };
  for (size_t k = 0; k < fields.inputs.size(); ++k) {
    const FieldSelection::Input& input = fields.inputs[k];
    const int components = input.field.components;
    if (input.target_column < 0) {
      const size_t stride = input.field.on == FieldOn::node ? static_cast<size_t>(components) : 0;
      visit(components, [&](size_t i, size_t c, double g) { gradients.fields[k][i * stride + c] += g; });
      continue;
    }
    const auto first = static_cast<size_t>(input.target_column);
    const bool second = fields.changes_only(input);
    for (int64_t age = 0; age < fields.config.history; ++age) {
      const bool value = age == 0 && !second;
      const int64_t later = second ? age : std::max<int64_t>(age - 1, 0);
      const std::span<double> to = gradients.frame(later);
      const std::span<double> from = value ? std::span<double>() : gradients.frame(later + 1);
      visit(components, [&](size_t i, size_t c, double g) {
        to[i * outputs + first + c] += g;
        if (!value) from[i * outputs + first + c] -= g;
      });
    }
  }
  for (size_t k = 0; k < fields.known_changes.size(); ++k) {
    const FieldSelection::Input& known = fields.known_changes[k];
    const auto components = static_cast<size_t>(known.field.components);
    visit(known.field.components, [&](size_t i, size_t c, double g) {
      if (!fields.is_kinematic(mesh.node_type[i])) return;
      gradients.next[k][i * components + c] += g;
      double& now = known.target_column < 0
                        ? gradients.world[i * components + c]
                        : gradients.current[i * outputs + static_cast<size_t>(known.target_column) + c];
      now -= g;
    });
  }
}

void add_edge_gradients(const FieldSelection& fields, const MeshView& mesh, std::span<const float> current,
                        const Normalizer& edges, std::span<const double> rows, MeshGradients& gradients) {
  Displacements of{.width = edges.width()};
  if (fields.world_position) {
    of.positions = current;
    of.dim = static_cast<size_t>(fields.world_position->field.components);
    add_current_positions(fields, mesh, of, edges, rows, gradients);
    of.column = of.dim + 1;
  }
  of.positions = mesh.positions;
  of.dim = static_cast<size_t>(mesh.dim);
  visit_displacements(mesh, of, edges, rows, [&](size_t node, size_t axis, double gradient) {
    gradients.positions[node * of.dim + axis] += gradient;
  });
}

void add_world_gradients(const FieldSelection& fields, const MeshView& world, std::span<const float> current,
                         const Normalizer& edges, std::span<const double> rows, MeshGradients& gradients) {
  const size_t width = edges.width();
  add_current_positions(fields, world, {current, width - 1, 0, width}, edges, rows, gradients);
}

}  // namespace meshgrad
