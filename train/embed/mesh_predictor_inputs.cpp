// SPDX-License-Identifier: Apache-2.0
// What the model of a MeshPredictor reads at a step.
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>
#include <meshgrad/train/learn/task/displacements.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace meshgrad {

void MeshPredictor::Loaded::check_size(const FieldInfo& field, size_t got, int64_t mesh) const {
  const int64_t nodes = data->meshes[static_cast<size_t>(mesh)].view.nodes;
  const int64_t rows = field.on == FieldOn::node ? nodes : 1;
  if (std::cmp_equal(got, rows * field.components)) return;
  throw invalid_argument("MeshPredictor: field " + field.name,
                         fmt::format("[{}, {}] on mesh {}", rows, field.components, mesh),
                         fmt::format("{} numbers", got), "give all components of all its rows");
}

/// Ghosts' values are filled from their owners, so they may be anything; `boundary`: those at predicted
/// nodes, too.
void MeshPredictor::Loaded::check_values(const FieldInfo& field, const Numbers& values, int64_t mesh,
                                         bool boundary) const {
  if (values.device().kind != DeviceKind::cpu) {
    // On its own stream the application does not wait; range_excess tells, where it asks.
    if (runtime.shares_stream() || !any_not_finite(runtime, values, field.name)) return;
    HostCopies copies(runtime);
    return check_values(field, copies.read(values, field.name), mesh, boundary);
  }
  const auto at = static_cast<size_t>(mesh);
  const MeshView& view = data->meshes[at].view;
  const int64_t nodes = in_parts ? in_parts->ghosts[at].owned() : view.nodes;
  check_finite("MeshPredictor: field " + field.name, values, field.components,
               "give finite values to every row", [&](int64_t row) {
                 return row < nodes &&
                        !(boundary && fields().is_predicted(view.node_type[static_cast<size_t>(row)]));
               });
}

void MeshPredictor::Loaded::check_all_set() const {
  const auto missing = [](const std::string& name, size_t mesh, const std::string& which) {
    return invalid_argument(fmt::format("MeshPredictor: mesh {}, field {}", mesh, name),
                            fmt::format("values{}", which), "none", "call set_field before predict");
  };
  for (size_t mesh = 0; mesh < meshes.size(); ++mesh) {
    const bool no_nodes = data->meshes[mesh].view.nodes == 0;  // of a part
    for (size_t i = 0; i < data->fields.size(); ++i) {
      const std::string& name = data->fields[i].name;
      if (no_nodes && data->fields[i].on == FieldOn::node) continue;
      if (const auto target = target_at(name)) {
        if (!fields().over_time) continue;
        if (meshes[mesh].set_now[target->first] == 0) throw missing(name, mesh, "");
        for (size_t age = 0; std::cmp_less(age, frames_before(target->first)); ++age) {
          if (meshes[mesh].set_before[age * targets.size() + target->first] != 0) continue;
          const std::string steps = age == 0 ? "one step" : fmt::format("{} steps", age + 1);
          throw missing(name, mesh, " " + steps + " before (set_previous_field)");
        }
      } else if (!meshes[mesh].given[i].given() && !graph_target_at(name)) {
        throw missing(name, mesh, "");
      }
    }
    for (size_t k = 0; k < known_changes().size(); ++k) {
      if (meshes[mesh].set_next[k] == 0 && !no_nodes)
        throw missing(known_changes()[k].field.name, mesh, " one step after (set_next_field)");
    }
  }
}

