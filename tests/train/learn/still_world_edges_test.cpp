// SPDX-License-Identifier: Apache-2.0
// World edges of meshes that stand still: they join nodes whose positions at rest are near.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/task.h>

#include <cmath>

#include "support.h"
#include "train/steady_case.h"
#include "train/world_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

/// Of test::pack_squares, whose nodes are 0.2 apart: a radius that reaches two edges along an axis.
Config still_config(const fs::path& folder) {
  Config config = test::small_config(folder, test::pack_squares(folder));
  config.task.name = TaskName::steady_field;
  config.data.inputs = {"g", "load"};
  config.data.targets = {"u"};
  config.data.predicted_types = {0};
  config.data.world_radius = 0.41;
  config.data.world_edges_per_node = 20;
  config.train.noise = 0.0;
  config.train.steps = 3;
  config.train.accumulate = 1;
  config.train.validate_every = 2;
  config.train.validate_rollouts = 0;
  return config;
}

TEST_CASE("world edges of a still mesh join near nodes at rest") {
  const ScratchDirectory scratch;
  const Config config = still_config(scratch.path);
  const Task task = make_task(config, Dataset::open(config.data.path));
  const MeshTask& mesh = task.mesh();
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{3, 3});
  const TrajectoryView view = mesh.dataset.trajectory("train", 1);
  const test::Pairs expected = test::plain_pairs(view.mesh(), view.mesh().positions, 2, mesh.world.options());
  CHECK(expected.size() > 25);
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch = training_batch(task, runtime, DType::f32, "train", {{1, 0, 0}}, {}, normalizers);
  const Graph& graph = batch.graph.edges(kWorldEdges).graph;
  REQUIRE(graph.edge_rows().value() == std::ssize(expected));
  for (size_t e = 0; e < expected.size(); ++e) {
    CHECK(graph.receivers.values<int32_t>()[e] == expected[e].first);
    CHECK(graph.senders.values<int32_t>()[e] == expected[e].second);
  }
  const FieldStatistics near = displacement_stats(mesh.dataset, nullptr, mesh.world.options());
  CHECK(near.mean.at(0) == doctest::Approx(0.0).epsilon(1e-6));
  CHECK(near.mean.at(2) > 0.28);
  CHECK(near.mean.at(2) < 0.41);
  CHECK(normalizers.world.mean(2) == near.mean.at(2));
}

TEST_CASE("a steady run has world edges, and predicts") {
  const ScratchDirectory scratch;
  Config config = still_config(scratch.path);
  const TrainResult result = test::train_here(config);
  CHECK(std::isfinite(result.state.last_valid_loss));
  CHECK(test::tensors_of(config).contains("model.edge_encoder.world.linear_0.weight"));
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  CHECK(std::isfinite(evaluate(predictor, {.split = "test"}).fields.at(0).rmse));
  CHECK(contains(message_of([&] { online_config(config); }),
                 "[data.world_radius] needed 0 for meshes that a program gives and that do not move"));
  CHECK(contains(message_of([&] {
                   MeshPredictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
                 }),
                 "[data.world_radius] needed 0 for meshes that a program gives and that do not move"));
}

TEST_CASE("a device finds world edges of still meshes" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = still_config(scratch.path);
  const TrainResult cpu = test::train_here(config);
  for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
    Config here = config;
    here.run.dir += graphs == GraphsMode::off ? "-plain" : "-captured";
    here.run.device = "cuda";
    here.graphs = graphs;
    Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
    CHECK(train(runtime, here, {}).state.last_valid_loss ==
          doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
  }
}

}  // namespace
}  // namespace meshgrad
