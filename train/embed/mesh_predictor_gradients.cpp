// SPDX-License-Identifier: Apache-2.0
// Gradients of predictions. Each step back runs the model once more, on the node features recorded.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

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

/// A tensor on the host in f64, times `scale`, as [rows, width]: its row i becomes row to[i], or row i where
/// `to` is empty. All else, and all of an undefined tensor, is 0.
std::vector<double> widened_rows(const Tensor& tensor, std::span<const int32_t> to, int64_t rows,
                                 int64_t width, double scale) {
  std::vector<double> values(static_cast<size_t>(rows * width));
  if (!tensor.defined()) return values;
  const auto columns = static_cast<size_t>(width);
  visit_values(tensor, [&](auto from) {
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t row = to.empty() ? i / columns : static_cast<size_t>(to[i / columns]);
      double& value = values[row * columns + i % columns];
      if constexpr (std::is_same_v<typename decltype(from)::value_type, double>) {
        value = from[i] * scale;
      } else {
        value = static_cast<double>(static_cast<float>(from[i])) * scale;
      }
    }
  });
  return values;
}

/// The power of two that brings the largest value to [0.5, 1): gradients then fit in 16 bits. Infinity for
/// zeros alone, which any other fits.
double scale_of(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  int exponent = 0;
  std::frexp(largest, &exponent);
  return largest > 0 ? std::ldexp(1.0, -exponent) : std::numeric_limits<double>::infinity();
}

/// Rows of [.., width].
std::vector<double> chosen_rows(std::span<const double> from, std::span<const int32_t> rows, size_t width) {
  std::vector<double> chosen;
  for (const int32_t row : rows) {
    const auto values = from.subspan(static_cast<size_t>(row) * width, width);
    chosen.insert(chosen.end(), values.begin(), values.end());
  }
  return chosen;
}

