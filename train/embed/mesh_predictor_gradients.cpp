// SPDX-License-Identifier: Apache-2.0
// Gradients of predictions. Each step back runs the model once more, on the node features recorded.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

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
/// only zeros, which any other fits.
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
  if (recording) recorded.emplace_back(RecordedBoundary{static_cast<size_t>(mesh), target});
}

RecordedStep MeshPredictor::Loaded::step_to_record() {
  const Tensor& features = written.graph.node_features;
  const auto* bytes = static_cast<const std::byte*>(features.raw());
  RecordedStep step{.node_features = {bytes, bytes + features.bytes()}, .positions = {}};
  for (size_t i = 0; i < meshes.size(); ++i) {
    const std::span<const float> now = positions_of(states_now(), i);
    step.positions.emplace_back(now.begin(), now.end());
  }
  return step;
}

int64_t MeshPredictor::Loaded::recorded_steps() const {
  return std::ranges::count_if(recorded,
                               [](const Recorded& one) { return std::holds_alternative<RecordedStep>(one); });
}

void MeshPredictor::Loaded::drop_steps() {
  recorded.clear();
  for (MeshState& mesh : meshes) mesh.given_gradient.clear();
}

MeshGradients& MeshPredictor::Loaded::gradients_of(int64_t mesh) {
  MeshState& state = mesh_at(mesh);
  if (state.gradients) return *state.gradients;
  throw invalid_argument("MeshPredictor: gradients", "those of backward()", "none",
                         "call record_steps, predict, set_gradient and backward first");
}

void MeshPredictor::Loaded::write_columns(std::span<const double> from, size_t column, const FieldInfo& field,
                                          const WritableNumbers& to) const {
  const auto width = static_cast<size_t>(fields().outputs);
  const auto count = static_cast<size_t>(field.components);
  std::vector<double> values(to.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = from[i / count * width + column + i % count];
  write_numbers(runtime, values, field.name, to);
}

void MeshPredictor::Loaded::walk_back() {
  auto steps_before = static_cast<size_t>(recorded_steps());
  for (size_t i = 0; i < meshes.size(); ++i) {
    MeshState& mesh = meshes[i];
    const MeshView& view = data->meshes[i].view;
    mesh.of_steps.assign(steps_before + 1,
                         {.next = {}, .boundary = std::vector<std::vector<double>>(targets.size())});
    mesh.gradients = zero_gradients(fields(), view);
    const int64_t nodes = in_parts ? in_parts->ghosts[i].owned() : view.nodes;
    const auto values = static_cast<std::ptrdiff_t>(nodes * fields().outputs);
    if (!mesh.given_gradient.empty())
      std::copy_n(mesh.given_gradient.begin(), values, mesh.gradients->current.begin());
  }
  try {
    for (auto one = recorded.rbegin(); one != recorded.rend(); ++one) {
      if (const auto* boundary = std::get_if<RecordedBoundary>(&*one)) {
        walk_back(*boundary, steps_before);
        continue;
      }
      walk_back(std::get<RecordedStep>(*one));
      --steps_before;
      for (MeshState& mesh : meshes) mesh.of_steps[steps_before].next = mesh.gradients->next;
    }
    gather_gradients();
  } catch (...) {
    for (MeshState& mesh : meshes) mesh.gradients.reset();
    throw;
  }
}

/// New boundary values: those before were not used further.
void MeshPredictor::Loaded::walk_back(const RecordedBoundary& boundary, size_t before_step) {
  const MeshView& mesh = data->meshes[boundary.mesh].view;
  const FieldInfo& field = targets[boundary.target];
  const size_t column = known_target(field.name).second;
  const auto width = static_cast<size_t>(fields().outputs);
  const auto components = static_cast<size_t>(field.components);
  std::vector<double>& current = meshes[boundary.mesh].gradients->current;
  std::vector<double> given(static_cast<size_t>(mesh.nodes) * components);
  for (size_t i = 0; i < given.size(); ++i) {
    if (fields().is_predicted(mesh.node_type[i / components])) continue;
    given[i] = std::exchange(current[i / components * width + column + i % components], 0.0);
  }
  std::vector<double>& kept = meshes[boundary.mesh].of_steps[before_step].boundary[boundary.target];
  if (kept.empty()) kept = std::move(given);  // else replaced by a later call
}

/// Where the positions are no target, the fields have them: a step reads its own anew.
std::vector<FieldState> MeshPredictor::Loaded::states_of(const std::vector<std::vector<float>>& moved) {
  std::vector<FieldState> states(meshes.size());
  if (!moves()) return states;
  const FieldSelection::Input& position = *fields().world_position;
  const auto width = static_cast<size_t>(fields().outputs);
  const auto components = static_cast<size_t>(position.field.components);
  const auto field = std::ranges::find(data->fields, position.field.name, &FieldInfo::name);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const std::vector<float>& positions = moved[i];
    if (position.target_column < 0) {
      data->trajectories[i].fields[static_cast<size_t>(field - data->fields.begin())] = positions;
      continue;
    }
    const auto column = static_cast<size_t>(position.target_column);
    states[i].current.resize(positions.size() / components * width);
    for (size_t j = 0; j < positions.size(); ++j)
      states[i].current[j / components * width + column + j % components] = positions[j];
  }
  return states;
}

