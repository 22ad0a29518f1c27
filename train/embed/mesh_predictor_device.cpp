// SPDX-License-Identifier: Apache-2.0
// Steps of a MeshPredictor whose fields stay on the GPU. The kernels compute what write_nodes, write_edges
// and MeshTask::advance do on the host, to the same bits.
#include <meshgrad/kernels/solver_arrays.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>
#include <meshgrad/train/learn/task/mesh_task.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

constexpr auto kOne = [](size_t) { return 1.0; };

}  // namespace

bool MeshPredictor::Loaded::steps_on_device() const {
  return runtime.stream().on_gpu() && !in_parts && !world().any();
}

/// Uploads the graph, and makes the features that no step changes.
void MeshPredictor::Loaded::make_device_state(const std::deque<MeshState>& of) {
  const int64_t nodes = room.nodes, outputs = fields().outputs;
  DeviceState made;
  std::vector<uint8_t> predicted, kinematic, others;
  std::vector<float> positions, types;
  size_t type_columns = normalizers.nodes.width();
  for (const FieldSelection::Input& input : fields().inputs)
    type_columns -= static_cast<size_t>(columns_of(input));
  for (const FieldSelection::Input& known : known_changes())
    type_columns -= static_cast<size_t>(known.field.components);
  for (const MemoryMesh& mesh : data->meshes) {
    const std::vector<uint8_t> mask = fields().predicted_mask(mesh.view);
    predicted.insert(predicted.end(), mask.begin(), mask.end());
    positions.insert(positions.end(), mesh.view.positions.begin(), mesh.view.positions.end());
    for (const int32_t type : mesh.view.node_type) {
      kinematic.push_back(fields().is_kinematic(type) ? 1 : 0);
      others.push_back(fields().is_kinematic(type) ? 0 : 1);
      for (size_t column = 0; column < type_columns; ++column)
        types.push_back(std::cmp_equal(type, column) ? 1.0f : 0.0f);
    }
  }
  made.predicted = Tensor::from<uint8_t>(runtime, predicted, {nodes}, Tag::data, "predicted nodes");
  made.kinematic = Tensor::from<uint8_t>(runtime, kinematic, {nodes}, Tag::data, "kinematic nodes");
  made.others = Tensor::from<uint8_t>(runtime, others, {nodes}, Tag::data, "other nodes");
  made.value_columns =
      Tensor::from<uint8_t>(runtime, fields().value_columns, {outputs}, Tag::data, "value columns");
  made.node_scale = normalising(runtime, normalizers.nodes);
  made.edge_scale = normalising(runtime, normalizers.edges);
  made.target_scale = column_scale(
      runtime, normalizers.targets.width(), [&](size_t c) { return normalizers.targets.mean(c); },
      [&](size_t c) { return normalizers.targets.standard_deviation(c); });
  made.positions = Tensor::from<float>(runtime, positions, {nodes, dim()}, Tag::data, "positions");
  if (moves()) {
    const Shape shape{nodes, fields().world_position->field.components};
    made.moved = Tensor::zeros(runtime, shape, DType::f32, Tag::data, "current positions");
  }
  for (const MeshState& mesh : of) {
    const std::vector<double>& origin = mesh.mesh.origin();
    made.origins.push_back(origin.empty()
                               ? Tensor()
                               : column_scale(
                                     runtime, origin.size(), [&](size_t c) { return origin[c]; }, kOne));
  }
  for (int64_t frame = 0; frame <= earlier() + 1; ++frame)
    made.frames.push_back(Tensor::zeros(runtime, {nodes, outputs}, DType::f32, Tag::data, "fields"));
  for (const auto& [name, offset] : trained.offsets) {
    const auto& numbers = offset;
    made.offsets[name] = {column_scale(
                              runtime, numbers.size(), [&](size_t c) { return numbers[c]; }, kOne),
                          column_scale(
                              runtime, numbers.size(), [&](size_t c) { return -numbers[c]; }, kOne)};
  }
  uploaded = false;
  upload();
  const auto columns = static_cast<int64_t>(type_columns), first = fields().node_inputs - columns;
  if (columns > 0) {
    kernels::map_columns(
        {.rows = nodes,
         .columns = columns,
         .from = Tensor::from<float>(runtime, types, {nodes, columns}, Tag::data, "node types"),
         .scale = made.node_scale.row_range(first, first + columns),
         .to = batch.graph.node_features,
         .to_column = first},
        runtime.stream());
  }
  there = std::make_unique<DeviceState>(std::move(made));
  write_edges_there();
}

