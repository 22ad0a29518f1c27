// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/partition/part_batch.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>
#include <meshgrad/train/learn/task/upload.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace meshgrad {

std::vector<double> MeshPredictor::Loaded::offset_of(const std::string& field) const {
  const auto found = trained.offsets.find(field);
  return found == trained.offsets.end() ? std::vector<double>{} : found->second;
}

MeshState& MeshPredictor::Loaded::mesh_at(int64_t mesh) {
  if (mesh < 0 || mesh >= std::ssize(meshes)) {
    throw invalid_argument("MeshPredictor: mesh", fmt::format("one of the {} meshes set", meshes.size()),
                           fmt::format("{}", mesh), "call set_mesh first; meshes are numbered from 0");
  }
  return meshes[static_cast<size_t>(mesh)];
}

std::pair<size_t, size_t> MeshPredictor::Loaded::known_target(std::string_view name) const {
  if (const auto at = target_at(name)) return *at;
  throw invalid_argument("MeshPredictor: field", "one that is predicted: " + fields().targets.names(),
                         fmt::format("\"{}\"", name), "name one of them");
}

void MeshPredictor::Loaded::check_earlier(std::string_view call, int64_t steps_before) const {
  const std::string place = fmt::format("MeshPredictor: {}", call);
  if (earlier() == 0) {
    throw invalid_argument(place, "a model of second changes, or with data.history above 1",
                           "a model that steps from a single frame", "leave this call out");
  }
  if (steps_before < 1 || steps_before > earlier()) {
    throw invalid_argument(place, fmt::format("1 to {} steps before", earlier()),
                           fmt::format("{}", steps_before), "data.history says how many the model reads");
  }
}

size_t MeshPredictor::Loaded::known_change(std::string_view call, std::string_view name) const {
  const auto known = std::ranges::find(known_changes(), name, [](const auto& one) { return one.field.name; });
  if (known != known_changes().end()) return static_cast<size_t>(known - known_changes().begin());
  throw invalid_argument(fmt::format("MeshPredictor: {}", call),
                         "data.world_position, or a target, of a model with data.kinematic_types",
                         fmt::format("\"{}\"", name), "leave this call out, or name that field");
}

int64_t MeshPredictor::Loaded::frames_before(size_t target) const {
  const std::string& name = targets[target].name;
  const bool second = fields().predicted_quantity(name) == Quantity::second_change;
  const auto input = std::ranges::find(fields().inputs, name, [](const auto& one) { return one.field.name; });
  if (input == fields().inputs.end()) return second ? 1 : 0;
  return config.data.history - (second ? 0 : 1);
}

void MeshPredictor::Loaded::upload() {
  const Stream& stream = runtime.stream();
  if (in_parts && !uploaded) write_part(written, *in_parts->part, in_parts->staged);
  if (in_parts && uploaded) {
    const auto owned = std::span(in_parts->part->nodes).first(static_cast<size_t>(in_parts->part->owned));
    copy_rows(written.graph.node_features, owned, in_parts->staged.graph.node_features);
  }
  if (stream.on_gpu() && uploaded) {
    copy((in_parts ? in_parts->staged : written).graph.node_features, batch.graph.node_features, stream);
  } else if (stream.on_gpu()) {
    const Shape all{host->bytes()};
    copy(Tensor::over(host, 0, all, DType::u8), Tensor::over(device, 0, all, DType::u8), stream);
  }
  uploaded = true;
}

/// The prediction of `batch`, on its device.
ModelOutput MeshPredictor::Loaded::run_model() {
  if (config.graphs == GraphsMode::capture && runtime.stream().on_gpu() && !in_parts) {
    if (!captured) captured.emplace(runtime, model);
    return captured->run(batch);
  }
  return meshgrad::run_model(runtime, model, batch.graph);
}

void MeshPredictor::Loaded::step() {
  if (there) return step_on_device();
  if (moves()) fill_ghosts();  // edges read where they are
  for (size_t i = 0; i < meshes.size(); ++i) read_given(i);
  write_inputs(states_now(), [this] { write_nodes(); });
  std::optional<RecordedStep> step;
  if (recording) step = step_to_record();
  const ModelOutput output = run_model();
  graph_rows = output.graphs;
  Tensor prediction = to_host(output.rows, runtime.stream());
  if (in_parts) {
    if (!in_parts->prediction.defined())
      in_parts->prediction = host_tensor({written.graph.nodes, prediction.width()}, prediction.dtype());
    place_rows(prediction, *in_parts->part, in_parts->prediction);
    prediction = in_parts->prediction;
  }
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& view = data->meshes[i].view;
    const Tensor rows = prediction.row_range(before[i].nodes, before[i].nodes + view.nodes);
    task.mesh().advance(view, rows, normalizers, scratch, meshes[i].state);
    move_kinematic(i);
    std::ranges::fill(meshes[i].set_now, uint8_t{1});
  }
  if (step) recorded.emplace_back(std::move(*step));
}

