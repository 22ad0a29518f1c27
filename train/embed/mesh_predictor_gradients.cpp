// SPDX-License-Identifier: Apache-2.0
// Gradients of predictions. Each step back runs the model once more, on the node features recorded.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace meshgrad {
namespace {

/// Calls `body` with the values of a tensor on the host, in their type.
template <class Body>
void visit_values(const Tensor& tensor, Body&& body) {
  if (tensor.dtype() == DType::f64) return body(tensor.values<double>());
  if (tensor.dtype() == DType::f32) return body(tensor.values<float>());
  if (tensor.dtype() == DType::f16) return body(tensor.values<half>());
  body(tensor.values<bfloat16>());
}

/// Rows [first, first + rows) of a tensor on the host, times `scale`; zeros for an undefined one.
std::vector<double> widened_rows(const Tensor& tensor, int64_t first, int64_t rows, int64_t width,
                                 double scale) {
  std::vector<double> values(static_cast<size_t>(rows * width));
  if (!tensor.defined()) return values;
  visit_values(tensor.row_range(first, first + rows), [&](auto from) {
    using From = typename decltype(from)::value_type;
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<From, double>) {
        values[i] = from[i] * scale;
      } else {
        values[i] = static_cast<double>(static_cast<float>(from[i])) * scale;
      }
    }
  });
  return values;
}

/// The power of two that brings the largest value to [0.5, 1): gradients then fit in 16 bits.
double scale_of(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  int exponent = 0;
  std::frexp(largest, &exponent);
  return largest > 0 ? std::ldexp(1.0, -exponent) : 1.0;
}

Tensor gradient_on_device(Runtime& runtime, std::span<const double> values, const Shape& shape, DType dtype) {
  const Tensor host = host_tensor(shape, dtype);
  visit_values(host, [&](auto to) {
    using To = typename decltype(to)::value_type;
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<To, double>) {
        to[i] = values[i];
      } else {
        to[i] = To(static_cast<float>(values[i]));
      }
    }
  });
  Tensor device = Tensor::empty(runtime, shape, dtype, Tag::gradients, "of the prediction");
  copy(host, device, runtime.stream());
  return device;
}

}  // namespace

void MeshPredictor::Loaded::record_boundary(int64_t mesh, size_t target) {
  if (recording) recorded.push_back({.node_features = {}, .mesh = mesh, .target = target});
}

void MeshPredictor::Loaded::drop_steps() {
  recorded.clear();
  for (MeshState& mesh : meshes) mesh.given_gradient.clear();
}

const MeshGradients& MeshPredictor::Loaded::gradients_of(int64_t mesh) {
  const MeshState& state = mesh_at(mesh);
  if (state.gradients) return *state.gradients;
  throw invalid_argument("MeshPredictor: gradients", "those of backward()", "none",
                         "call record_steps, predict, set_gradient and backward first");
}

void MeshPredictor::Loaded::write_columns(std::span<const double> from, size_t column, int components,
                                          WritableNumbers& to) const {
  const auto width = static_cast<size_t>(task.inputs().outputs());
  const auto count = static_cast<size_t>(components);
  for (size_t i = 0; i < to.size(); ++i) to.set(i, from[i / count * width + column + i % count]);
}

void MeshPredictor::Loaded::walk_back(const RecordedStep& step) {
  if (step.node_features.empty()) {  // new boundary values: those before were not used further
    const MeshView& mesh = data->meshes[static_cast<size_t>(step.mesh)].view;
    const auto [index, column] = known_target(targets[step.target].name);
    const auto width = static_cast<size_t>(task.inputs().outputs());
    MeshGradients& gradients = *meshes[static_cast<size_t>(step.mesh)].gradients;
    for (size_t i = 0; i < static_cast<size_t>(mesh.nodes); ++i) {
      if (task.inputs().is_predicted(mesh.node_type[i])) continue;
      std::fill_n(gradients.current.begin() + static_cast<std::ptrdiff_t>(i * width + column),
                  targets[index].components, 0.0);
    }
    return;
  }
  const MeshInputs& reads = task.inputs();
  const Tensor& features = written.graph.node_features;
  std::memcpy(features.raw(), step.node_features.data(), step.node_features.size());
  upload();

  std::vector<double> seed(static_cast<size_t>(features.shape().rows() * reads.outputs()));
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    prediction_gradients(reads, mesh, normalizers.targets, *meshes[i].gradients,
                         std::span(seed).subspan(static_cast<size_t>(before[i].nodes * reads.outputs()),
                                                 static_cast<size_t>(mesh.nodes * reads.outputs())));
    step_back(reads, mesh, advance(), *meshes[i].gradients);
  }
  const double scale = scale_of(seed);
  for (double& value : seed) value *= scale;

  Tape tape(runtime);
  const EdgeSet& edges = batch.graph.edge_sets.front();
  const Variable nodes_in(batch.graph.node_features, true, batch.graph.node_rows());
  const Variable edges_in(edges.features, true, edges.graph.edge_rows());
  Values given_values{nodes_in};
  given_values.push_back(edges_in);
  const Variable prediction = forward(model, tape, batch.graph, given_values).front();
  tape.backward(std::span(&prediction, 1),
                {gradient_on_device(runtime, seed, prediction.value().shape(), prediction.value().dtype())});
  const auto on_host = [&](const Variable& value) {
    return value.gradient().defined() ? to_host(value.gradient(), runtime.stream()) : Tensor();
  };
  const Tensor by_nodes = on_host(nodes_in), by_edges = on_host(edges_in);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    MeshGradients& gradients = *meshes[i].gradients;
    add_node_gradients(reads, normalizers.nodes,
                       widened_rows(by_nodes, before[i].nodes, mesh.nodes, reads.node_inputs(), 1 / scale),
                       gradients);
    add_edge_gradients(mesh, normalizers.edges,
                       widened_rows(by_edges, before[i].edges, mesh.edges, reads.edge_inputs(), 1 / scale),
                       gradients);
  }
}