int64_t MeshPredictor::Loaded::columns_of(const FieldSelection::Input& input) const {
  return input.field.components * (input.target_column >= 0 ? config.data.history : 1);
}

void MeshPredictor::Loaded::write_displacements_there(const Tensor& positions, int64_t column) {
  const EdgeSet& edges = batch.graph.edges(kMeshEdges);
  kernels::edge_displacements({.edges = edges.graph.edge_rows(),
                               .senders = edges.graph.senders,
                               .receivers = edges.graph.receivers,
                               .positions = positions,
                               .period = data->meshes.front().view.period,
                               .scale = there->edge_scale.row_range(column, column + positions.width() + 1),
                               .features = edges.features,
                               .column = column},
                              runtime.stream());
}

/// Those of positions at rest; the others come before them.
void MeshPredictor::Loaded::write_edges_there() {
  write_displacements_there(there->positions, moves() ? there->moved.width() + 1 : 0);
}

/// From the state or from a field that was given.
void MeshPredictor::Loaded::read_moved_there() {
  const FieldSelection::Input& position = *fields().world_position;
  const bool target = position.target_column >= 0;
  for (size_t i = 0; i < meshes.size(); ++i) {
    const Tensor to = rows_there(there->moved, i);
    kernels::map_columns(
        {.rows = to.rows(),
         .columns = to.width(),
         .from = target ? rows_there(there->frames.front(), i) : given_there(i, position.field.name),
         .from_column = target ? position.target_column : 0,
         .to = to},
        runtime.stream());
  }
}

const Tensor& MeshPredictor::Loaded::given_there(size_t mesh, std::string_view field) const {
  const auto found = std::ranges::find(data->fields, field, &FieldInfo::name);
  return meshes[mesh].given_there[static_cast<size_t>(found - data->fields.begin())];
}

/// Rows of one mesh.
Tensor MeshPredictor::Loaded::rows_there(const Tensor& of_all, size_t mesh) const {
  return of_all.row_range(before[mesh].nodes, before[mesh].nodes + data->meshes[mesh].view.nodes);
}

/// From where the application has them.
void MeshPredictor::Loaded::read_positions_there() {
  for (size_t i = 0; i < meshes.size(); ++i) {
    const Numbers& given = meshes[i].mesh.given();
    const Tensor to = rows_there(there->positions, i);
    const bool here = given.device().kind == DeviceKind::cpu;
    if (here) meshes[i].mesh.read_positions();
    const Numbers from = here ? Numbers(data->meshes[i].view.positions) : given;
    kernels::map_columns({.rows = to.rows(),
                          .columns = to.width(),
                          .from = meshgrad::on_device(runtime, from, to.shape(), "mesh: positions"),
                          .scale = here ? Tensor() : there->origins[i],
                          .to = to},
                         runtime.stream());
    settle(runtime, given.device());
  }
  write_edges_there();
}

/// `boundary`: only of nodes that are not predicted.
void MeshPredictor::Loaded::set_target_there(size_t target, const Numbers& values, size_t mesh, size_t age,
                                             bool boundary) {
  const FieldInfo& field = targets[target];
  const Tensor to = rows_there(there->frames[age], mesh);
  const auto offset = there->offsets.find(field.name);
  const Shape shape{to.rows(), field.components};
  kernels::map_columns({.rows = to.rows(),
                        .columns = field.components,
                        .from = meshgrad::on_device(runtime, values, shape, field.name),
                        .scale = offset == there->offsets.end() ? Tensor() : offset->second.subtracted,
                        .kept = boundary ? rows_there(there->predicted, mesh) : Tensor(),
                        .to = to,
                        .to_column = static_cast<int64_t>(known_target(field.name).second)},
                       runtime.stream());
  settle(runtime, values.device());
}

