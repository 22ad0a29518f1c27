// SPDX-License-Identifier: Apache-2.0
// Gradients of predictions with several frames, with nodes that the solver moves, and on meshes that move,
// against finite differences as in mesh_predictor_gradients_test.cpp. Positions are in f32, too; edges are
// about 0.1 long, so that their differences are known to 1e-6.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <array>
#include <cmath>

#include "train/random_field.h"
#include "train/small_run.h"

namespace meshgrad::frames_gradients_test {
namespace {

using test::message_of;
using test::product;
using test::random_field;
using Field = std::vector<double>;

constexpr double kTolerance = 2e-3;
constexpr int kSide = 5;
constexpr size_t kSteps = 3;
constexpr double kMotion = 0.002;  // of positions between frames: no world edge comes or goes

struct Kind {
  const char* name;
  Prediction predict = Prediction::change;
  int64_t history = 1;
  bool kinematic = false;
  bool moves = false;    // data.world_position
  bool predicts = true;  // "position" is a target
  bool reads = false;    // and an input of nodes
  double radius = 0;     // of world edges: 0.14 is the diagonal without an edge
  bool values = false;   // "stress" is one of data.value_targets
  double moved = 0.1;    // step of positions: a model of their changes reads them in units of kMotion
};

/// What a prediction reads. "stress" depends on positions only through the model.
struct Inputs {
  test::SquareRecord record = test::wave_record(kSide, 1, 0);
  std::vector<int32_t> types{record.node_type.begin(), record.node_type.end()};
  Field rest{record.mesh_pos.begin(), record.mesh_pos.end()};
  std::vector<Field> positions, stresses;  // by frame: 3 before, the current one, one after each step
  Field load = random_field(nodes(), 5, 1);
  std::array<Field, 2> boundary{random_field(nodes(), 6, 1), random_field(nodes(), 7, 1)};

  Inputs() {
    for (unsigned frame = 0; frame < 4 + kSteps; ++frame) {
      positions.push_back(random_field(rest.size(), 20 + frame, kMotion));
      for (size_t i = 0; i < rest.size(); ++i) positions.back()[i] += rest[i];
      stresses.push_back(random_field(nodes(), 40 + frame, 1));
    }
  }
  size_t nodes() const { return record.node_type.size(); }
  MeshArrays mesh() const {
    return {.positions = rest, .cells = record.cells, .nodes_per_cell = 3, .node_type = types};
  }
};

std::string trained(const std::filesystem::path& folder, Runtime& runtime, const Kind& kind,
                    DType precision) {
  Config config;
  config.data.predict = kind.predict;
  config.data.history = kind.history;
  config.data.inputs = {"stress", "load"};
  config.data.targets = {"stress"};
  if (kind.reads) config.data.inputs.emplace_back("position");
  if (kind.predicts) config.data.targets.insert(config.data.targets.begin(), "position");
  if (kind.values) config.data.value_targets = {"stress"};
  if (kind.moves) config.data.world_position = "position";
  if (kind.kinematic) config.data.kinematic_types = {4};
  config.data.world_radius = kind.radius;
  config.data.world_edges_per_node = 4;
  config.precision = precision;
  config.model.width = 8;
  config.model.blocks = 2;
  config.model.activation = Activation::silu;
  config.train.noise = 0;
  config.optimizer.lr = 1e-2;
  OnlineTrainer trainer(runtime, config,
                        {.fields = {{.name = "position", .components = 2},
                                    {.name = "stress", .components = 1},
                                    {.name = "load", .components = 1}}});
  const Inputs inputs;
  trainer.set_mesh(inputs.mesh());
  for (size_t t = 0; t < inputs.positions.size(); ++t) {
    if (kind.predicts || kind.moves || kind.reads) trainer.set_field("position", inputs.positions[t]);
    trainer.set_field("stress", inputs.stresses[t]);
    trainer.set_field("load", inputs.load);
    trainer.append();
  }
  trainer.train(40);
  std::string file = folder / "model.safetensors";
  trainer.save(file);
  return file;
}

/// J = sum of weights * targets after three steps, with new boundary values before the second and at the end.
struct Case {
  Kind kind;
  MeshPredictor& predictor;
  Inputs inputs{};
  Field by_stress = random_field(inputs.nodes(), 77, 1),
        by_position = random_field(2 * inputs.nodes(), 78, 0.05);

