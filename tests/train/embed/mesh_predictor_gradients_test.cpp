// SPDX-License-Identifier: Apache-2.0
// Gradients of predictions against finite differences. Models are f64, but states are stored in f32. A
// central difference over a step h of a J of about 100 values near 1 is off by h^2 in its theory, and by
// sqrt(100) * 2^-24 / h in its rounding: with h = 2^-8 together some 2e-4.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>

#include "train/process.h"
#include "train/random_field.h"
#include "train/small_run.h"

namespace meshgrad::mesh_predictor_gradients_test {
namespace {

using test::contains;
using test::message_of;
using test::product;
using test::random_field;
using Field = std::vector<double>;

constexpr double kStep = 0x1p-8;
constexpr double kTolerance = 2e-3;

/// What a prediction reads on one mesh.
struct Inputs {
  test::SquareRecord record;
  std::vector<int32_t> types;
  Field positions, velocity, before, source, condition;

  explicit Inputs(int side, unsigned seed) : record(test::wave_record(side, 2, 0.1 * seed)) {
    types.assign(record.node_type.begin(), record.node_type.end());
    positions.assign(record.mesh_pos.begin(), record.mesh_pos.end());
    const size_t nodes = types.size();
    // Changes as large as the values: the model's part in the gradients is then not small.
    before = random_field(2 * nodes, seed + 10);
    velocity = random_field(2 * nodes, seed + 20);
    source = random_field(nodes, seed);
    condition = random_field(3, seed + 1);
  }
  MeshArrays mesh() const {
    return {.positions = positions, .cells = record.cells, .nodes_per_cell = 3, .node_type = types};
  }
};

/// A model of velocity from itself, a field "source" on nodes and a "condition" of the mesh.
std::string trained(const std::filesystem::path& folder, Runtime& runtime, TaskName task, Prediction predict,
                    DType precision = DType::f64, const std::vector<std::string>& values = {}) {
  Config config;
  config.task.name = task;
  config.data.predict = predict;
  config.data.inputs = {"source", "condition"};
  if (task == TaskName::mesh_dynamics) config.data.inputs.insert(config.data.inputs.begin() + 1, "velocity");
  config.data.targets = {"velocity"};
  config.data.value_targets = values;
  config.precision = precision;
  config.model.width = 8;
  config.model.blocks = 2;
  config.model.activation = Activation::silu;
  config.train.noise = 0;
  OnlineTrainer trainer(runtime, config,
                        {.fields = {{.name = "velocity", .components = 2},
                                    {.name = "source", .components = 1},
                                    {.name = "condition", .components = 3, .on = FieldOn::graph}}});
  for (unsigned seed = 0; seed < 3; ++seed) {
    const Inputs inputs(5, seed);
    trainer.set_mesh(inputs.mesh());
    for (const Field* velocity : {&inputs.before, &inputs.velocity, &inputs.before}) {
      trainer.set_field("velocity", *velocity);
      trainer.set_field("source", inputs.source);
      trainer.set_field("condition", inputs.condition);
      trainer.append();
    }
  }
  trainer.train(5);
  std::string file = folder / "model.safetensors";
  trainer.save(file);
  return file;
}

/// J = sum of weights * velocity after `steps` steps on two meshes, with new boundary values before the last.
struct Case {
  MeshPredictor& predictor;
  std::vector<Inputs> meshes{Inputs(5, 3), Inputs(4, 4)};
  std::vector<Field> weights, boundary;
  int64_t steps = 3;
  bool second_change = false, steady = false;