std::vector<double> MeshPredictor::Loaded::seed_of_step() {
  const FieldSelection& reads = fields();
  const auto outputs = static_cast<size_t>(reads.outputs);
  std::vector<double> seed(static_cast<size_t>(written.graph.nodes) * outputs);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    set_next_known(reads, mesh, *meshes[i].gradients);
    prediction_gradients(reads, mesh, normalizers.targets, *meshes[i].gradients,
                         std::span(seed).subspan(static_cast<size_t>(before[i].nodes) * outputs,
                                                 static_cast<size_t>(mesh.nodes) * outputs));
    step_back(reads, mesh, *meshes[i].gradients);
  }
  return seed;
}

void MeshPredictor::Loaded::walk_back(const RecordedStep& step) {
  const std::vector<std::vector<float>> positions = there ? play_back_there(step) : step.positions;
  const std::vector<FieldState> all = states_of(positions);
  const StateOf states = [&](size_t mesh) -> const FieldState& { return all[mesh]; };
  const auto recorded_nodes = [&] {
    std::memcpy(written.graph.node_features.raw(), step.node_features.data(), step.node_features.size());
  };
  if (!there) write_inputs(states, recorded_nodes);
  run_backward(states, seed_of_step());
  if (moves()) gather_moved_ghosts();
}

/// The part of a step's gradients that passes through the model.
void MeshPredictor::Loaded::run_backward(const StateOf& states, std::vector<double> seed) {
  const FieldSelection& reads = fields();
  std::span<const int32_t> nodes_of_rows, edges_of_rows;
  if (in_parts) {
    nodes_of_rows = std::span(in_parts->part->nodes).first(static_cast<size_t>(in_parts->part->owned));
    edges_of_rows = in_parts->part->edges(kMeshEdges).rows;
    seed = chosen_rows(seed, nodes_of_rows, static_cast<size_t>(reads.outputs));
  }
  // The same on all ranks, as gradients cross their borders.
  const double wanted = in_parts ? smallest(ranks, scale_of(seed)) : scale_of(seed);
  const double scale = std::isfinite(wanted) ? wanted : 1.0;
  for (double& value : seed) value *= scale;

  Tape tape(runtime);
  Values features{Variable(batch.graph.node_features, true, batch.graph.node_rows())};
  for (const EdgeSet& edges : batch.graph.edge_sets)
    features.push_back(Variable(edges.features, true, edges.graph.edge_rows()));
  const Variable prediction = forward(model, tape, batch.graph, features).front();
  tape.backward(std::span(&prediction, 1),
                {gradient_on_device(runtime, seed, prediction.value().shape(), prediction.value().dtype())});
  const auto rows_of_input = [&](size_t i, const Tensor& like, std::span<const int32_t> to) {
    const Tensor& gradient = features[i].gradient();
    return widened_rows(gradient.defined() ? to_host(gradient, runtime.stream()) : Tensor(), to,
                        like.shape().rows(), like.width(), 1 / scale);
  };
  const auto part_of = [](const std::vector<double>& all, int64_t first, int64_t rows, int64_t width) {
    return std::span(all).subspan(static_cast<size_t>(first * width), static_cast<size_t>(rows * width));
  };
  const std::vector<double> by_nodes = rows_of_input(0, written.graph.node_features, nodes_of_rows);
  const std::vector<double> by_edges =
      rows_of_input(1, written.graph.edges(kMeshEdges).features, edges_of_rows);
  const bool has_world = world().any();
  const std::vector<double> by_world =
      has_world ? rows_of_input(2, written.graph.edges(kWorldEdges).features, {}) : std::vector<double>();
  const std::vector<MeshEdges> found = has_world ? world_edges_at(states) : std::vector<MeshEdges>();
  int64_t world_before = 0;
  Tensor at_rest;
  for (size_t i = 0; i < meshes.size(); ++i) {
    MeshView mesh = data->meshes[i].view;
    MeshGradients& gradients = *meshes[i].gradients;
    if (there)
      at_rest = to_host(rows_there(there->positions, i), runtime.stream()),
      mesh.positions = at_rest.values<float>();
    const std::span<const float> positions = positions_of(states, i);
    add_node_gradients(reads, mesh, normalizers.nodes,
                       part_of(by_nodes, before[i].nodes, mesh.nodes, reads.node_inputs), gradients);
    add_edge_gradients(reads, mesh, positions, normalizers.edges,
                       part_of(by_edges, before[i].edges, mesh.edges, task.sizes().edge_inputs.front()),
                       gradients);
    if (!has_world) continue;
    set_edges(mesh, found[i]);
    add_world_gradients(reads, mesh, positions, normalizers.world,
                        part_of(by_world, world_before, mesh.edges, world().inputs()), gradients);
    world_before += mesh.edges;
  }
}