void MeshPredictor::Loaded::set_target(std::string_view name, const Numbers& values, int64_t mesh, size_t age,
                                       bool boundary) {
  const auto [index, column] = known_target(name);
  const FieldInfo& field = targets[index];
  check_size(field, values.size(), mesh);
  HostCopies copies(runtime);
  const Numbers here = there ? values : copies.read(values, name);
  check_values(field, here, mesh, boundary);
  if (there) return set_target_there(index, values, static_cast<size_t>(mesh), age, boundary);
  FieldState& state = mesh_at(mesh).state;
  const size_t size = state.current.size();
  const std::span<float> to =
      age == 0 ? std::span(state.current) : std::span(state.previous).subspan((age - 1) * size, size);
  const MeshView& view = data->meshes[static_cast<size_t>(mesh)].view;
  const auto width = static_cast<size_t>(fields().outputs);
  const auto components = static_cast<size_t>(field.components);
  const auto offset = trained.offsets.find(field.name);
  const bool moved = offset != trained.offsets.end();
  for (size_t i = 0; i < static_cast<size_t>(view.nodes); ++i) {
    if (boundary && fields().is_predicted(view.node_type[i])) continue;
    for (size_t c = 0; c < components; ++c) {
      const double value = here[i * components + c];
      to[i * width + column + c] = static_cast<float>(moved ? value - offset->second[c] : value);
    }
  }
}

/// Fields of the data, in f32; of those with known changes two frames.
void MeshPredictor::Loaded::read_given(size_t mesh) {
  MeshState& on = meshes[mesh];
  std::vector<FieldData>& all = data->trajectories[mesh].fields;
  for (size_t field = 0; field < on.given.size(); ++field) all[field] = on.given[field].read();
  for (size_t k = 0; k < known_changes().size(); ++k) {
    const auto field = std::ranges::find(data->fields, known_changes()[k].field.name, &FieldInfo::name);
    FieldData& values = all[static_cast<size_t>(field - data->fields.begin())];
    std::ranges::copy(values.floats(), on.next[k].begin());  // of a target none
    values = on.next[k];
  }
}

void MeshPredictor::Loaded::move_kinematic(size_t mesh) {
  MeshState& on = meshes[mesh];
  const MeshView& view = data->meshes[mesh].view;
  const auto width = static_cast<size_t>(fields().outputs);
  for (size_t k = 0; k < known_changes().size(); ++k) {
    const FieldSelection::Input& known = known_changes()[k];
    on.set_next[k] = 0;
    if (known.target_column < 0) continue;
    const auto components = static_cast<size_t>(known.field.components);
    const auto column = static_cast<size_t>(known.target_column);
    const std::span<const float> next = std::span(on.next[k]).last(on.next[k].size() / 2);
    for (size_t i = 0; i < static_cast<size_t>(view.nodes); ++i) {
      if (!fields().is_kinematic(view.node_type[i])) continue;
      std::copy_n(next.begin() + static_cast<std::ptrdiff_t>(i * components), components,
                  on.state.current.begin() + static_cast<std::ptrdiff_t>(i * width + column));
    }
  }
}

StateOf MeshPredictor::Loaded::states_now() const {
  return [this](size_t mesh) -> const FieldState& { return meshes[mesh].state; };
}

std::span<const float> MeshPredictor::Loaded::positions_of(const StateOf& states, size_t mesh) {
  if (!moves()) return {};
  return fields().current_positions(view(mesh), 0, states(mesh), scratch.positions);
}

void MeshPredictor::Loaded::write_edges(const StateOf& states) {
  for (size_t i = 0; i < meshes.size(); ++i)
    write_edge_features(fields(), written, view(i), 0, states(i), before[i], normalizers, scratch);
  uploaded = false;
}

/// Gives the batch new memory.
void MeshPredictor::Loaded::make_world_room(int64_t edges) {
  const int64_t room_before = std::exchange(room.world_edges, edges);
  try {
    write_union(true);
  } catch (...) {
    room.world_edges = room_before;  // with fewer edges there is memory again
    throw;
  }
}

std::vector<MeshEdges> MeshPredictor::Loaded::world_edges_at(const StateOf& states) {
  std::vector<MeshEdges> found;
  int64_t left = most_world_edges(room.nodes);
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::optional<MeshEdges> edges =
        world_edges(view(i).mesh(), positions_of(states, i), world().dim(), world().options(), left);
    if (!edges) throw too_many_world_edges(name_of_most_crowded(states));
    left -= std::ssize(edges->senders);
    found.push_back(*std::move(edges));
  }
  return found;
}