  explicit Case(MeshPredictor& own) : predictor(own) {
    for (const Inputs& mesh : meshes) {
      weights.push_back(random_field(mesh.velocity.size(), 77));
      boundary.push_back(random_field(mesh.velocity.size(), 78));
    }
  }
  double operator()() {
    predictor.set_meshes(std::vector{meshes[0].mesh(), meshes[1].mesh()});
    double sum = 0;
    for (int64_t i = 0; i < 2; ++i) {
      const Inputs& mesh = meshes[static_cast<size_t>(i)];
      predictor.set_field("velocity", mesh.velocity, i);
      if (second_change) predictor.set_previous_field("velocity", mesh.before, i);
      predictor.set_field("source", mesh.source, i);
      predictor.set_field("condition", mesh.condition, i);
    }
    if (steps > 1) {
      predictor.predict(steps - 1);
      predictor.set_boundary("velocity", boundary[1], 1);
    }
    predictor.predict();
    for (int64_t i = 0; i < 2; ++i) {
      Field velocity(weights[static_cast<size_t>(i)].size());
      predictor.get_field("velocity", velocity, i);
      sum += product(velocity, weights[static_cast<size_t>(i)]);
    }
    return sum;
  }
  void backward() {
    predictor.record_steps(true);
    (*this)();
    for (int64_t i = 0; i < 2; ++i) predictor.set_gradient("velocity", weights[static_cast<size_t>(i)], i);
    predictor.backward();
    predictor.record_steps(false);
  }
  /// The derivative of J along a random direction of `field`, which is put back.
  double difference(Field& field, const Field& along) {
    const Field kept = field;
    const auto at = [&](double shift) {
      for (size_t i = 0; i < field.size(); ++i) field[i] = kept[i] + shift * along[i];
      return (*this)();
    };
    const double result = (at(kStep) - at(-kStep)) / (2 * kStep);
    field = kept;
    return result;
  }
};

struct Gradients {
  Field velocity, before, source, condition, positions;
};

Gradients gradients_of(Case& c, int64_t mesh) {
  const Inputs& inputs = c.meshes[static_cast<size_t>(mesh)];
  Gradients g{Field(inputs.velocity.size()), Field(inputs.velocity.size()), Field(inputs.source.size()),
              Field(3), Field(inputs.positions.size())};
  c.predictor.get_gradient("velocity", g.velocity, mesh);
  if (c.second_change) c.predictor.get_previous_gradient("velocity", g.before, mesh);
  c.predictor.get_gradient("source", g.source, mesh);
  c.predictor.get_gradient("condition", g.condition, mesh);
  c.predictor.get_position_gradient(g.positions, mesh);
  return g;
}

TEST_CASE("gradients of predictions are those of finite differences") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 2});
  using Names = std::vector<std::string>;
  for (const auto& [task, predict, values] :
       {std::tuple(TaskName::mesh_dynamics, Prediction::change, Names{}),
        std::tuple(TaskName::mesh_dynamics, Prediction::change, Names{"velocity"}),
        std::tuple(TaskName::mesh_dynamics, Prediction::second_change, Names{}),
        std::tuple(TaskName::steady_field, Prediction::change, Names{})}) {
    CAPTURE(static_cast<int>(task));
    CAPTURE(static_cast<int>(predict));
    CAPTURE(values.size());
    MeshPredictor predictor(runtime, trained(scratch.path, runtime, task, predict, DType::f64, values));
    Case c(predictor);
    c.steady = task == TaskName::steady_field;
    c.second_change = !c.steady && predict == Prediction::second_change;
    if (c.steady || !values.empty()) c.steps = 1;  // a value hardly depends on the state some steps before
    c.backward();
    const Gradients by_mesh[] = {gradients_of(c, 0), gradients_of(c, 1)};
    for (size_t i = 0; i < 2; ++i) {
      CAPTURE(i);
      Inputs& inputs = c.meshes[i];
      const Gradients& g = by_mesh[i];
      const auto check = [&](const char* what, Field& field, const Field& gradient) {
        CAPTURE(what);
        for (unsigned seed = 0; seed < 3; ++seed) {
          const Field along =
              random_field(field.size(), 90 + seed, what == std::string("positions") ? 0.2 : 1);
          const double expected = c.difference(field, along);
          CHECK(product(gradient, along) ==
                doctest::Approx(expected).epsilon(kTolerance).scale(std::sqrt(product(gradient, gradient))));
        }
        CHECK(product(gradient, gradient) > 1e-6);
      };
      check("velocity", inputs.velocity, g.velocity);
      if (c.second_change) check("before", inputs.before, g.before);
      check("source", inputs.source, g.source);
      check("condition", inputs.condition, g.condition);
      check("positions", inputs.positions, g.positions);
    }
  }
}

TEST_CASE("gradients in f32 and 16 bits follow those of f64") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 1});
  const auto gradient = [&](DType precision, double scale) {
    MeshPredictor predictor(
        runtime, trained(scratch.path, runtime, TaskName::mesh_dynamics, Prediction::change, precision));
    Case c(predictor);
    for (Field& weights : c.weights)
      for (double& weight : weights) weight *= scale;
    c.backward();
    Field positions = gradients_of(c, 0).positions;
    for (double& value : positions) value /= scale;
    return positions;
  };
  const Field exact = gradient(DType::f64, 1);
  for (const auto& [precision, tolerance] :
       {std::pair(DType::f32, 1e-3), std::pair(DType::f16, 0.1), std::pair(DType::bf16, 0.4)}) {
    CAPTURE(std::string(name_of(precision)));
    const Field got = gradient(precision, 1e9);  // beyond what f16 holds
    double error = 0;
    for (size_t i = 0; i < exact.size(); ++i) error += std::pow(got[i] - exact[i], 2);
    CHECK(std::sqrt(error / product(exact, exact)) < tolerance);
  }
}

TEST_CASE("unavailable gradients are refused with the missing call") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 1});
  MeshPredictor predictor(runtime,
                          trained(scratch.path, runtime, TaskName::mesh_dynamics, Prediction::change));
  Case c(predictor);
  const auto refusal = [&](auto&& call) { return message_of([&] { call(); }); };
  c();
  CHECK(contains(refusal([&] { predictor.backward(); }), "call record_steps(true)"));
  CHECK(predictor.recorded_steps() == 0);
  predictor.record_steps(true);
  c();
  CHECK(predictor.recorded_steps() == 3);
  Field room(c.meshes[0].velocity.size());
  CHECK(contains(refusal([&] { predictor.get_gradient("velocity", room); }), "backward first"));
  CHECK(
      contains(refusal([&] { predictor.set_gradient("source", room); }), "one that is predicted: velocity"));
  predictor.backward();  // of no J: zeros
  predictor.get_gradient("velocity", room);
  CHECK(product(room, room) == 0);
  CHECK(contains(refusal([&] { predictor.get_gradient("speed", room); }), "got \"speed\""));
  CHECK(contains(refusal([&] { predictor.get_previous_gradient("velocity", room); }), "second changes"));
  CHECK(
      contains(refusal([&] { predictor.get_position_gradient(std::span(room).first(3)); }), "[nodes, dim]"));
  predictor.set_field("velocity", c.meshes[0].velocity);
  CHECK(predictor.recorded_steps() == 0);
}

}  // namespace
}  // namespace meshgrad::mesh_predictor_gradients_test