MeshPredictor::~MeshPredictor() = default;
MeshPredictor::MeshPredictor(MeshPredictor&&) noexcept = default;
MeshPredictor& MeshPredictor::operator=(MeshPredictor&&) noexcept = default;
void MeshPredictor::Delete::operator()(Loaded* loaded) const { delete_in_own_process(loaded); }
MeshPredictor::Loaded& MeshPredictor::loaded() const {
  loaded_->process.check("MeshPredictor");
  return *loaded_;
}

const Config& MeshPredictor::config() const { return loaded().config; }
int MeshPredictor::dim() const { return loaded().data->dim; }
double MeshPredictor::dt() const { return loaded().trained.dt; }
const std::vector<FieldInfo>& MeshPredictor::inputs() const { return loaded().inputs; }
const std::vector<FieldInfo>& MeshPredictor::targets() const { return loaded().targets; }
const std::vector<FieldInfo>& MeshPredictor::graph_targets() const { return loaded().graph_targets(); }
int64_t MeshPredictor::earlier_frames() const { return loaded().earlier(); }

MeshPredictor::Loaded::Held MeshPredictor::Loaded::hold(std::span<const MeshArrays> arrays) const {
  Held held{.data = empty_data()};
  held.data->splits.front().count = std::ssize(arrays);
  const auto width = static_cast<size_t>(fields().outputs);
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].in_parts != arrays.front().in_parts) {
      throw invalid_argument(
          "MeshPredictor: set_meshes", "meshes that are all in parts, or all whole",
          fmt::format("mesh {} {} and the first {}", i, arrays[i].in_parts ? "in parts" : "whole",
                      arrays.front().in_parts ? "in parts" : "whole"),
          "give ghost nodes with each mesh, or with none");
    }
    if (arrays[i].in_parts && world().any()) {
      throw invalid_argument("MeshPredictor: set_meshes", "whole meshes, for a model with data.world_radius",
                             "meshes in parts", "set the whole mesh, on one process");
    }
    if (arrays[i].in_parts && reads_graph_starts(config.model)) {
      throw invalid_argument("MeshPredictor: set_meshes", "whole meshes, for a model with model.slices",
                             "meshes in parts", "set the whole mesh, on one process");
    }
    if (arrays[i].in_parts && !graph_targets().empty()) {
      throw invalid_argument(
          "MeshPredictor: set_meshes",
          "whole meshes, for a model with targets on graphs: " + fields().graph_targets.names(),
          "meshes in parts", "set the whole mesh, on one process");
    }
    HostCopies ghosts(runtime);
    held.data->in_parts = arrays[i].in_parts;
    if (arrays[i].in_parts) held.given.push_back(given_part(ghosts.read_connections(arrays[i]), dim()));
    HeldMesh mesh(runtime, *held.data, arrays[i], fmt::format("MeshPredictor: mesh {}", i));
    const MeshView& view = held.data->meshes.back().view;
    const auto values = static_cast<size_t>(view.nodes) * width;
    held.data->trajectories.push_back({.mesh = static_cast<int64_t>(i),
                                       .frames = known_changes().empty() ? 1 : 2,
                                       .fields = std::vector<FieldData>(held.data->fields.size())});
    const auto frames_before = static_cast<size_t>(earlier());
    std::vector<std::vector<float>> next;
    for (const FieldSelection::Input& known : known_changes())
      next.emplace_back(static_cast<size_t>(2 * view.nodes * known.field.components));
    held.meshes.push_back({.mesh = std::move(mesh),
                           .state = {std::vector<float>(values), std::vector<float>(frames_before * values)},
                           .given = std::vector<HeldNumbers>(held.data->fields.size()),
                           .set_now = std::vector<uint8_t>(targets.size()),
                           .set_before = std::vector<uint8_t>(frames_before * targets.size()),
                           .next = std::move(next),
                           .set_next = std::vector<uint8_t>(known_changes().size())});
    held.before.push_back(held.all);
    held.all.nodes += view.nodes;
    held.all.edges += view.edges;
    if (std::max(held.all.nodes, held.all.edges) > std::numeric_limits<int32_t>::max() - 1) {
      throw invalid_argument("MeshPredictor: set_meshes", "fewer than 2^31 nodes and edges together",
                             fmt::format("{} nodes and {} edges", held.all.nodes, held.all.edges),
                             "predict on fewer meshes at once");
    }
  }
  return held;
}