void MeshPredictor::Loaded::get_target_there(size_t target, const WritableNumbers& values,
                                             size_t mesh) const {
  const FieldInfo& field = targets[target];
  const Tensor from = rows_there(there->frames.front(), mesh);
  const auto offset = there->offsets.find(field.name);
  write_on_device(runtime, values, {from.rows(), field.components}, field.name, [&](const Tensor& to) {
    kernels::map_columns({.rows = to.rows(),
                          .columns = field.components,
                          .from = from,
                          .from_column = static_cast<int64_t>(known_target(field.name).second),
                          .scale = offset == there->offsets.end() ? Tensor() : offset->second.added,
                          .to = to},
                         runtime.stream());
  });
}

std::vector<float> MeshPredictor::Loaded::fetched_state(size_t mesh) const {
  if (!there) return {};
  const Tensor here = to_host(rows_there(there->frames.front(), mesh), runtime.stream());
  return {here.values<float>().begin(), here.values<float>().end()};
}

/// Borrowed fields as f32 on the device: where they are, or copied.
void MeshPredictor::Loaded::read_given_there(size_t mesh) {
  MeshState& on = meshes[mesh];
  on.given_there.resize(on.given.size());
  for (size_t i = 0; i < on.given.size(); ++i) {
    if (!on.given[i].given()) continue;
    const FieldInfo& field = data->fields[i];
    const bool here = on.given[i].values().device().kind == DeviceKind::cpu;
    const Numbers values = here ? Numbers(on.given[i].read()) : on.given[i].values();
    const Shape shape{field.on == FieldOn::node ? data->meshes[mesh].view.nodes : 1, field.components};
    const Tensor from = meshgrad::on_device(runtime, values, shape, field.name);
    const auto offset = there->offsets.find(field.name);
    on.given_there[i] = from;
    if (here || (!values.wide() && offset == there->offsets.end())) continue;
    on.given_there[i] = Tensor::empty(runtime, shape, DType::f32, Tag::data, "solver's values");
    kernels::map_columns({.rows = shape.rows(),
                          .columns = field.components,
                          .from = from,
                          .scale = offset == there->offsets.end() ? Tensor() : offset->second.subtracted,
                          .to = on.given_there[i]},
                         runtime.stream());
  }
}

void MeshPredictor::Loaded::set_next_there(size_t change, const Numbers& values, size_t mesh) {
  MeshState& on = meshes[mesh];
  on.next_there.resize(known_changes().size());
  const FieldInfo& field = known_changes()[change].field;
  const auto offset = there->offsets.find(field.name);
  const Shape shape{data->meshes[mesh].view.nodes, field.components};
  Tensor& to = on.next_there[change];
  if (!to.defined()) to = Tensor::empty(runtime, shape, DType::f32, Tag::data, "next values");
  kernels::map_columns({.rows = shape.rows(),
                        .columns = field.components,
                        .from = meshgrad::on_device(runtime, values, shape, field.name),
                        .scale = offset == there->offsets.end() ? Tensor() : offset->second.subtracted,
                        .to = to},
                       runtime.stream());
  settle(runtime, values.device());
}

int64_t MeshPredictor::Loaded::write_columns_there(const FieldInfo& field, int64_t column, MapColumns args) {
  const int64_t end = column + field.components;
  args.rows = args.to.rows();
  args.columns = field.components;
  args.scale = there->node_scale.row_range(column, end);
  args.to_column = column;
  kernels::map_columns(args, runtime.stream());
  return end;
}

/// See write_known_changes. Where nodes do not follow them, next values become those of now: their change is
/// 0.
int64_t MeshPredictor::Loaded::write_known_there(int64_t column) {
  for (size_t k = 0; k < known_changes().size(); ++k) {
    const FieldSelection::Input& known = known_changes()[k];
    const int64_t from_column = std::max<int64_t>(known.target_column, 0);
    for (size_t i = 0; i < meshes.size(); ++i) {
      const Tensor& next = meshes[i].next_there[k];
      const Tensor now =
          known.target_column >= 0 ? rows_there(there->frames.front(), i) : given_there(i, known.field.name);
      kernels::map_columns({.rows = next.rows(),
                            .columns = next.width(),
                            .from = now,
                            .from_column = from_column,
                            .kept = rows_there(there->kinematic, i),
                            .to = next},
                           runtime.stream());
      write_columns_there(known.field, column,
                          {.from = next,
                           .minus = now,
                           .minus_column = from_column,
                           .to = rows_there(batch.graph.node_features, i)});
    }
    column += known.field.components;
  }
  return column;
}

