// SPDX-License-Identifier: Apache-2.0
// World edges in a solver: MeshPredictor, OnlineTrainer and the C interface.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "train/mesh_arrays.h"
#include "train/moving_data.h"
#include "train/small_run.h"
#include "train/world_case.h"

namespace meshgrad::world_embed_test {
namespace {

using test::arrays_of;
using test::contains;
using test::message_of;
using test::Moving;

std::vector<float> field_of(const MeshPredictor& predictor, const char* name, size_t size, int64_t mesh = 0) {
  std::vector<float> values(size);
  predictor.get_field(name, values, mesh);
  return values;
}

/// Frames of a plate for an OnlineTrainer.
struct OnlinePlate {
  const Moving data{"plate"};
  const Dataset dataset = data.dataset();
  const TrajectoryView view = dataset.trajectory("train", 0);
  Config config = test::world_run(data);
  const OnlineOptions options{
      .dim = view.mesh().dim,
      .fields = {{.name = "world_pos", .components = 3}, {.name = "stress", .components = 1}},
      .capacity = 64,
      .held_out_every = 0};
  OnlinePlate() {
    config.data.kinematic_types = {};
    config.train.noise = 0.0;
    config.normalize = {};
  }
  void append(OnlineTrainer& trainer, int64_t first, int64_t end) const {
    for (int64_t t = first; t < end; ++t) {
      trainer.set_field("world_pos", view.field("world_pos").frame(t));
      trainer.set_field("stress", view.field("stress").frame(t));
      trainer.append();
    }
  }
};

TEST_CASE("MeshPredictor has the world edges of each step") {
  for (const DType precision : {DType::f32, DType::f16}) {
    const Moving plate("plate");
    Config config = test::world_run(plate);
    config.precision = precision;
    config.train.steps = 4;
    test::train_here(config);
    const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
    Runtime runtime{RuntimeOptions{.threads = 2}};
    const Predictor packed(runtime, checkpoint);
    const TrajectoryView view = packed.dataset().trajectory("test", 0);
    const size_t nodes = view.mesh().node_type.size();
    const auto at = [&](int64_t t) { return view.field("world_pos").frame(t); };
    MeshPredictor predictor(runtime, checkpoint);
    // Two meshes at once: the second is moved by the obstacle of another frame.
    const std::array meshes{arrays_of(view.mesh()), arrays_of(view.mesh())};
    predictor.set_meshes(meshes);
    for (int64_t mesh = 0; mesh < 2; ++mesh) {
      predictor.set_field("world_pos", at(0), mesh);
      predictor.set_field("stress", view.field("stress").frame(0), mesh);
    }
    std::vector<size_t> edges;
    roll_out(packed.trained(), packed.mesh_dynamics(), view, {.boundary = RolloutBoundary::initial},
             [&](const RolloutFrame& frame) {
               edges.push_back(test::plain_pairs(view.mesh(), field_of(predictor, "world_pos", 3 * nodes), 3,
                                                 packed.mesh_dynamics().world.options())
                                   .size());
               predictor.set_next_field("world_pos", at(frame.t), 0);
               predictor.set_next_field("world_pos", at(0), 1);
               predictor.predict();
               const std::vector<float> moved = field_of(predictor, "world_pos", 3 * nodes);
               const std::vector<float> stress = field_of(predictor, "stress", nodes);
               for (size_t i = 0; i < frame.ours.size(); ++i)
                 REQUIRE(frame.ours[i] == (i % 4 < 3 ? moved[i / 4 * 3 + i % 4] : stress[i / 4]));
             });
    CHECK(edges.front() != edges.back());
    CHECK(edges.back() > 0);
  }
}

TEST_CASE("a prediction with more world edges gets room for them") {
  const Moving plate("plate");
  Config config = test::world_run(plate);
  config.data.kinematic_types = {};
  config.data.world_pairs = WorldPairs::all;
  config.data.world_radius = 0.02;
  config.train.steps = 2;
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const Predictor packed(runtime, checkpoint);
  const MeshTask& task = packed.mesh_dynamics();
  const TrajectoryView view = packed.dataset().trajectory("test", 0);
  const MeshView& mesh = view.mesh();
  const size_t nodes = mesh.node_type.size();
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_mesh(arrays_of(mesh));

  meshgrad_runtime* c_runtime = nullptr;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  REQUIRE(meshgrad_runtime_create(&options, &c_runtime) == MESHGRAD_OK);
  meshgrad_predictor* c_predictor = nullptr;
  REQUIRE(meshgrad_predictor_create(c_runtime, checkpoint.c_str(), &c_predictor) == MESHGRAD_OK);
  std::vector<float> at_rest(mesh.positions.begin(), mesh.positions.end());
  std::vector<int32_t> cells(mesh.cells.begin(), mesh.cells.end());
  std::vector<int32_t> types(mesh.node_type.begin(), mesh.node_type.end());
  const auto array_of = [&](auto& values, int32_t dtype, int64_t columns) {
    return meshgrad_array{.data = values.data(),
                          .dtype = dtype,
                          .rank = 2,
                          .shape = {std::ssize(values) / columns, columns, 0},
                          .device = MESHGRAD_CPU};
  };
  meshgrad_mesh c_mesh;
  meshgrad_mesh_init(&c_mesh);
  c_mesh.positions = array_of(at_rest, MESHGRAD_F32, mesh.dim);
  c_mesh.cells = array_of(cells, MESHGRAD_I32, mesh.nodes_per_cell);
  c_mesh.node_type = array_of(types, MESHGRAD_I32, 1);
  c_mesh.node_type.rank = 1;
  REQUIRE(meshgrad_predictor_set_mesh(c_predictor, &c_mesh) == MESHGRAD_OK);

  std::vector<size_t> edges;
  for (const float scale : {1.0f, 0.3f, 0.5f, 0.02f}) {  // the body shrinks: more pairs are near
    FieldState state = task.state_at(view, 0);
    std::vector<float> at, stress;
    for (size_t i = 0; i < state.current.size(); ++i) {
      if (i % 4 == 3) stress.push_back(state.current[i]);
      if (i % 4 < 3) at.push_back(state.current[i] *= scale);
    }
    edges.push_back(test::plain_pairs(mesh, at, 3, task.world.options()).size());
    predictor.set_field("world_pos", at);
    predictor.set_field("stress", stress);
    predictor.predict();
    const std::vector<float> next = predict_next(packed.trained(), task, view, 0, state);
    const std::vector<float> ours = field_of(predictor, "world_pos", 3 * nodes);
    for (size_t i = 0; i < ours.size(); ++i)
      if (types[i / 3] == 0) REQUIRE(ours[i] == next[i / 3 * 4 + i % 3]);

    meshgrad_array c_at = array_of(at, MESHGRAD_F32, 3), c_stress = array_of(stress, MESHGRAD_F32, 1);
    CHECK(meshgrad_predictor_set_field(c_predictor, 0, "world_pos", &c_at) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_set_field(c_predictor, 0, "stress", &c_stress) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_predict(c_predictor, 1) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_get_field(c_predictor, 0, "world_pos", &c_at) == MESHGRAD_OK);
    CHECK(at == ours);
  }
  CAPTURE(edges);
  CHECK(edges[1] > 6 * nodes);  // beyond the room of training
  CHECK(edges[2] < edges[1]);
  CHECK(edges[3] > edges[1]);
  meshgrad_predictor_destroy(c_predictor);
  meshgrad_runtime_destroy(c_runtime);
}

TEST_CASE("meshes predicted together share the world edge limit") {
  const Moving plate("plate");
  Config config = test::world_run(plate);
  config.data.kinematic_types = {};
  config.data.world_pairs = WorldPairs::all;
  config.data.world_radius = 0.02;
  config.model.width = 8;
  config.model.blocks = 1;
  config.train.steps = 1;
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 1}};
  // Of 1500 nodes at one point all but neighbours are joined: 2,245,502 edges.
  CHECK(test::refusal_of_rows(runtime, checkpoint, 646).empty());
  const std::string error = test::refusal_of_rows(runtime, checkpoint, 645);
  CHECK_MESSAGE(contains(error, "[data.world_radius] needed 1000 nodes within the radius"), error);
  CHECK(contains(error, "mesh 1"));
}