void MeshPredictor::Loaded::use(Held held) {
  meshes.clear();  // until the new ones have their memory
  data = std::move(held.data);
  before = std::move(held.before);
  task = make_task(config, Dataset::over(data));
  in_parts = nullptr;
  there = nullptr;
  room = {.nodes = held.all.nodes,
          .edges = held.all.edges,
          .world_edges = world_room(config.data, held.all.nodes),
          .graphs = std::ssize(data->meshes)};
  write_union(held.given.empty());
  if (!held.given.empty()) make_parts(std::move(held.given), held.meshes);
  for (const MemoryMesh& mesh : data->meshes) warn(no_lengths_warning(mesh.view));
  if (steps_on_device()) make_device_state(held.meshes);
  meshes = std::move(held.meshes);
  drop_steps();
  if (!moves() && !there) write_edges(states_now());
}

/// Into new memory; of whole meshes it is what a step reads.
void MeshPredictor::Loaded::write_union(bool whole) {
  captured.reset();
  graph_rows = {};
  batch = written = {};
  host = device = nullptr;
  BatchLayout layout(task.sizes(), room, config.precision, BatchLayout::Sizes::exact);
  if (searches()) world().add_to(layout);
  const StoragePtr memory = batch_memory_to_write(runtime, layout.bytes());
  written = layout.batch(memory);
  for (size_t i = 0; i < data->meshes.size(); ++i)
    append_to_union(written.graph.edges(kMeshEdges).graph, data->meshes[i].view, before[i]);
  std::vector<int64_t> nodes;
  for (const MemoryMesh& mesh : data->meshes) nodes.push_back(mesh.view.nodes);
  write_graph_sizes(written.graph, nodes);
  if (!whole) return;
  device = device_memory(layout.bytes(), memory);
  host = memory;
  batch = layout.batch(device);
}

StoragePtr MeshPredictor::Loaded::device_memory(int64_t bytes, const StoragePtr& on_host) const {
  return runtime.stream().on_gpu() ? device_batch_memory(runtime, bytes) : on_host;
}

void MeshPredictor::Loaded::make_parts(std::vector<GivenPart> given, const std::deque<MeshState>& of) {
  std::vector<MeshView> views;
  std::vector<GhostRows> ghosts;
  for (const MemoryMesh& mesh : data->meshes) {
    const size_t i = views.size();
    ghosts.emplace_back(ranks, given[i].owned(mesh.view), given[i]);
    warn(ghost_place_warning(ranks, ghosts.back(), given[i], of[i].mesh.positions(), dim()));
    views.push_back(mesh.view);
  }
  in_parts = std::make_unique<PredictedParts>(
      PredictedParts{.parts = MeshParts(runtime, given_parts(std::move(given), ranks), ranks),
                     .meshes = views,
                     .ghosts = std::move(ghosts)});
  const Part& part = in_parts->parts.part(views, written.graph, ranks.rank());
  BatchLayout layout(task.sizes(), {part.owned, part.edges(kMeshEdges).edges(), part.ghosts()},
                     config.precision, BatchLayout::Sizes::exact);
  layout.set_halo(in_parts->parts.halo(views, written.graph));
  host = batch_memory_to_write(runtime, layout.bytes());
  device = device_memory(layout.bytes(), host);
  batch = layout.batch(device);
  in_parts->part = &part;
  in_parts->staged = layout.batch(host);
}

void MeshPredictor::Loaded::fill_ghosts() {
  const auto width = static_cast<size_t>(fields().outputs);
  for (size_t i = 0; in_parts && i < meshes.size(); ++i)
    in_parts->ghosts[i].fill(ranks, std::span(meshes[i].state.current), width);
}

void MeshPredictor::set_meshes(std::span<const MeshArrays> meshes) {
  Loaded& s = loaded();
  if (meshes.empty()) throw invalid_argument("MeshPredictor: set_meshes", "a mesh or more", "none");
  if (std::ranges::any_of(meshes, &MeshArrays::in_parts)) {
    std::optional<Loaded::Held> held;
    on_all_ranks(s.ranks, [&] { held = s.hold(meshes); });
    // Before or_leave: a rank that left here would end those that are still about to find it.
    check_some_edge(s.ranks, held->all.edges);
    or_leave(s.ranks, [&] { s.use(std::move(*held)); });
  } else {
    s.use(s.hold(meshes));
  }
}