void MeshPredictor::Loaded::move_kinematic_there() {
  for (size_t k = 0; k < known_changes().size(); ++k) {
    const FieldSelection::Input& known = known_changes()[k];
    for (size_t i = 0; i < meshes.size(); ++i) {
      meshes[i].set_next[k] = 0;
      if (known.target_column < 0) continue;
      const Tensor to = rows_there(there->frames.front(), i);
      kernels::map_columns({.rows = to.rows(),
                            .columns = known.field.components,
                            .from = meshes[i].next_there[k],
                            .kept = rows_there(there->others, i),
                            .to = to,
                            .to_column = known.target_column},
                           runtime.stream());
    }
  }
}

/// Node features but the types: see write_nodes.
void MeshPredictor::Loaded::write_nodes_there() {
  const Tensor& features = batch.graph.node_features;
  int64_t column = 0;
  for (const FieldSelection::Input& input : fields().inputs) {
    if (input.target_column >= 0) {
      const bool second = fields().changes_only(input);
      for (int64_t age = 0; age < config.data.history; ++age) {
        const auto later = static_cast<size_t>(second ? age : std::max<int64_t>(age - 1, 0));
        column = write_columns_there(input.field, column,
                                     {.from = there->frames[later],
                                      .from_column = input.target_column,
                                      .minus = age == 0 && !second ? Tensor() : there->frames[later + 1],
                                      .minus_column = input.target_column,
                                      .to = features});
      }
      continue;
    }
    for (size_t i = 0; i < meshes.size(); ++i) {
      write_columns_there(input.field, column,
                          {.from = given_there(i, input.field.name), .to = rows_there(features, i)});
    }
    column += input.field.components;
  }
  write_known_there(column);
}

RecordedStep MeshPredictor::Loaded::recorded_there() const {
  const auto copied = [&](const Tensor& from) {
    if (!from.defined()) return Tensor();
    const Tensor to = Tensor::empty(runtime, from.shape(), from.dtype(), Tag::data, "recorded step");
    copy(from, to, runtime.stream());
    return to;
  };
  return {.node_features = {},
          .there = copied(batch.graph.node_features),
          .moved = copied(there->moved),
          .positions = {}};
}

std::vector<std::vector<float>> MeshPredictor::Loaded::play_back_there(const RecordedStep& step) {
  copy(step.there, batch.graph.node_features, runtime.stream());
  std::vector<std::vector<float>> positions;
  if (!moves()) return positions;
  write_displacements_there(step.moved, 0);
  for (size_t i = 0; i < meshes.size(); ++i) {
    const Tensor here = to_host(rows_there(step.moved, i), runtime.stream());
    positions.emplace_back(here.values<float>().begin(), here.values<float>().end());
  }
  return positions;
}

void MeshPredictor::Loaded::step_on_device() {
  write_nodes_there();
  if (moves()) {
    read_moved_there();
    write_displacements_there(there->moved, 0);
  }
  std::optional<RecordedStep> step;
  if (recording) step = recorded_there();
  const auto [prediction, graphs] = run_model();
  graph_rows = graphs;
  std::vector<Tensor>& frames = there->frames;
  kernels::advance_state({.rows = prediction.rows(),
                          .prediction = prediction,
                          .scale = there->target_scale,
                          .values = there->value_columns,
                          .mask = there->predicted,
                          .current = frames.front(),
                          .before = fields().second_change() ? frames[1] : Tensor(),
                          .next = frames.back()},
                         runtime.stream());
  std::rotate(frames.begin(), frames.end() - 1, frames.end());
  move_kinematic_there();
  for (MeshState& mesh : meshes) std::ranges::fill(mesh.set_now, uint8_t{1});
  if (step) recorded.emplace_back(std::move(*step));
}

}  // namespace meshgrad
