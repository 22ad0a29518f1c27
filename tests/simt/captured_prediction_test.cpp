// SPDX-License-Identifier: Apache-2.0
// Predictions that are replayed as a CUDA graph: the bits of those whose kernels are launched one by one.
#include <doctest/doctest.h>
#include <meshgrad/autograd/tape.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/learn/run/make_model.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support.h"

namespace meshgrad::captured_prediction_test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// A grid of `side` x `side` nodes.
struct Grid {
  std::vector<double> positions;
  std::vector<int32_t> cells, types;
  explicit Grid(int32_t side) {
    for (int32_t i = 0; i < side * side; ++i) {
      positions.insert(positions.end(), {0.1 * (i % side), 0.1 * (i / side)});
      types.push_back(i % side == 0 ? 1 : 0);
      if (i % side + 1 < side && i / side + 1 < side)
        cells.insert(cells.end(), {i, i + 1, i + side + 1, i + side});
    }
  }
  MeshArrays arrays() const {
    return {.positions = positions, .cells = cells, .nodes_per_cell = 4, .node_type = types};
  }
  std::vector<float> wave(float phase) const {
    std::vector<float> values;
    for (size_t i = 0; i < types.size(); ++i)
      values.push_back(std::sin(0.7f * static_cast<float>(i) + phase));
    return values;
  }
};

Config config_of(GraphsMode graphs, DType precision) {
  Config config;
  config.data.inputs = {"u"};
  config.data.targets = {"u"};
  config.data.node_types = 2;
  config.data.predicted_types = {0};
  config.model.width = 64;
  config.model.blocks = 2;
  config.precision = precision;
  config.graphs = graphs;
  return config;
}

OnlineOptions options() { return {.dt = 0.5, .fields = {{.name = "u", .components = 1}}}; }

Normalizers unchanged(const ModelSizes& sizes) {
  const auto of = [](int64_t width) {
    const auto columns = static_cast<size_t>(width);
    return Normalizer::fixed(std::vector<double>(columns, 0.0), std::vector<double>(columns, 1.0));
  };
  return {of(sizes.node_inputs), of(sizes.edge_inputs.front()), of(sizes.outputs)};
}

/// Of weights that both ways of launching have in common.
struct Case {
  std::vector<std::string> messages;
  Runtime runtime;
  Config config;
  ModelSizes sizes;
  Model model;
  MeshPredictor plain, captured;

  explicit Case(DType precision, Model (*make)(const Config&, const ModelSizes&) = made)
      : runtime({.device = kGpu,
                 .threads = 1,
                 .log = [this](LogLevel, std::string_view text) { messages.emplace_back(text); }}),
        config(config_of(GraphsMode::off, precision)),
        sizes(mesh_model_sizes(config, options())),
        model(make(config, sizes)),
        plain(predictor(GraphsMode::off)),
        captured(predictor(GraphsMode::capture)) {}

  static Model made(const Config& config, const ModelSizes& sizes) { return make_model(config.model, sizes); }
  MeshPredictor predictor(GraphsMode graphs) {
    if (!model.parameters.values().defined()) model.parameters.allocate(runtime, config.precision, 5);
    return MeshPredictor(runtime, config_of(graphs, config.precision), options(), model, unchanged(sizes));
  }
};

std::vector<float> predicted(MeshPredictor& predictor, const Grid& grid, float phase, int64_t steps = 1) {
  predictor.set_field("u", grid.wave(phase));
  predictor.predict(steps);
  std::vector<float> values(grid.types.size());
  predictor.get_field("u", values);
  return values;
}

/// What predict() launches.
gpu::Counters launched(MeshPredictor& predictor, int64_t steps = 1) {
  const gpu::Counters before = gpu::counters();
  predictor.predict(steps);
  const gpu::Counters after = gpu::counters();
  return {after.launches - before.launches, after.graph_launches - before.graph_launches,
          after.captures - before.captures};
}

TEST_CASE("a captured prediction has the bits of launches") {
  for (const DType precision : {DType::f32, DType::f16}) {
    CAPTURE(name_of(precision));
    Case c(precision);
    for (const int32_t side : {5, 7}) {  // of another mesh a graph of its own
      const Grid grid(side);
      c.plain.set_mesh(grid.arrays());
      c.captured.set_mesh(grid.arrays());
      for (const float phase : {0.1f, 0.2f, 0.3f, 0.4f}) {
        const std::vector<float> expected = predicted(c.plain, grid, phase);
        CHECK(expected != grid.wave(phase));
        CHECK(predicted(c.captured, grid, phase) == expected);
      }
      CHECK(launched(c.plain).launches > 5);
      const gpu::Counters replayed = launched(c.captured, 3);
      CHECK(replayed.launches == 2 * 3);  // features from the fields, and the next fields
      CHECK(replayed.graph_launches == 3);
      CHECK(replayed.captures == 0);
      CHECK(predicted(c.captured, grid, 0.7f, 3) == predicted(c.plain, grid, 0.7f, 3));
    }
    c.captured.set_mesh(Grid(4).arrays());
    c.captured.set_field("u", Grid(4).wave(0.0f));
    const gpu::Counters first = launched(c.captured), second = launched(c.captured);
    CHECK(first.launches > 5);
    CHECK(first.captures == 0);
    CHECK(second.captures == 1);
    CHECK(second.graph_launches == 1);
  }
}

TEST_CASE("a captured prediction reads the weights of now") {
  Case c(DType::f16);
  const Grid grid(5);
  c.plain.set_mesh(grid.arrays());
  c.captured.set_mesh(grid.arrays());
  const std::vector<float> before = predicted(c.captured, grid, 0.1f);
  for (int i = 0; i < 3; ++i) CHECK(predicted(c.captured, grid, 0.1f) == before);
  const ParameterSet& parameters = c.model.parameters;
  const Tensor zeros = host_tensor(parameters.values().shape(), DType::f32);
  std::ranges::fill(zeros.values<float>(), 0.0f);
  parameters.set(parameters.values(), zeros, c.runtime.stream());
  const std::vector<float> after = predicted(c.captured, grid, 0.1f);
  CHECK(after != before);
  CHECK(after == predicted(c.plain, grid, 0.1f));
}

/// A stage of it waits for the device, which no capture allows.
Model waiting_model(const Config& config, const ModelSizes& sizes) {
  Model model = make_model(config.model, sizes);
  model.stages.push_back(
      {"waits", false, [](Tape& tape, const ParameterSet&, const GraphBatch&, const Values& before) {
         tape.runtime().stream().synchronize();
         return before;
       }});
  return model;
}

TEST_CASE("what cannot be captured is launched, and logged once") {
  Case c(DType::f32, waiting_model);
  const Grid grid(5);
  c.plain.set_mesh(grid.arrays());
  c.captured.set_mesh(grid.arrays());
  for (const float phase : {0.1f, 0.2f, 0.3f, 0.4f})
    CHECK(predicted(c.captured, grid, phase) == predicted(c.plain, grid, phase));
  CHECK(launched(c.captured).graph_launches == 0);
  const auto tells = [](const std::string& text) {
    return test::contains(text, "a prediction cannot be captured, its kernels run one by one: ");
  };
  CHECK(std::ranges::count_if(c.messages, tells) == 1);
}

}  // namespace
}  // namespace meshgrad::captured_prediction_test