TEST_CASE("OnlineTrainer learns world edges") {
  const OnlinePlate plate;
  Config config = plate.config;
  const TrajectoryView& view = plate.view;
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const std::string half = plate.data.scratch.path / "half.safetensors";
  const auto rest_of = [&](OnlineTrainer& trainer, const char* name) {
    plate.append(trainer, 5, view.frames());
    CHECK(std::isfinite(trainer.train(4).loss));
    trainer.save(plate.data.scratch.path / name);
    return test::read_text(plate.data.scratch.path / name);
  };
  OnlineTrainer trainer(runtime, config, plate.options);
  trainer.set_mesh(arrays_of(view.mesh()));
  plate.append(trainer, 0, 5);
  CHECK(trainer.train(3).steps == 3);
  trainer.save(half);
  const std::string on = rest_of(trainer, "on.safetensors");
  OnlineTrainer again(runtime, half);
  CHECK(rest_of(again, "again.safetensors") == on);

  // Statistics are of the world edges of every sample, as they came.
  size_t edges = 0;
  for (int64_t t = 0; t + 1 < view.frames(); ++t)
    edges += test::plain_pairs(view.mesh(), view.field("world_pos").frame(t), 3,
                               {.radius = config.data.world_radius, .other_type = true})
                 .size();
  const SafetensorsFile file(plate.data.scratch.path / "on.safetensors");
  const auto& tensors = file.view().tensors;
  const auto count = std::ranges::find(tensors, "normalizer.world.count", &SafetensorsTensor::name);
  REQUIRE(count != tensors.end());
  double counted = 0;
  std::memcpy(&counted, count->bytes.data(), sizeof counted);
  CHECK(counted == static_cast<double>(edges));
  CHECK(edges > 10);

  MeshPredictor predictor(runtime, plate.data.scratch.path / "on.safetensors");
  predictor.set_mesh(arrays_of(view.mesh()));
  predictor.set_field("world_pos", view.field("world_pos").frame(3));
  predictor.set_field("stress", view.field("stress").frame(3));
  predictor.predict();
  for (const float x : field_of(predictor, "world_pos", 3 * view.mesh().node_type.size()))
    REQUIRE(std::isfinite(x));
}

