// SPDX-License-Identifier: Apache-2.0
// World edges that a GPU, or the simulated device, finds itself: in training, captured or not, and in
// predictions.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/train.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "train/mesh_arrays.h"
#include "train/moving_data.h"
#include "train/small_run.h"
#include "train/world_case.h"

namespace meshgrad::world_device_test {
namespace {

using test::contains;
using test::message_of;
using test::Moving;

constexpr Device kGpu{DeviceKind::cuda, 0};

/// The first elements of a tensor, as bytes on the host.
std::vector<std::byte> head_of(const Tensor& tensor, int64_t elements, const Stream& stream) {
  const Tensor host = to_host(tensor, stream);
  const auto* bytes = static_cast<const std::byte*>(host.raw());
  return {bytes, bytes + elements * size_of(tensor.dtype())};
}

/// All that belongs to the real world edges of a batch.
std::vector<std::vector<std::byte>> world_of(const Batch& batch, int64_t nodes, const Stream& stream) {
  const EdgeSet& world = batch.graph.edge_sets[1];
  const Graph& graph = world.graph;
  const int64_t edges = to_host(graph.counts, stream).data<int64_t>()[2];
  std::vector<std::vector<std::byte>> all;
  for (const Tensor* tensor : {&graph.senders, &graph.receivers, &graph.sender_order})
    all.push_back(head_of(*tensor, edges, stream));
  for (const Tensor* tensor : {&graph.receiver_offsets, &graph.sender_offsets})
    all.push_back(head_of(*tensor, nodes + 1, stream));
  all.push_back(head_of(world.features, edges * world.features.width(), stream));
  all.push_back(head_of(graph.counts, 3, stream));
  return all;
}

struct Trained {
  TrainResult result;
  std::vector<RunEvent> events;
  int64_t captures = 0;
};
Trained train_on(Device device, const Config& config) {
  Runtime runtime({.device = device, .threads = 2, .allocator = config.memory});
  TrainOptions options;
  Trained trained;
  options.observer.event = [&](const RunEvent& event) { trained.events.push_back(event); };
  const int64_t before = gpu::counters().captures;
  trained.result = train(runtime, config, options);
  trained.captures = gpu::counters().captures - before;
  return trained;
}

Config device_run(const Moving& plate, const std::string& name) {
  Config config = test::world_run(plate);
  config.run.dir += "_" + name;
  config.run.device = "cuda";
  config.model.width = 8;
  config.model.blocks = 1;
  config.train.steps = 5;
  config.train.batch = 2;
  config.train.checkpoint_every = 0;
  config.train.validate_every = 0;
  config.train.log_every = 1;
  return config;
}

/// A checkpoint for predictions whose nodes are all free, and may all be joined.
std::string trained_free(const Moving& plate, const std::string& name, GraphsMode graphs = GraphsMode::off) {
  Config config = device_run(plate, name);
  config.graphs = graphs;
  config.data.kinematic_types = {};
  config.data.world_pairs = WorldPairs::all;
  config.data.world_radius = 0.02;
  config.train.steps = 1;
  train_on(kGpu, config);
  return config.run.dir + "/checkpoints/last.safetensors";
}

TEST_CASE("a device finds the world edges that the host finds" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  Config config = test::world_run(plate);
  config.train.batch = 3;
  Runtime on_host{RuntimeOptions{.threads = 1}}, on_device{RuntimeOptions{.device = kGpu, .threads = 1}};
  const std::vector<Sample> samples{{0, 6, 0}, {1, 5, 5}};
  for (const WorldPairs pairs : {WorldPairs::other_type, WorldPairs::all}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(name_of(dtype));
      config.data.world_pairs = pairs;
      if (pairs == WorldPairs::all) config.data.world_edges_per_node = 40;
      const Task task = make_task(config, dataset);
      Normalizers normalizers = task.dataset_normalizers({});
      const NoiseOptions noise = noise_of(config);
      const Batch wanted = training_batch(task, on_host, dtype, "train", samples, noise, normalizers);
      const BatchShape shape = task.shape("train", samples);
      for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {  // capture: of more rows
        config.graphs = graphs;
        config.precision = dtype;
        Model model = make_model(config.model, task.sizes());
        model.parameters.allocate(on_device, dtype, 1);
        const Optimizer optimizer(on_device, model.parameters, config, 4);
        const StepCache steps(on_device, config, task, model, optimizer, {});
        const BatchLayout layout = steps.layout(shape);
        CHECK((layout.shape() == shape) == (graphs == GraphsMode::off));
        SampleScratch scratch;
        const Batch batch = make_batch(on_device, layout, [&](const Batch& host) {
          task.write(host, "train", samples, noise, normalizers, false, scratch);
        });
        REQUIRE(task.mesh().world.is_for_device(batch));
        const Tensor missing = task.mesh().world.find(on_device, batch);
        CHECK(missing_edges(on_device, missing) == 0);
        const auto found = world_of(batch, shape.nodes, on_device.stream());
        CHECK(found.front().size() > 40);
        CHECK((found == world_of(wanted, shape.nodes, on_host.stream())));
      }
    }
  }
}

TEST_CASE("a device run with world edges has the CPU's losses" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  const Config cpu = device_run(plate, "cpu");
  train_on({}, cpu);
  const std::vector<double> wanted = test::losses_of(cpu.run.dir);
  REQUIRE(wanted.size() > 2);
  for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
    for (const NormalizeMode mode : {cpu.normalize.mode, NormalizeMode::online}) {
      Config config = device_run(plate, graphs == GraphsMode::off ? "off" : "captured");
      config.graphs = graphs;
      config.normalize.mode = mode;
      config.normalize.warmup_steps = 0;
      if (mode == NormalizeMode::online) config.run.dir += "_online";
      CAPTURE(config.run.dir);
      const Trained trained = train_on(kGpu, config);
      const std::vector<double> losses = test::losses_of(config.run.dir);
      REQUIRE(losses.size() == wanted.size());
      for (size_t i = 0; i < losses.size() && mode == cpu.normalize.mode; ++i)
        CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(1e-4));
      CHECK(trained.captures == (graphs == GraphsMode::off ? 0 : 2));  // and the optimizer's step
      CHECK(std::ranges::count(trained.events, RunEventKind::not_captured, &RunEvent::kind) == 0);
    }
  }
}