/// What the ghosts' positions gathered in a step goes to their nodes before the next step back.
void MeshPredictor::Loaded::gather_moved_ghosts() {
  const auto width = static_cast<size_t>(fields().outputs);
  for (size_t i = 0; in_parts && i < meshes.size(); ++i) {
    std::vector<double>& current = meshes[i].gradients->current;
    in_parts->ghosts[i].add(ranks, current, width);
    const auto owned = static_cast<size_t>(in_parts->ghosts[i].owned());
    std::fill(current.begin() + static_cast<std::ptrdiff_t>(owned * width), current.end(), 0.0);
  }
}

/// What ghosts gathered goes to their nodes, and their nodes' gradients to the ghosts. A field on the whole
/// mesh has one gradient for all ranks.
void MeshPredictor::Loaded::gather_gradients() {
  for (size_t i = 0; in_parts && i < meshes.size(); ++i) {
    const GhostRows& ghosts = in_parts->ghosts[i];
    const auto nodes = static_cast<size_t>(data->meshes[i].view.nodes);
    MeshGradients& gradients = *meshes[i].gradients;
    const auto fill = [&](std::span<double> values) {
      ghosts.fill(ranks, values, nodes > 0 ? values.size() / nodes : 0);
    };
    const auto add = [&](std::vector<double>& values) {
      ghosts.add(ranks, values, nodes > 0 ? values.size() / nodes : 0);
      fill(values);
    };
    add(gradients.positions);
    if (!gradients.world.empty()) add(gradients.world);
    for (int64_t frame = 0; frame <= earlier(); ++frame) fill(gradients.frame(frame));
    for (size_t k = 0; k < gradients.fields.size(); ++k) {
      std::vector<double>& values = gradients.fields[k];
      if (fields().inputs[k].field.on == FieldOn::node) {
        fill(values);
      } else {
        all_reduce(ranks, std::span(values), "gradients of a field on the whole mesh");
      }
    }
  }
}

void MeshPredictor::record_steps(bool on) {
  Loaded& s = loaded();
  s.recording = on;
  s.drop_steps();
}

int64_t MeshPredictor::recorded_steps() const { return loaded().recorded_steps(); }

void MeshPredictor::set_gradient(std::string_view name, Numbers values, int64_t mesh) {
  Loaded& s = loaded();
  MeshState& on = s.mesh_at(mesh);
  const auto [index, column] = s.known_target(name);
  s.check_size(s.targets[index], values.size(), mesh);
  const auto width = static_cast<size_t>(s.fields().outputs);
  on.given_gradient.resize(static_cast<size_t>(s.data->meshes[static_cast<size_t>(mesh)].view.nodes) * width);
  const auto components = static_cast<size_t>(s.targets[index].components);
  HostCopies copies(s.runtime);
  const Numbers here = copies.read(values, name);
  for (size_t i = 0; i < here.size(); ++i)
    on.given_gradient[i / components * width + column + i % components] = here[i];
}