/// Where there are more than ever, the batch gets new memory.
void MeshPredictor::Loaded::find_world_edges(const StateOf& states) {
  const std::vector<MeshEdges> found = world_edges_at(states);
  int64_t edges = 0;
  for (const MeshEdges& of_mesh : found) edges += std::ssize(of_mesh.senders);
  if (edges > room.world_edges || host == nullptr) {  // null: there was no memory before
    make_world_room(edges > room.world_edges ? edges + edges / 4 : room.world_edges);
  }
  Dataset::MeshSizes all;
  for (size_t i = 0; i < meshes.size(); ++i)
    all = world().write(written, found[i], view(i), positions_of(states, i), all, normalizers,
                        scratch.wide_world);
}

/// What the device reads to find them.
void MeshPredictor::Loaded::write_world_search(const StateOf& states) {
  if (host == nullptr) write_union(true);  // there was no memory before
  for (size_t i = 0; i < meshes.size(); ++i) {
    world().write_search(written, view(i).mesh(), positions_of(states, i),
                         {static_cast<int32_t>(i), before[i].nodes}, normalizers);
  }
}

/// Of the mesh with the most world edges a node.
std::string MeshPredictor::Loaded::name_of_most_crowded(const StateOf& states) {
  double most = -1.0;
  std::string name;
  for (size_t i = 0; i < meshes.size(); ++i) {
    const MeshView& mesh = data->meshes[i].view;
    const auto count = static_cast<double>(
        count_world_edges(mesh, positions_of(states, i), world().dim(), world().options()));
    const double share = count / static_cast<double>(mesh.nodes);
    if (share <= most) continue;
    most = share;
    name = frame_name(view(i), 0);
  }
  return name;
}

/// Where the device has found more than there is room for, the batch gets new memory, to be written again.
bool MeshPredictor::Loaded::world_edges_fit(const StateOf& states) {
  if (!searches()) return true;
  const int64_t missing = missing_edges(runtime, world().find(runtime, batch));
  if (missing == 0) return true;
  const int64_t edges = room.world_edges + missing;
  if (edges > most_world_edges(room.nodes)) throw too_many_world_edges(name_of_most_crowded(states));
  make_world_room(std::min(edges + edges / 4, most_world_edges(room.nodes)));
  return false;
}

void MeshPredictor::Loaded::write_inputs(const StateOf& states, const std::function<void()>& nodes) {
  do {
    if (searches()) {
      write_world_search(states);
    } else if (world().any()) {
      find_world_edges(states);
    }
    nodes();
    if (moves()) write_edges(states);
    upload();
  } while (!world_edges_fit(states));
}

void MeshPredictor::Loaded::write_nodes() {
  for (size_t i = 0; i < meshes.size(); ++i)
    write_node_features(fields(), written, view(i), 0, meshes[i].state, before[i], normalizers, scratch);
}

namespace {

std::optional<std::pair<size_t, size_t>> place_among(std::span<const FieldInfo> fields,
                                                     std::string_view name) {
  size_t column = 0;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name == name) return std::pair(i, column);
    column += static_cast<size_t>(fields[i].components);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> MeshPredictor::Loaded::target_at(std::string_view name) const {
  return place_among(targets, name);
}

std::optional<std::pair<size_t, size_t>> MeshPredictor::Loaded::graph_target_at(std::string_view name) const {
  return place_among(graph_targets(), name);
}

void MeshPredictor::Loaded::get_graph_target(size_t target, size_t column, const WritableNumbers& values,
                                             int64_t mesh) const {
  const FieldInfo& field = graph_targets()[target];
  check_size(field, values.size(), mesh);
  if (!graph_rows.defined()) {
    throw invalid_argument(fmt::format("MeshPredictor: mesh {}, field {}", mesh, field.name), "a prediction",
                           "none", "call predict before get_field");
  }
  const Tensor rows = to_host(graph_rows, runtime.stream());
  const std::vector<double> row =
      TargetFields::in_units(normalizers.graph_targets, values_of(rows.row_range(mesh, mesh + 1)));
  const std::vector<double> offset = offset_of(field.name);
  HostCopies copies(runtime);
  WritableNumbers here = copies.room_for(values, field.name);
  for (size_t c = 0; c < here.size(); ++c) here.set(c, row[column + c] + (offset.empty() ? 0.0 : offset[c]));
  copies.write_back();
}

}  // namespace meshgrad
