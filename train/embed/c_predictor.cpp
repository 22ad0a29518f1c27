// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/mesh_predictor.h>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

struct meshgrad_predictor {
  std::unique_ptr<meshgrad_runtime> own;  // of meshgrad_predictor_open
  meshgrad::c::RuntimeUse runtime;
  meshgrad::MeshPredictor predictor;
};

namespace meshgrad::c {
namespace {

const FieldInfo& field_at(const std::vector<FieldInfo>& fields, int32_t i) {
  if (i >= 0 && std::cmp_less(i, fields.size())) return fields[static_cast<size_t>(i)];
  throw invalid_argument("meshgrad_predictor: field", fmt::format("0..{}", fields.size() - 1),
                         fmt::format("{}", i));
}

/// Extents say what sizes cannot: that rows and columns are not exchanged.
void check_shape(const MeshPredictor& predictor, const char* name, const meshgrad_array& values) {
  int components = components_of(predictor.targets(), name);
  for (const auto* fields : {&predictor.inputs(), &predictor.graph_targets()})
    if (components <= 0) components = components_of(*fields, name);
  check_columns(values, components, name);
}

/// Calls a member of MeshPredictor that takes a field.
template <class Set>
int set_values(meshgrad_predictor* predictor, const char* name, const meshgrad_array* values, Set&& set) {
  return guarded([&] {
    MeshPredictor& ours = given(predictor, "predictor").predictor;
    given(name, "name");
    check_shape(ours, name, given(values, name));
    set(ours, numbers_of(predictor->runtime->runtime, *values, name));
  });
}

/// The same for one that writes a field.
template <class Get>
int get_values(const meshgrad_predictor* predictor, const char* name, const meshgrad_array* values,
               Get&& get) {
  return guarded([&] {
    const MeshPredictor& ours = given(predictor, "predictor").predictor;
    given(name, "name");
    check_shape(ours, name, given(values, name));
    get(ours, writable_numbers_of(predictor->runtime->runtime, *values, name));
  });
}

}  // namespace
}  // namespace meshgrad::c

using namespace meshgrad;
using namespace meshgrad::c;

int meshgrad_predictor_create(meshgrad_runtime* runtime, const char* checkpoint,
                              meshgrad_predictor** predictor) {
  return guarded([&] {
    given(predictor, "meshgrad_predictor_create: predictor") = nullptr;
    meshgrad_runtime& on = given(runtime, "runtime");
    *predictor = new meshgrad_predictor{
        nullptr, RuntimeUse(on), MeshPredictor(on.runtime, &given(checkpoint, "checkpoint"), &on.ranks)};
  });
}

int meshgrad_predictor_create_from_trainer(const meshgrad_trainer* trainer, meshgrad_predictor** predictor) {
  return guarded([&] {
    given(predictor, "meshgrad_predictor_create_from_trainer: predictor") = nullptr;
    const meshgrad_trainer& from = given(trainer, "trainer");
    meshgrad_runtime& on = from.runtime;
    *predictor = new meshgrad_predictor{nullptr, RuntimeUse(on), MeshPredictor(from.trainer)};
  });
}

int meshgrad_predictor_open(const char* checkpoint, meshgrad_predictor** predictor) {
  return guarded([&] {
    given(predictor, "meshgrad_predictor_open: predictor") = nullptr;
    auto own = std::make_unique<meshgrad_runtime>();
    meshgrad_runtime& on = *own;
    *predictor = new meshgrad_predictor{std::move(own), RuntimeUse(on),
                                        MeshPredictor(on.runtime, &given(checkpoint, "checkpoint"))};
  });
}

void meshgrad_predictor_destroy(meshgrad_predictor* predictor) { delete predictor; }

int meshgrad_predictor_dim(const meshgrad_predictor* predictor, int32_t* dim) {
  return guarded([&] { given(dim, "dim") = given(predictor, "predictor").predictor.dim(); });
}

int meshgrad_predictor_dt(const meshgrad_predictor* predictor, double* dt) {
  return guarded([&] { given(dt, "dt") = given(predictor, "predictor").predictor.dt(); });
}

int meshgrad_predictor_input(const meshgrad_predictor* predictor, int32_t i, const char** name,
                             int32_t* components, int32_t* on_graph) {
  return guarded([&] {
    const FieldInfo& field = field_at(given(predictor, "predictor").predictor.inputs(), i);
    if (name != nullptr) *name = field.name.c_str();
    if (components != nullptr) *components = field.components;
    if (on_graph != nullptr) *on_graph = field.on == FieldOn::graph ? 1 : 0;
  });
}