void MeshPredictor::record_steps(bool on) {
  if (on && loaded_->moves()) {
    throw invalid_argument("MeshPredictor: record_steps", "a model without data.world_position",
                           loaded_->config.data.world_position,
                           "gradients do not pass through positions that move; leave this call out");
  }
  const DataConfig& data = loaded_->config.data;
  if (on && (data.history > 1 || !data.kinematic_types.empty())) {
    throw invalid_argument("MeshPredictor: record_steps",
                           "a model with data.history = 1 and without data.kinematic_types", "another",
                           "gradients pass through one frame or two; leave this call out");
  }
  loaded_->recording = on;
  loaded_->drop_steps();
}

int64_t MeshPredictor::recorded_steps() const {
  return std::ranges::count_if(loaded_->recorded,
                               [](const RecordedStep& step) { return !step.node_features.empty(); });
}

void MeshPredictor::set_gradient(std::string_view name, Numbers values, int64_t mesh) {
  Loaded& s = *loaded_;
  MeshState& on = s.mesh_at(mesh);
  const auto [index, column] = s.known_target(name);
  s.check_size(s.targets[index], values.size(), mesh);
  on.given_gradient.resize(on.state.current.size());
  const auto width = static_cast<size_t>(s.task.inputs().outputs());
  const auto components = static_cast<size_t>(s.targets[index].components);
  for (size_t i = 0; i < values.size(); ++i)
    on.given_gradient[i / components * width + column + i % components] = values[i];
}

void MeshPredictor::backward() {
  Loaded& s = *loaded_;
  if (recorded_steps() == 0) {
    throw invalid_argument("MeshPredictor: backward", "recorded steps", "none",
                           "call record_steps(true), set the fields, then predict");
  }
  for (size_t i = 0; i < s.meshes.size(); ++i) {
    MeshState& mesh = s.meshes[i];
    mesh.gradients = zero_gradients(s.task.inputs(), s.data->meshes[i].view, s.advance());
    std::ranges::copy(mesh.given_gradient, mesh.gradients->current.begin());
  }
  try {
    for (auto step = s.recorded.rbegin(); step != s.recorded.rend(); ++step) s.walk_back(*step);
  } catch (...) {
    for (MeshState& mesh : s.meshes) mesh.gradients.reset();
    throw;
  }
}

void MeshPredictor::get_gradient(std::string_view name, WritableNumbers values, int64_t mesh) const {
  Loaded& s = *loaded_;
  const MeshGradients& gradients = s.gradients_of(mesh);
  if (const auto target = s.target_at(name)) {
    const FieldInfo& field = s.targets[target->first];
    s.check_size(field, values.size(), mesh);
    s.write_columns(gradients.current, target->second, field.components, values);
    return;
  }
  const std::vector<MeshInputs::Input>& inputs = s.task.inputs().inputs();
  const auto input = std::ranges::find(inputs, name, [](const auto& one) { return one.field.name; });
  if (input == inputs.end()) {
    throw invalid_argument("MeshPredictor: field", "one that the model reads or predicts",
                           fmt::format("\"{}\"", name), "name one of inputs() or targets()");
  }
  s.check_size(input->field, values.size(), mesh);
  const std::vector<double>& gradient = gradients.fields[static_cast<size_t>(input - inputs.begin())];
  for (size_t i = 0; i < gradient.size(); ++i) values.set(i, gradient[i]);
}

void MeshPredictor::get_previous_gradient(std::string_view name, WritableNumbers values, int64_t mesh) const {
  Loaded& s = *loaded_;
  const MeshGradients& gradients = s.gradients_of(mesh);
  const auto [index, column] = s.known_target(name);
  s.check_second_change("get_previous_gradient");
  s.check_size(s.targets[index], values.size(), mesh);
  s.write_columns(gradients.previous, column, s.targets[index].components, values);
}

void MeshPredictor::get_position_gradient(WritableNumbers values, int64_t mesh) const {
  const std::vector<double>& gradient = loaded_->gradients_of(mesh).positions;
  if (values.size() != gradient.size()) {
    throw invalid_argument("MeshPredictor: get_position_gradient",
                           fmt::format("room for {} numbers, [nodes, dim]", gradient.size()),
                           fmt::format("{}", values.size()));
  }
  for (size_t i = 0; i < gradient.size(); ++i) values.set(i, gradient[i]);
}

}  // namespace meshgrad