TEST_CASE("world edges without room end the run on a device" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  for (const DType precision : {DType::f32, DType::f16}) {
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      Config config = device_run(plate, std::string(name_of(precision)));
      config.precision = precision;
      config.graphs = graphs;
      config.data.world_edges_per_node = 0.05;
      config.run.dir += graphs == GraphsMode::off ? "" : "_captured";
      const std::string error = message_of([&] { train_on(kGpu, config); });
      CAPTURE(error);
      CHECK(contains(error, "[data.world_edges_per_node] needed "));
      CHECK(contains(error, "or more, for frame "));
    }
  }
}

/// `times` in a row from each state, so that a captured prediction is replayed.
void check_room(const std::string& checkpoint, int times) {
  Runtime runtime{RuntimeOptions{.device = kGpu, .threads = 1}}, on_host{RuntimeOptions{.threads = 1}};
  const Predictor packed(runtime, checkpoint), other(on_host, checkpoint);
  const MeshTask& task = packed.mesh_dynamics();
  const TrajectoryView view = packed.dataset().trajectory("test", 0);
  const MeshView& mesh = view.mesh();
  const size_t nodes = mesh.node_type.size();
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_mesh(test::arrays_of(mesh));
  std::vector<size_t> edges;
  for (const float scale : {1.0f, 0.3f, 0.5f}) {  // the body shrinks: more pairs are near
    FieldState state = task.state_at(view, 0);
    std::vector<float> at, stress, ours(3 * nodes);
    for (size_t i = 0; i < state.current.size(); ++i) {
      if (i % 4 == 3) stress.push_back(state.current[i]);
      if (i % 4 < 3) at.push_back(state.current[i] *= scale);
    }
    const Normalizers& normalizers = packed.trained().normalizers;
    const Batch batch = task.prediction_batch(runtime, DType::f32, view, 0, state, normalizers);
    const Batch wanted = task.prediction_batch(on_host, DType::f32, view, 0, state, normalizers);
    edges.push_back(test::plain_pairs(mesh, at, 3, task.world.options()).size());
    CHECK((world_of(batch, mesh.nodes, runtime.stream()) == world_of(wanted, mesh.nodes, on_host.stream())));
    for (int i = 0; i < times; ++i) {
      predictor.set_field("world_pos", at);
      predictor.set_field("stress", stress);
      predictor.predict();
    }
    predictor.get_field("world_pos", ours);
    const std::vector<float> next = predict_next(packed.trained(), task, view, 0, state);
    const std::vector<float> near = predict_next(other.trained(), other.mesh_dynamics(), view, 0, state);
    for (size_t i = 0; i < ours.size(); ++i) {
      if (mesh.node_type[i / 3] != 0) continue;
      REQUIRE(ours[i] == next[i / 3 * 4 + i % 3]);
      REQUIRE(ours[i] == doctest::Approx(near[i / 3 * 4 + i % 3]).epsilon(1e-3));
    }
  }
  CHECK(edges[1] > 6 * nodes);  // beyond the room of training
  CHECK(edges[2] < edges[1]);
}

