// SPDX-License-Identifier: Apache-2.0
// Cases of meshgrad.h in which fields, calls and options are refused.
#include <cmath>

#include "train/embed/c_cases.h"

namespace meshgrad::test::c_interface {

void refuse_fields(Host& c) {
  const Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
  const Handle<meshgrad_trainer> trainer = c.trainer();
  const HostMesh mesh = c.mesh();
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh).ok();
  c.call(meshgrad_trainer_set_mesh, trainer, &mesh.mesh).ok();
  const auto refused = [&](const char* text, const std::function<void(meshgrad_array&)>& spoil) {
    meshgrad_array array = velocity.array;
    spoil(array);
    c.call(meshgrad_predictor_set_field, predictor, 0, "velocity", &array).refused(kInvalid, text);
    c.call(meshgrad_predictor_get_field, predictor, 0, "velocity", &array).refused(kInvalid, text);
    c.call(meshgrad_trainer_set_field, trainer, "velocity", &array).refused(kInvalid, text);
  };
  using Array = meshgrad_array&;
  refused("in Fortran the components are the first extent",
          [](Array a) { std::swap(a.shape[0], a.shape[1]); });
  refused("null pointer", [](Array a) { a.data = nullptr; });
  refused("velocity: dtype] needed MESHGRAD_F32 or MESHGRAD_F64", [](Array a) { a.dtype = MESHGRAD_I32; });
  refused("[velocity] needed an array in the host's memory", [](Array a) { a.device = 7; });
  if (!c.place.on_device) refused("copy it to the host", [](Array a) { a.device = MESHGRAD_CUDA; });
  c.call(meshgrad_predictor_set_field, predictor, 0, "pressure", &load.array)
      .refused(kInvalid, "velocity, load");
  const auto not_finite = [&](const HostValues<float>& right, size_t i) {
    std::vector<float> values = right.host;
    values[i] = std::nanf("");
    return c.values(std::move(values), right.array.shape[1]);
  };
  const HostValues<float> bad_velocity = not_finite(velocity, 7), bad_load = not_finite(load, 2);
  constexpr const char* kNan = "field velocity, row 3] needed finite numbers, got nan";
  c.call(meshgrad_predictor_set_field, predictor, 0, "velocity", &bad_velocity.array)
      .refused(MESHGRAD_DATA_ERROR, kNan);
  c.call(meshgrad_trainer_set_field, trainer, "velocity", &bad_velocity.array)
      .refused(MESHGRAD_DATA_ERROR, kNan);
  c.call(meshgrad_predictor_set_field, predictor, 0, "velocity", &velocity.array).ok();
  c.call(meshgrad_predictor_set_field, predictor, 0, "load", &bad_load.array).ok();  // is read by predict
  c.call(meshgrad_predictor_predict, predictor, 1)
      .refused(MESHGRAD_DATA_ERROR, "field load, row 2] needed finite numbers, got nan");
  append_frame(c, trainer, velocity, load);
  meshgrad_array spoilt = load.array;
  spoilt.dtype = MESHGRAD_I32;
  c.call(meshgrad_trainer_set_field, trainer, "load", &spoilt).refused(kInvalid, "dtype");
  c.call(meshgrad_trainer_append, trainer).refused(kInvalid, "load");  // not with the values of before
}

void refuse_calls(Host& c) {
  meshgrad_predictor* none = nullptr;
  c.call(meshgrad_predictor_create, c.runtime, "/nowhere", &none).refused(MESHGRAD_DATA_ERROR, "/nowhere");
  expect(none == nullptr, "no predictor");
  c.call(meshgrad_predictor_create, nullptr, "x", &none).refused(kInvalid, "[runtime] needed a pointer");
  c.call(meshgrad_predictor_predict, nullptr, 1).refused(kInvalid, "[predictor] needed a pointer");
  c.call(meshgrad_predictor_range_excess, nullptr, 0, nullptr, nullptr)
      .refused(kInvalid, "[predictor] needed a pointer");
  c.call(meshgrad_trainer_append, nullptr).refused(kInvalid, "[trainer] needed a pointer");
  const Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
  c.call(meshgrad_predictor_predict, predictor, 1).refused(kInvalid, "call set_mesh first");
  c.call(meshgrad_predictor_range_excess, predictor, 0, nullptr, nullptr)
      .refused(kInvalid, "call set_mesh first");
  const HostMesh mesh = c.mesh();
  c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh).ok();
  c.call(meshgrad_predictor_predict, predictor, 0).refused(kInvalid, "[MeshPredictor: steps]");
}

void refuse_options(Host& c) {
  meshgrad_runtime* runtime = nullptr;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.threads = -5;
  c.call(meshgrad_runtime_create, &options, &runtime).refused(kInvalid, "[threads] needed 0 or more, got -5");
  options.threads = 1;
  options.memory_limit = -5;
  c.call(meshgrad_runtime_create, &options, &runtime)
      .refused(kInvalid, "memory_limit] needed 0 or more bytes");
  options.memory_limit = 0;
  for (const double timeout : {-1.0, double{NAN}, 1e300}) {
    options.timeout = timeout;
    c.call(meshgrad_runtime_create, &options, &runtime).refused(kInvalid, "timeout] needed 0 to 1e9 seconds");
  }
  const meshgrad_field fields[] = {{"velocity", 2, 0, "m/s"}, {"load", 1, 0, nullptr}};
  const std::string config = std::string(kFlow) + "data.targets = ['velocity']\n";
  meshgrad_trainer_options training;
  meshgrad_trainer_options_init(&training);
  training.config = config.c_str();
  training.fields = fields;
  training.field_count = 2;
  meshgrad_trainer* trainer = nullptr;
  training.most_recent = 5;
  c.call(meshgrad_trainer_create, c.runtime, &training, &trainer)
      .refused(kInvalid, "most_recent] needed 0 or 1");
  training.most_recent = 0;
  for (const double dt : {std::nan(""), HUGE_VAL, -1.0}) {
    training.dt = dt;
    c.call(meshgrad_trainer_create, c.runtime, &training, &trainer).refused(kInvalid, "dt] needed seconds");
  }
  const Handle<meshgrad_trainer> right = c.trainer();
  c.call(meshgrad_trainer_train, right, -1, 1.0, nullptr, nullptr).refused(kInvalid, "got -1 steps");
  c.call(meshgrad_trainer_train, right, 1, std::nan(""), nullptr, nullptr)
      .refused(kInvalid, "in nan seconds");
}

}  // namespace meshgrad::test::c_interface
