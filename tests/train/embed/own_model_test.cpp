// SPDX-License-Identifier: Apache-2.0
// A model of a program's own: its weights in a file, and a predictor of it.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/learn/run/checkpoint.h>

#include <fmt/format.h>
#include <algorithm>

#include "train/given_parts_case.h"
#include "train/process.h"

namespace meshgrad::own_model_test {
namespace {

using test::contains;
using test::message_of;
using test::given_parts::parts_config;
using test::given_parts::Wave;

/// x W of the node features, from a parameter of this name.
Model linear_model(const ModelSizes& sizes, const std::string& name = "linear.weight") {
  Model model;
  const size_t weight =
      model.parameters.add(name, Shape{sizes.node_inputs, sizes.outputs}, Initial::uniform_fan_in, 1);
  model.stages.push_back(
      {"linear", false,
       [weight](Tape& tape, const ParameterSet& parameters, const GraphBatch&, const Values& before) {
         return Values{ops::linear(tape, before.front(), parameters.weight(weight), {})};
       }});
  return model;
}

OnlineOptions options() { return {.dt = 0.5, .fields = {{.name = "velocity", .components = 2}}}; }

Normalizers unchanged(const ModelSizes& sizes) {
  const auto of = [](int64_t width) {
    const auto columns = static_cast<size_t>(width);
    return Normalizer::fixed(std::vector<double>(columns, 0.0), std::vector<double>(columns, 1.0));
  };
  return {of(sizes.node_inputs), of(sizes.edge_inputs.front()), of(sizes.outputs)};
}

/// Sets W to `factor` times the velocity.
void set_weights(const Runtime& runtime, const Model& model, float factor) {
  const ParameterSet& parameters = model.parameters;
  const Tensor host = host_tensor(parameters.values().shape(), DType::f32);
  std::ranges::fill(host.values<float>(), 0.0f);
  const std::span<float> weight = parameters.slice(host, 0).values<float>();
  weight[0] = weight[3] = factor;  // rows 0 and 1 of [inputs, 2]
  parameters.set(parameters.values(), host, runtime.stream());
}

std::vector<float> predicted(MeshPredictor& predictor, const Wave& wave) {
  predictor.set_field("velocity", wave.velocity(1));
  predictor.predict();
  std::vector<float> values(wave.velocity(1).size());
  predictor.get_field("velocity", values);
  return values;
}

TEST_CASE("a model of a program's own predicts, with its weights of now") {
  const Wave wave(5, 2, 0.3);
  const Config config = parts_config();
  Runtime runtime({.threads = 1});
  const ModelSizes sizes = mesh_model_sizes(config, options());
  CHECK(sizes.node_inputs == 2 + config.data.node_types);
  CHECK(sizes.edge_inputs == std::vector<int64_t>{3});
  CHECK(sizes.outputs == 2);
  const Model model = linear_model(sizes);
  const auto make = [&](const Model& of, const Normalizers& normalizers, const Config& with) {
    return message_of([&] { MeshPredictor predictor(runtime, with, options(), of, normalizers); });
  };
  CHECK(contains(make(model, unchanged(sizes), config),
                 "[MeshPredictor: model] needed parameters with memory"));
  Model ours = model;
  ours.parameters.allocate(runtime, DType::f32, 0);
  ModelSizes other = sizes;
  other.outputs = 3;
  CHECK(contains(make(ours, unchanged(other), config),
                 "[MeshPredictor: normalizers] needed 11 node, 3 edge and 2 target columns, got 11 node, 3 "
                 "edge and 3 target"));
  Config coarse = config;
  coarse.precision = DType::bf16;
  CHECK(contains(make(ours, unchanged(sizes), coarse), "needed parameters in bf16, the precision, got f32"));
  MeshPredictor predictor(runtime, config, options(), ours, unchanged(sizes));
  CHECK(predictor.dt() == 0.5);
  predictor.set_mesh(wave.whole());
  for (const float factor : {0.5f, -0.25f}) {
    set_weights(runtime, ours, factor);
    const std::vector<float> values = predicted(predictor, wave);
    for (size_t i = 0; i < values.size(); ++i) {
      const float before = wave.velocity(1)[i];
      const bool predicts = wave.types[i / 2] == 0 || wave.types[i / 2] == 5;
      CHECK(values[i] == doctest::Approx(predicts ? before + factor * before : before).epsilon(1e-6));
    }
  }
}

TEST_CASE("weights of a program's own model are saved and loaded") {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path / "own.safetensors";
  const Wave wave(5, 2, 0.3);
  const Config config = parts_config();
  Runtime runtime({.threads = 1});
  const ModelSizes sizes = mesh_model_sizes(config, options());
  const auto made = [&](Model model, uint64_t seed) {
    model.parameters.allocate(runtime, DType::f32, seed);
    return model;
  };
  const Model saved = made(linear_model(sizes), 1), loaded = made(linear_model(sizes), 2);
  Normalizers normalizers = unchanged(sizes);
  normalizers.targets = Normalizer::fixed({0.125, -0.5}, {2.0, 0.5});
  save_weights(file, runtime.stream(), saved.parameters, &normalizers);
  Normalizers read = unchanged(sizes);
  load_weights(file, runtime.stream(), loaded.parameters, &read);
  const auto values = [&](const Model& model, const Normalizers& with) {
    MeshPredictor predictor(runtime, config, options(), model, with);
    predictor.set_mesh(wave.whole());
    return predicted(predictor, wave);
  };
  CHECK(values(loaded, read) == values(saved, normalizers));
  CHECK(values(loaded, unchanged(sizes)) != values(saved, normalizers));

  const auto refusal = [&](const Model& model) {
    return message_of([&] { load_weights(file, runtime.stream(), model.parameters, nullptr); });
  };
  CHECK(contains(refusal(made(linear_model(sizes, "other.weight"), 1)),
                 "needed parameters of this model alone, got linear.weight"));
  ModelSizes wide = sizes;
  wide.outputs = 3;
  CHECK(contains(refusal(made(linear_model(wide), 1)), "linear.weight"));
  Model more = linear_model(sizes);
  more.parameters.add("more", Shape{1, 2}, Initial::zero, 1);
  CHECK(contains(refusal(made(more, 1)), "needed parameter model.more"));
  CHECK(contains(refusal(made(make_mesh_graph_net({.blocks = 1}, sizes), 1)), "of a model with conventions"));
  CHECK(contains(message_of([&] { MeshPredictor predictor(runtime, file); }),
                 "got weights of a program's own model; fix: load them into that model by load_weights"));
  // What save_weights writes of a mesh graph net goes back into one.
  const Model net = made(make_mesh_graph_net({.width = 8, .blocks = 1}, sizes), 1),
              again = made(make_mesh_graph_net({.width = 8, .blocks = 1}, sizes), 2);
  save_weights(file, runtime.stream(), net.parameters, nullptr);
  load_weights(file, runtime.stream(), again.parameters, nullptr);
  CHECK(values(again, read) == values(net, read));
  CHECK(contains(message_of([&] { load_weights(file, runtime.stream(), again.parameters, &read); }),
                 "normalizer.nodes.count"));
}

}  // namespace
}  // namespace meshgrad::own_model_test