TEST_CASE("predictions on a device have room for world edges" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  check_room(trained_free(plate, "predicts"), 1);
  const std::string checkpoint = trained_free(plate, "replays", GraphsMode::capture);
  const int64_t trained = gpu::counters().graph_launches;
  check_room(checkpoint, 3);
  CHECK(gpu::counters().graph_launches >= trained + 2 * 2);  // with room once made, a graph for each room
}

TEST_CASE("MeshPredictor names the mesh with too many world edges" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  const std::string checkpoint = trained_free(plate, "refuses");
  Runtime runtime{RuntimeOptions{.device = kGpu, .threads = 1}};
  const std::string error = test::refusal_of_rows(runtime, checkpoint, 100);
  CHECK_MESSAGE(contains(error, "[data.world_radius] needed 1000 nodes within the radius"), error);
  CHECK(contains(error, "mesh 1"));
}

TEST_CASE("parts in turn on a device match the whole mesh" * doctest::skip(cuda_devices().empty())) {
  const Moving plate("plate");
  Config whole = device_run(plate, "whole"), turns = device_run(plate, "in_turn");
  for (Config* config : {&whole, &turns})
    config->train.validate_every = 5, config->train.validate_rollouts = 1;
  turns.ranks.parts_in_turn = 2;
  const TrainResult expected = train_on(kGpu, whole).result, result = train_on(kGpu, turns).result;
  const std::vector<double> losses = test::losses_of(turns.run.dir), wanted = test::losses_of(whole.run.dir);
  REQUIRE(losses.size() == wanted.size());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(2e-4));
  CHECK(result.state.last_valid_rollout == doctest::Approx(expected.state.last_valid_rollout).epsilon(2e-4));
}

TEST_CASE("the bound of a step counts the data's world edges") {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  Config config = test::world_run(plate);
  config.run.device = "cuda";
  config.train.batch = 1;
  const auto planned = [&] { return plan_memory(config, {.device_memory = int64_t{1} << 36}); };
  const MemoryPlan roomy = planned();
  double sum = 0.0;
  const Task task = make_task(config, dataset);
  const std::vector<double> counts =
      world_edges_per_node(dataset, task.mesh().fields.moving(), task.mesh().world.options());
  for (const double count : counts) sum += count;
  CHECK(roomy.world_edges_per_node == doctest::Approx(sum / static_cast<double>(counts.size())));
  CHECK(roomy.world_edges_per_node > 0.0);
  CHECK(std::ranges::any_of(roomy.notes, [](const std::string& note) {
    return contains(note, "world edges a node, the mean of frames of the data");
  }));
  config.data.world_edges_per_node = 60;  // room takes memory, not time
  const MemoryPlan roomier = planned();
  CHECK(roomier.bound.value().ms == doctest::Approx(roomy.bound.value().ms));
  CHECK(roomier.predicted.live > roomy.predicted.live);
  config.data.world_edges_per_node = 0.01;
  CHECK(planned().world_edges_per_node <= 0.01);
}

}  // namespace
}  // namespace meshgrad::world_device_test