void MeshPredictor::backward() {
  Loaded& s = loaded();
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
  Loaded& s = loaded();
  const MeshGradients& gradients = s.gradients_of(mesh);
  if (const auto target = s.target_at(name)) {
    const FieldInfo& field = s.targets[target->first];
    s.check_size(field, values.size(), mesh);
    s.write_columns(gradients.current, target->second, field, values);
    return;
  }
  const std::vector<FieldSelection::Input>& inputs = s.fields().inputs;
  const auto input = std::ranges::find(inputs, name, [](const auto& one) { return one.field.name; });
  const auto& world = s.fields().world_position;
  const bool positions = world && world->field.name == name;
  if (input == inputs.end() && !positions) {
    throw invalid_argument("MeshPredictor: field", "one that the model reads or predicts",
                           fmt::format("\"{}\"", name), "name one of inputs() or targets()");
  }
  s.check_size(positions ? world->field : input->field, values.size(), mesh);
  std::vector<double> gradient = positions ? gradients.world : std::vector<double>(values.size());
  if (input != inputs.end()) {
    const std::vector<double>& of_nodes = gradients.fields[static_cast<size_t>(input - inputs.begin())];
    std::ranges::transform(gradient, of_nodes, gradient.begin(), std::plus<>());
  }
  write_numbers(s.runtime, gradient, name, values);
}

void MeshPredictor::get_previous_gradient(std::string_view name, WritableNumbers values, int64_t mesh,
                                          int64_t steps_before) const {
  Loaded& s = loaded();
  MeshGradients& gradients = s.gradients_of(mesh);
  const auto [index, column] = s.known_target(name);
  s.check_earlier("get_previous_gradient", steps_before);
  s.check_size(s.targets[index], values.size(), mesh);
  s.write_columns(gradients.frame(steps_before), column, s.targets[index], values);
}

/// Gradients of what was given for a recorded step.
const MeshState::OfStep& MeshPredictor::Loaded::of_step(std::string_view call, int64_t mesh, int64_t step,
                                                        int64_t last) {
  gradients_of(mesh);
  if (step >= 0 && step <= last) return mesh_at(mesh).of_steps[static_cast<size_t>(step)];
  throw invalid_argument(fmt::format("MeshPredictor: {}", call), fmt::format("a step from 0 to {}", last),
                         fmt::format("{}", step), "recorded steps are numbered from 0");
}

void MeshPredictor::get_next_gradient(std::string_view name, WritableNumbers values, int64_t mesh,
                                      int64_t step) const {
  Loaded& s = loaded();
  const size_t k = s.known_change("get_next_gradient", name);
  const auto last = static_cast<int64_t>(s.mesh_at(mesh).of_steps.size()) - 2;
  const MeshState::OfStep& of = s.of_step("get_next_gradient", mesh, step, last);
  s.check_size(s.known_changes()[k].field, values.size(), mesh);
  write_numbers(s.runtime, of.next[k], name, values);
}

void MeshPredictor::get_boundary_gradient(std::string_view name, WritableNumbers values, int64_t mesh,
                                          int64_t step) const {
  Loaded& s = loaded();
  const size_t index = s.known_target(name).first;
  const auto last = static_cast<int64_t>(s.mesh_at(mesh).of_steps.size()) - 1;
  const MeshState::OfStep& of = s.of_step("get_boundary_gradient", mesh, step, last);
  s.check_size(s.targets[index], values.size(), mesh);
  const std::vector<double>& gradient = of.boundary[index];
  write_numbers(s.runtime, gradient.empty() ? std::vector<double>(values.size()) : gradient, name, values);
}

void MeshPredictor::get_position_gradient(WritableNumbers values, int64_t mesh) const {
  Loaded& s = loaded();
  const std::vector<double>& gradient = s.gradients_of(mesh).positions;
  if (values.size() != gradient.size()) {
    throw invalid_argument("MeshPredictor: get_position_gradient",
                           fmt::format("room for {} numbers, [nodes, dim]", gradient.size()),
                           fmt::format("{}", values.size()));
  }
  write_numbers(s.runtime, gradient, "gradient of positions", values);
}

}  // namespace meshgrad