TEST_CASE("OnlineTrainer refuses a frame with too many world edges") {
  const OnlinePlate plate;
  Config config = plate.config;
  const TrajectoryView& view = plate.view;
  Runtime runtime{RuntimeOptions{.threads = 1}};
  std::vector<size_t> counts;
  for (int64_t t = 0; t < view.frames(); ++t)
    counts.push_back(test::plain_pairs(view.mesh(), view.field("world_pos").frame(t), 3,
                                       {.radius = config.data.world_radius, .other_type = true})
                         .size());
  const size_t nodes = view.mesh().node_type.size();
  config.data.world_edges_per_node =
      (static_cast<double>(counts[2]) + 0.5) / static_cast<double>(nodes);  // of three frames
  REQUIRE(counts[3] > counts[2]);
  OnlineTrainer narrow(runtime, config, plate.options);
  narrow.set_mesh(arrays_of(view.mesh()));
  plate.append(narrow, 0, 3);
  const std::string refused = message_of([&] { plate.append(narrow, 3, 4); });
  CHECK_MESSAGE(contains(refused, "[data.world_edges_per_node] needed "), refused);
  CHECK(contains(refused, "or more, for the current frame, got "));
  CHECK(contains(refused, "leave the frame out and call restart_trajectory"));
  CHECK(narrow.seen() == 2);
  CHECK(narrow.train(20).steps == 20);
  narrow.restart_trajectory();
  plate.append(narrow, 0, 2);
  CHECK(narrow.seen() == 3);
  config.data.world_radius = 1e3;
  config.data.world_pairs = WorldPairs::all;
  config.data.world_edges_per_node = 5;
  OnlineTrainer wide(runtime, config, plate.options);
  wide.set_mesh(arrays_of(view.mesh()));
  CHECK(contains(message_of([&] { plate.append(wide, 0, 1); }), "[data.world_edges_per_node] needed "));
}

}  // namespace
}  // namespace meshgrad::world_embed_test