void MeshPredictor::positions_changed() {
  Loaded& s = loaded();
  for (const MeshState& mesh : s.meshes) {
    const Numbers& given = mesh.mesh.given();
    const bool there = s.there && given.device().kind != DeviceKind::cpu;
    if (there && (s.runtime.shares_stream() || !any_not_finite(s.runtime, given, "mesh: positions")))
      continue;
    mesh.mesh.fetch_positions();
  }
  s.drop_steps();
  if (s.there) return s.read_positions_there();
  for (MeshState& mesh : s.meshes) mesh.mesh.read_positions();
  if (!s.moves()) s.write_edges(s.states_now());
}

void MeshPredictor::set_field(std::string_view name, Numbers values, int64_t mesh) {
  Loaded& s = loaded();
  MeshState& on = s.mesh_at(mesh);
  if (const auto target = s.target_at(name)) {
    on.set_now[target->first] = 0;  // where the values are refused it has none
    s.set_target(name, values, mesh, 0, false);
    on.set_now[target->first] = 1;
    s.drop_steps();
    return;
  }
  const auto field = std::ranges::find(s.data->fields, name, &FieldInfo::name);
  if (field == s.data->fields.end() || s.graph_target_at(name)) {
    std::string names;
    for (const FieldInfo& known : s.data->fields)
      if (!s.graph_target_at(known.name)) names += (names.empty() ? "" : ", ") + known.name;
    throw invalid_argument("MeshPredictor: field", "one of the model's: " + names,
                           fmt::format("\"{}\"", name), "name one of them");
  }
  s.check_size(*field, values.size(), mesh);
  HostCopies copies(s.runtime);
  Numbers held = values;
  if (s.there) {
    check_numbers(s.runtime, values, name);
  } else {
    held = copies.room_for(values, name);  // predict() fetches them
  }
  on.given[static_cast<size_t>(field - s.data->fields.begin())].hold(held, s.offset_of(field->name),
                                                                     std::move(copies));
}

void MeshPredictor::set_previous_field(std::string_view name, Numbers values, int64_t mesh,
                                       int64_t steps_before) {
  Loaded& s = loaded();
  MeshState& on = s.mesh_at(mesh);
  s.check_earlier("set_previous_field", steps_before);
  const auto age = static_cast<size_t>(steps_before - 1);
  uint8_t& set = on.set_before[age * s.targets.size() + s.known_target(name).first];
  set = 0;
  s.set_target(name, values, mesh, age + 1, false);
  set = 1;
  s.drop_steps();
}

void MeshPredictor::set_next_field(std::string_view name, Numbers values, int64_t mesh) {
  Loaded& s = loaded();
  MeshState& on = s.mesh_at(mesh);
  const size_t k = s.known_change("set_next_field", name);
  const FieldInfo& field = s.known_changes()[k].field;
  s.check_size(field, values.size(), mesh);
  on.set_next[k] = 0;
  HostCopies copies(s.runtime);
  const Numbers here = s.there ? values : copies.read(values, name);
  s.check_values(field, here, mesh);
  if (s.there) {
    s.set_next_there(k, values, static_cast<size_t>(mesh));
  } else {
    round_to(std::span(on.next[k]).last(values.size()), here, s.offset_of(field.name));
  }
  on.set_next[k] = 1;
}

void MeshPredictor::set_boundary(std::string_view name, Numbers values, int64_t mesh) {
  Loaded& s = loaded();
  s.mesh_at(mesh);
  s.set_target(name, values, mesh, 0, true);
  s.record_boundary(mesh, s.known_target(name).first);
}

void MeshPredictor::predict(int64_t steps) {
  Loaded& s = loaded();
  s.mesh_at(0);
  const bool steady = !s.fields().over_time;
  if (steps < 1 || (steps > 1 && steady)) {
    throw invalid_argument("MeshPredictor: steps", steady ? "1: fields without time" : "1 or more",
                           fmt::format("{}", steps));
  }
  if (steps > 1 && !s.known_changes().empty()) {
    throw invalid_argument("MeshPredictor: steps", "1 with data.kinematic_types: each has its next values",
                           fmt::format("{}", steps), "call set_next_field and predict for each step");
  }
  const auto read = [&] {
    s.check_all_set();
    for (size_t mesh = 0; mesh < s.meshes.size(); ++mesh) {
      for (size_t i = 0; i < s.data->fields.size(); ++i) {
        const HeldNumbers& field = s.meshes[mesh].given[i];
        field.fetch();
        if (field.given()) s.check_values(s.data->fields[i], field.values(), static_cast<int64_t>(mesh));
      }
      if (s.there) s.read_given_there(mesh);
    }
  };
  if (s.in_parts) {
    on_all_ranks(s.ranks, read);
  } else {
    read();
  }
  for (MeshState& mesh : s.meshes) mesh.given_gradient.clear();
  const auto predict_steps = [&] {
    for (int64_t i = 0; i < steps; ++i) s.step();
    s.fill_ghosts();
  };
  if (s.in_parts) {
    or_leave(s.ranks, predict_steps);
  } else {
    predict_steps();
  }
  if (s.there) settle(s.runtime, s.runtime.device());
}