  int64_t frames_before() const { return kind.history - (kind.predict == Prediction::second_change ? 0 : 1); }
  void set_start() {
    predictor.set_mesh(inputs.mesh());
    predictor.set_field("load", inputs.load);
    const auto set = [&](const char* name, std::vector<Field>& frames) {
      predictor.set_field(name, frames[3]);
      for (int64_t before = 1; before <= frames_before(); ++before)
        predictor.set_previous_field(name, frames[static_cast<size_t>(3 - before)], 0, before);
    };
    set("stress", inputs.stresses);
    if (kind.predicts) set("position", inputs.positions);
  }
  double operator()() {
    set_start();
    for (size_t step = 0; step < kSteps; ++step) {
      if (kind.moves && !kind.predicts) predictor.set_field("position", inputs.positions[3 + step]);
      if (kind.kinematic && (kind.predicts || kind.moves))
        predictor.set_next_field("position", inputs.positions[4 + step]);
      if (kind.kinematic && !kind.moves) predictor.set_next_field("stress", inputs.stresses[4 + step]);
      if (step == 1) predictor.set_boundary("stress", random_field(inputs.nodes(), 8, 1));
      if (step == 1) predictor.set_boundary("stress", inputs.boundary[0]);
      predictor.predict();
    }
    if (!kind.kinematic) predictor.set_boundary("stress", inputs.boundary[1]);
    Field stress(by_stress.size()), position(by_position.size());
    predictor.get_field("stress", stress);
    if (kind.predicts) predictor.get_field("position", position);
    return product(stress, by_stress) + product(position, by_position);
  }
  void backward() {
    predictor.record_steps(true);
    (*this)();
    predictor.set_gradient("stress", by_stress);
    if (kind.predicts) predictor.set_gradient("position", by_position);
    predictor.backward();
    predictor.record_steps(false);
  }
  /// Checks a gradient along random directions; `fields` are all moved by the same.
  void check(const char* what, const std::vector<Field*>& fields, const Field& gradient, double scale = 1,
             double least = 1e-6) {
    CAPTURE(what);
    for (unsigned seed = 90; seed < 92; ++seed) {
      const Field along = random_field(gradient.size(), seed, scale);
      const auto at = [&](double shift) {
        std::vector<Field> kept;
        for (Field* field : fields) {
          kept.push_back(*field);
          for (size_t i = 0; i < along.size(); ++i) (*field)[i] += shift * along[i];
        }
        const double j = (*this)();
        for (size_t k = 0; k < fields.size(); ++k) *fields[k] = kept[k];
        return j;
      };
      // Of fourth order; a step of 2^-8 leaves 1e-5 to the rounding of states.
      constexpr double kStep = 0x1p-8;
      const double expected =
          (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
      CHECK(product(gradient, along) == doctest::Approx(expected)
                                            .epsilon(kTolerance)
                                            .scale(0.01 + scale * std::sqrt(product(gradient, gradient))));
    }
    CHECK(product(gradient, gradient) > least);
  }
  template <class Get>
  Field got(size_t size, const Get& get) {
    Field gradient(size);
    get(gradient);
    return gradient;
  }
  void check_all();
};

void Case::check_all() {
  backward();
  const size_t n = inputs.nodes();
  const auto of_field = [&](const char* name, size_t size) {
    return got(size, [&](Field& to) { predictor.get_gradient(name, to); });
  };
  const auto before = [&](const char* name, size_t size, int64_t steps) {
    return got(size, [&](Field& to) { predictor.get_previous_gradient(name, to, 0, steps); });
  };
  const auto next = [&](const char* name, size_t size, int64_t step) {
    return got(size, [&](Field& to) { predictor.get_next_gradient(name, to, 0, step); });
  };
  const auto boundary = [&](int64_t step) {
    return got(n, [&](Field& to) { predictor.get_boundary_gradient("stress", to, 0, step); });
  };
  // All are read before a prediction runs again.
  const Field by_load = of_field("load", n), by_now = of_field("stress", n), by_first = boundary(1),
              by_last = boundary(static_cast<int64_t>(kSteps));
  const Field by_rest = got(2 * n, [&](Field& to) { predictor.get_position_gradient(to); });
  Field by_moved;
  if (kind.predicts || kind.moves) by_moved = of_field("position", 2 * n);
  std::vector<Field> by_stresses, by_positions, next_stress, next_position;
  for (int64_t steps = 1; steps <= frames_before(); ++steps) {
    by_stresses.push_back(before("stress", n, steps));
    if (kind.predicts) by_positions.push_back(before("position", 2 * n, steps));
  }
  for (int64_t step = 0; kind.kinematic && step < static_cast<int64_t>(kSteps); ++step) {
    if (kind.predicts || kind.moves) next_position.push_back(next("position", 2 * n, step));
    if (!kind.moves) next_stress.push_back(next("stress", n, step));
  }
  CHECK(product(boundary(0), boundary(0)) == 0);

  check("load", {&inputs.load}, by_load);
  check("stress", {&inputs.stresses[3]}, by_now);
  check("first boundary", {&inputs.boundary[0]}, by_first);
  if (!kind.kinematic) check("last boundary", {&inputs.boundary[1]}, by_last);
  check("rest", {&inputs.rest}, by_rest, kind.moved);
  if (kind.predicts) check("position", {&inputs.positions[3]}, by_moved, kind.moved);
  if (kind.moves && !kind.predicts) {  // a step's next position is the current one of the following step
    for (size_t i = 0; i < by_moved.size(); ++i) by_moved[i] += next_position[0][i] + next_position[1][i];
    check("position", {&inputs.positions[3], &inputs.positions[4], &inputs.positions[5]}, by_moved,
          kind.moved);
    check("last position", {&inputs.positions[6]}, next_position[2], kind.moved);
    return;
  }
  for (size_t k = 0; k < by_stresses.size(); ++k) {
    CAPTURE(k);
    // What is handed on of a value is never read again.
    if (!kind.values || k + 1 < by_stresses.size())
      check("stress before", {&inputs.stresses[2 - k]}, by_stresses[k]);
    if (kind.predicts && k == 0)
      check("position before", {&inputs.positions[2 - k]}, by_positions[k], kind.moved);
  }
  for (size_t step = 0; step < next_stress.size(); ++step) {
    CAPTURE(step);
    const double least = step == 0 ? 0 : 1e-6;  // the first is replaced by boundary values
    check("next stress", {&inputs.stresses[4 + step]}, next_stress[step], 1, least);
  }
  for (size_t step = 0; step < next_position.size(); ++step) {
    CAPTURE(step);
    check("next position", {&inputs.positions[4 + step]}, next_position[step], kind.moved);
  }
}

constexpr Kind kKinds[] = {
    {.name = "history", .history = 3, .predicts = false},
    {.name = "history of second changes", .predict = Prediction::second_change, .history = 2},
    {.name = "history of values", .predict = Prediction::second_change, .history = 3, .values = true},
    {.name = "kinematic nodes", .kinematic = true},
    {.name = "positions that move", .moves = true},
    {.name = "moving with history and world edges",
     .predict = Prediction::second_change,
     .history = 2,
     .kinematic = true,
     .moves = true,
     .radius = 0.17,
     .moved = 0.02},
    {.name = "positions that are given",
     .kinematic = true,
     .moves = true,
     .predicts = false,
     .reads = true,
     .radius = 0.17},
};

TEST_CASE("gradients through several frames match differences") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 2});
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    MeshPredictor predictor(runtime, trained(scratch.path, runtime, kind, DType::f64));
    Case{kind, predictor}.check_all();
  }
}

}  // namespace
}  // namespace meshgrad::frames_gradients_test