int meshgrad_predictor_target(const meshgrad_predictor* predictor, int32_t i, const char** name,
                              int32_t* components) {
  return guarded([&] {
    const FieldInfo& field = field_at(given(predictor, "predictor").predictor.targets(), i);
    if (name != nullptr) *name = field.name.c_str();
    if (components != nullptr) *components = field.components;
  });
}

int meshgrad_predictor_set_mesh(meshgrad_predictor* predictor, const meshgrad_mesh* mesh) {
  return meshgrad_predictor_set_meshes(predictor, mesh, 1);
}

int meshgrad_predictor_set_meshes(meshgrad_predictor* predictor, const meshgrad_mesh* meshes, int32_t count) {
  return guarded([&] {
    MeshPredictor& ours = given(predictor, "predictor").predictor;
    Meshes::read(predictor->runtime, meshes, count, ours.dim(),
                 [&](std::span<const MeshArrays> arrays) { ours.set_meshes(arrays); });
  });
}

int meshgrad_predictor_positions_changed(meshgrad_predictor* predictor) {
  return guarded([&] { given(predictor, "predictor").predictor.positions_changed(); });
}

int meshgrad_predictor_set_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                 const meshgrad_array* values) {
  return set_values(predictor, name, values,
                    [&](MeshPredictor& ours, Numbers numbers) { ours.set_field(name, numbers, mesh); });
}

int meshgrad_predictor_set_previous_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                          const meshgrad_array* values) {
  return set_values(predictor, name, values, [&](MeshPredictor& ours, Numbers numbers) {
    ours.set_previous_field(name, numbers, mesh);
  });
}

int meshgrad_predictor_set_earlier_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                         int64_t steps_before, const meshgrad_array* values) {
  return set_values(predictor, name, values, [&](MeshPredictor& ours, Numbers numbers) {
    ours.set_previous_field(name, numbers, mesh, steps_before);
  });
}

int meshgrad_predictor_set_next_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                      const meshgrad_array* values) {
  return set_values(predictor, name, values,
                    [&](MeshPredictor& ours, Numbers numbers) { ours.set_next_field(name, numbers, mesh); });
}

int meshgrad_predictor_set_boundary(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values) {
  return set_values(predictor, name, values,
                    [&](MeshPredictor& ours, Numbers numbers) { ours.set_boundary(name, numbers, mesh); });
}

int meshgrad_predictor_predict(meshgrad_predictor* predictor, int64_t steps) {
  return guarded([&] { given(predictor, "predictor").predictor.predict(steps); });
}

int meshgrad_predictor_get_field(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                 const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_field(name, numbers, mesh);
  });
}

int meshgrad_predictor_range_excess(const meshgrad_predictor* predictor, int32_t mesh, double* excess,
                                    const char** field) {
  return guarded([&] {
    const RangeExcess found = given(predictor, "predictor").predictor.range_excess(mesh);
    if (excess != nullptr) *excess = found.excess;
    if (field != nullptr) *field = found.field.empty() ? nullptr : found.field.data();  // of a std::string
  });
}

int meshgrad_predictor_record_steps(meshgrad_predictor* predictor, int32_t on) {
  return guarded([&] { given(predictor, "predictor").predictor.record_steps(on != 0); });
}

int meshgrad_predictor_set_gradient(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values) {
  return set_values(predictor, name, values,
                    [&](MeshPredictor& ours, Numbers numbers) { ours.set_gradient(name, numbers, mesh); });
}

int meshgrad_predictor_backward(meshgrad_predictor* predictor) {
  return guarded([&] { given(predictor, "predictor").predictor.backward(); });
}

int meshgrad_predictor_get_gradient(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_gradient(name, numbers, mesh);
  });
}

int meshgrad_predictor_get_previous_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const char* name, const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_previous_gradient(name, numbers, mesh);
  });
}

int meshgrad_predictor_get_earlier_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                            const char* name, int64_t steps_before,
                                            const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_previous_gradient(name, numbers, mesh, steps_before);
  });
}

int meshgrad_predictor_get_next_gradient(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                         int64_t step, const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_next_gradient(name, numbers, mesh, step);
  });
}

int meshgrad_predictor_get_boundary_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const char* name, int64_t step, const meshgrad_array* values) {
  return get_values(predictor, name, values, [&](const MeshPredictor& ours, WritableNumbers numbers) {
    ours.get_boundary_gradient(name, numbers, mesh, step);
  });
}

int meshgrad_predictor_get_position_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const meshgrad_array* values) {
  return guarded([&] {
    const MeshPredictor& ours = given(predictor, "predictor").predictor;
    check_columns(given(values, "gradient of positions"), ours.dim(), "gradient of positions");
    ours.get_position_gradient(
        writable_numbers_of(predictor->runtime->runtime, *values, "gradient of positions"), mesh);
  });
}