RangeExcess MeshPredictor::range_excess(int64_t mesh) const {
  Loaded& s = loaded();
  const MeshState& on = s.mesh_at(mesh);
  if (!s.trained.ranges) {
    throw invalid_argument("MeshPredictor: range_excess", "a model that says which values it was trained on",
                           fmt::format("0 of its {} inputs", s.inputs.size()),
                           "train or save it again by this version");
  }
  RangeExcess farthest;
  const auto compare = [&](const FieldInfo& field, size_t component, double value) {
    const auto known = s.trained.ranges->fields.find(field.name);
    if (known == s.trained.ranges->fields.end() || component >= known->second.size()) return;
    const SeenRange& range = known->second[component];
    constexpr double kRounding = 1e-6;  // of a value that was the same in all of the training
    const double rounding = kRounding * std::max(std::abs(range.least), std::abs(range.most));
    const double outside = std::isfinite(value) ? std::max(range.least - value, value - range.most)
                                                : std::numeric_limits<double>::infinity();
    if (outside <= rounding) return;
    const double excess = outside / std::max(range.most - range.least, rounding);
    if (excess > farthest.excess) farthest = {excess, field.name};
  };
  const std::vector<float> fetched = s.fetched_state(static_cast<size_t>(mesh));
  const std::span<const float> current = s.there ? fetched : on.state.current;
  const size_t nodes = s.in_parts ? static_cast<size_t>(s.in_parts->ghosts[static_cast<size_t>(mesh)].owned())
                                  : s.data->meshes[static_cast<size_t>(mesh)].view.node_type.size();
  for (const FieldInfo& field : s.inputs) {
    const auto components = static_cast<size_t>(field.components);
    const size_t rows = field.on == FieldOn::node ? nodes : 1;
    if (const auto target = s.target_at(field.name)) {
      if (on.set_now[target->first] == 0) continue;
      const std::vector<double> offset = s.offset_of(field.name);
      for (size_t i = 0; i < rows * components; ++i) {
        const size_t c = i % components;
        const double value =
            current[i / components * static_cast<size_t>(s.fields().outputs) + target->second + c];
        compare(field, c, offset.empty() ? value : value + offset[c]);
      }
      continue;
    }
    const auto at = std::ranges::find(s.data->fields, field.name, &FieldInfo::name);
    const HeldNumbers& given = on.given[static_cast<size_t>(at - s.data->fields.begin())];
    if (!given.given()) continue;
    given.fetch();
    HostCopies copies(s.runtime);
    const Numbers values = copies.read(given.values(), field.name);
    for (size_t i = 0; i < rows * components; ++i) compare(field, i % components, values[i]);
  }
  return farthest;
}

void MeshPredictor::get_field(std::string_view name, WritableNumbers values, int64_t mesh) const {
  Loaded& s = loaded();
  const MeshState& on = s.mesh_at(mesh);
  if (const auto of_graph = s.graph_target_at(name))
    return s.get_graph_target(of_graph->first, of_graph->second, values, mesh);
  const auto [index, column] = s.known_target(name);
  const FieldInfo& field = targets()[index];
  s.check_size(field, values.size(), mesh);
  if (on.set_now[index] == 0 && values.size() > 0) {
    throw invalid_argument(fmt::format("MeshPredictor: mesh {}, field {}", mesh, field.name), "values",
                           "none", "call set_field or predict before get_field");
  }
  if (s.there) return s.get_target_there(index, values, static_cast<size_t>(mesh));
  const auto width = static_cast<size_t>(s.fields().outputs);
  const auto components = static_cast<size_t>(field.components);
  const auto offset = s.trained.offsets.find(field.name);
  HostCopies copies(s.runtime);
  WritableNumbers here = copies.room_for(values, name);
  for (size_t i = 0; i < here.size(); ++i) {
    const double value =
        static_cast<double>(on.state.current[i / components * width + column + i % components]);
    here.set(i, offset == s.trained.offsets.end() ? value : value + offset->second[i % components]);
  }
  copies.write_back();
}

}  // namespace meshgrad