double smallest(Ranks& ranks, double mine) {
  return std::ranges::min(all_gather(ranks, mine, "scale of gradients"));
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

/// `to` on the host or a device, of the same size.
void write_numbers(const Runtime& runtime, std::span<const double> from, std::string_view what,
                   const WritableNumbers& to) {
  HostCopies copies(runtime);
  WritableNumbers here = copies.room_for(to, what);
  for (size_t i = 0; i < from.size(); ++i) here.set(i, from[i]);
  copies.write_back();
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

void MeshPredictor::Loaded::write_columns(std::span<const double> from, size_t column, const FieldInfo& field,
                                          const WritableNumbers& to) const {
  const auto width = static_cast<size_t>(task.inputs().outputs());
  const auto count = static_cast<size_t>(field.components);
  std::vector<double> values(to.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = from[i / count * width + column + i % count];
  write_numbers(runtime, values, field.name, to);
}

void MeshPredictor::Loaded::walk_back() {
  for (size_t i = 0; i < meshes.size(); ++i) {
    MeshState& mesh = meshes[i];
    const MeshView& view = data->meshes[i].view;
    mesh.gradients = zero_gradients(task.inputs(), view, advance());
    const int64_t nodes = in_parts ? in_parts->parts.owned(view) : view.nodes;
    const auto values = static_cast<std::ptrdiff_t>(nodes * task.inputs().outputs());
    if (!mesh.given_gradient.empty())
      std::copy_n(mesh.given_gradient.begin(), values, mesh.gradients->current.begin());
  }
  try {
    for (auto step = recorded.rbegin(); step != recorded.rend(); ++step) walk_back(*step);
    gather_gradients();
  } catch (...) {
    for (MeshState& mesh : meshes) mesh.gradients.reset();
    throw;
  }
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

  const auto outputs = static_cast<size_t>(reads.outputs());
  std::vector<double> seed(static_cast<size_t>(features.shape().rows()) * outputs);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    prediction_gradients(reads, mesh, normalizers.targets, *meshes[i].gradients,
                         std::span(seed).subspan(static_cast<size_t>(before[i].nodes) * outputs,
                                                 static_cast<size_t>(mesh.nodes) * outputs));
    step_back(reads, mesh, advance(), *meshes[i].gradients);
  }
  std::span<const int32_t> nodes_of_rows, edges_of_rows;
  if (in_parts) {
    nodes_of_rows = std::span(in_parts->part->nodes).first(static_cast<size_t>(in_parts->part->owned));
    edges_of_rows = in_parts->part->edge_sets.front().rows;
    seed = chosen_rows(seed, nodes_of_rows, outputs);
  }
  // The same on all ranks, as gradients cross their borders.
  const double wanted = in_parts ? smallest(ranks, scale_of(seed)) : scale_of(seed);
  const double scale = std::isfinite(wanted) ? wanted : 1.0;
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
  const std::vector<double> by_nodes =
      widened_rows(on_host(nodes_in), nodes_of_rows, features.rows(), reads.node_inputs(), 1 / scale);
  const std::vector<double> by_edges =
      widened_rows(on_host(edges_in), edges_of_rows, written.graph.edge_sets.front().features.rows(),
                   reads.edge_inputs(), 1 / scale);
  const auto rows_of = [](const std::vector<double>& all, int64_t first, int64_t rows, int64_t width) {
    return std::span(all).subspan(static_cast<size_t>(first * width), static_cast<size_t>(rows * width));
  };
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    MeshGradients& gradients = *meshes[i].gradients;
    add_node_gradients(reads, normalizers.nodes,
                       rows_of(by_nodes, before[i].nodes, mesh.nodes, reads.node_inputs()), gradients);
    add_edge_gradients(mesh, normalizers.edges,
                       rows_of(by_edges, before[i].edges, mesh.edges, reads.edge_inputs()), gradients);
  }
}

/// What ghosts gathered goes to their nodes, and their nodes' gradients to the ghosts. A field on the whole
/// mesh has one gradient for all ranks.
void MeshPredictor::Loaded::gather_gradients() {
  for (size_t i = 0; in_parts && i < meshes.size(); ++i) {
    const GhostRows& ghosts = in_parts->ghosts[i];
    const auto nodes = static_cast<size_t>(data->meshes[i].view.nodes);
    MeshGradients& gradients = *meshes[i].gradients;
    const auto fill = [&](std::vector<double>& values) {
      ghosts.fill(ranks, std::span(values), nodes > 0 ? values.size() / nodes : 0);
    };
    ghosts.add(ranks, gradients.positions, static_cast<size_t>(dim()));
    fill(gradients.positions);
    fill(gradients.current);
    fill(gradients.previous);
    for (size_t k = 0; k < gradients.fields.size(); ++k) {
      std::vector<double>& values = gradients.fields[k];
      if (task.inputs().inputs()[k].field.on == FieldOn::node) {
        fill(values);
      } else {
        all_reduce(ranks, std::span(values), "gradients of a field on the whole mesh");
      }
    }
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
  HostCopies copies(s.runtime);
  const Numbers here = copies.read(values, name);
  for (size_t i = 0; i < here.size(); ++i)
    on.given_gradient[i / components * width + column + i % components] = here[i];
}

void MeshPredictor::backward() {
  Loaded& s = *loaded_;
  const auto check = [&] {
    if (recorded_steps() > 0) return;
    throw invalid_argument("MeshPredictor: backward", "recorded steps", "none",
                           "call record_steps(true), set the fields, then predict");
  };
  if (!s.in_parts) {
    check();
    return s.walk_back();
  }
  on_all_ranks(s.ranks, check);
  const std::vector<int64_t> steps = all_gather(s.ranks, recorded_steps(), "recorded steps");
  if (std::ranges::adjacent_find(steps, std::not_equal_to<>()) != steps.end()) {
    throw invalid_argument("MeshPredictor: backward", "as many recorded steps on all ranks",
                           fmt::format("{}", fmt::join(steps, ", ")),
                           "call record_steps on every rank before the same prediction");
  }
  or_leave(s.ranks, [&] { s.walk_back(); });
}

void MeshPredictor::get_gradient(std::string_view name, WritableNumbers values, int64_t mesh) const {
  Loaded& s = *loaded_;
  const MeshGradients& gradients = s.gradients_of(mesh);
  if (const auto target = s.target_at(name)) {
    const FieldInfo& field = s.targets[target->first];
    s.check_size(field, values.size(), mesh);
    s.write_columns(gradients.current, target->second, field, values);
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
  write_numbers(s.runtime, gradient, name, values);
}

void MeshPredictor::get_previous_gradient(std::string_view name, WritableNumbers values, int64_t mesh) const {
  Loaded& s = *loaded_;
  const MeshGradients& gradients = s.gradients_of(mesh);
  const auto [index, column] = s.known_target(name);
  s.check_second_change("get_previous_gradient");
  s.check_size(s.targets[index], values.size(), mesh);
  s.write_columns(gradients.previous, column, s.targets[index], values);
}

void MeshPredictor::get_position_gradient(WritableNumbers values, int64_t mesh) const {
  const std::vector<double>& gradient = loaded_->gradients_of(mesh).positions;
  if (values.size() != gradient.size()) {
    throw invalid_argument("MeshPredictor: get_position_gradient",
                           fmt::format("room for {} numbers, [nodes, dim]", gradient.size()),
                           fmt::format("{}", values.size()));
  }
  write_numbers(loaded_->runtime, gradient, "gradient of positions", values);
}

}  // namespace meshgrad
