// SPDX-License-Identifier: Apache-2.0
// World edges: against all pairs by a plain loop, in batches, rollouts and plans.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/planning/step_memory.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/train.h>
#include <meshgrad/train/tools/extras/config_check.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "train/moving_data.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"
#include "train/small_run.h"
#include "train/world_case.h"

namespace meshgrad::world_edges_test {
namespace {

using test::contains;
using test::message_of;
using test::Moving;
using test::Pairs;
using test::pairs_of;
using test::plain_pairs;
using test::world_run;

/// Nodes of three types in a row of edges.
struct Cloud {
  std::vector<int32_t> types;
  MeshEdges edges;
  MeshView mesh;

  explicit Cloud(int32_t nodes) {
    std::vector<int32_t> first, second;
    for (int32_t node = 0; node < nodes; ++node) {
      types.push_back(node % 3);
      if (node + 1 < nodes) first.push_back(node), second.push_back(node + 1);
    }
    edges = edges_from_pairs(first, second, nodes, "cloud");
    mesh.nodes = nodes;
    mesh.node_type = types;
    set_edges(mesh, edges);
  }
};

TEST_CASE("the grid finds the pairs that a loop over all finds") {
  const uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  uint64_t drawn = 0;
  size_t found = 0;
  for (const int dim : {2, 3}) {
    // Everything in a few cells; sparse; far beyond the grid's most cells; all in one place.
    for (const double extent : {3.0, 30.0, 1e9, 0.0}) {
      const Cloud cloud(90);
      std::vector<float> at(static_cast<size_t>(90 * dim));
      for (float& x : at) x = static_cast<float>(extent * (uniform(seed, 0, drawn++) - 0.5));
      if (extent == 30.0) at[7] = std::numeric_limits<float>::quiet_NaN();
      if (extent == 30.0) at[20] = std::numeric_limits<float>::infinity();
      if (extent == 1e9) std::copy_n(at.begin(), 6, at.begin() + 30);  // coincident nodes
      for (const bool other_type : {false, true}) {
        const WorldEdgeOptions options{.radius = 1.0, .other_type = other_type};
        const Pairs pairs = pairs_of(world_edges(cloud.mesh, at, dim, options, 90 * 90).value());
        const auto count = static_cast<int64_t>(pairs.size());
        CHECK(count_world_edges(cloud.mesh, at, dim, options) == count);
        if (count > 0) CHECK_FALSE(world_edges(cloud.mesh, at, dim, options, count - 1).has_value());
        CHECK(pairs == plain_pairs(cloud.mesh, at, dim, options));
        found += pairs.size();
      }
    }
  }
  CHECK(found > 1000);
}

TEST_CASE("the grid finds nearest images along periodic axes") {
  const uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  uint64_t drawn = 0;
  size_t found = 0;
  for (const int dim : {2, 3}) {
    for (const double period : {1.0, 2.1, 2.999, 3.5, 4.5, 9.0, 1e8}) {  // 1 to 3, 4, 8 and too many cells
      for (const bool all : {false, true}) {
        Cloud cloud(80);
        cloud.mesh.period = {all ? period : 0.0, period, all ? 2 * period : 0.0};
        std::vector<float> at(static_cast<size_t>(80 * dim));
        // Beyond the borders, too, and on them.
        for (float& x : at)
          x = static_cast<float>(3.0 * std::min(period, 9.0) * (uniform(seed, 0, drawn++) - 0.5));
        std::fill_n(at.begin(), dim, 0.0f);
        std::fill_n(at.begin() + 6 * dim, dim, static_cast<float>(period));
        const WorldEdgeOptions options{.radius = 1.0};
        const Pairs pairs = pairs_of(world_edges(cloud.mesh, at, dim, options, 80 * 80).value());
        CHECK(pairs == plain_pairs(cloud.mesh, at, dim, options));
        CHECK(count_world_edges(cloud.mesh, at, dim, options) == std::ssize(pairs));
        found += pairs.size();
      }
    }
  }
  CHECK(found > 1000);
}

TEST_CASE("one far node does not widen the cells of the others") {
  const Cloud cloud(20'000);
  std::vector<float> at(40'000);
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<float>(uniform(5, 1, i));
  const WorldEdgeOptions options{.radius = 0.002};
  int64_t compared = 0;
  const int64_t count = count_world_edges(cloud.mesh, at, 2, options, &compared);
  CHECK(count > 1000);
  at[9] = 1e9F;
  int64_t compared_with_far = 0;
  const int64_t less = count_world_edges(cloud.mesh, at, 2, options, &compared_with_far);
  CHECK(less <= count);
  CHECK(less > count - 40);
  CHECK(compared > count);
  CHECK(compared_with_far < 2 * compared);  // 20,000^2 in one cell
  CHECK(count_world_edges(cloud.mesh, at, 2, {.radius = 100.0}) == kMostWorldEdgesPerNode * 20'000);
}

TEST_CASE("a state that has blown up is searched in bounded time") {
  const Cloud cloud(20'000);
  std::vector<float> at(40'000);
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<float>(1e30 * (uniform(5, 1, i) - 0.5));
  int64_t compared = 0;
  CHECK(count_world_edges(cloud.mesh, at, 2, {.radius = 0.002}, &compared) == 0);
  CHECK(compared < 40 * 20'000);  // 20,000^2 / 4 where far nodes share four cells

  std::ranges::fill(at, 0.25F);
  std::vector<int32_t> types(20'000, 0);
  MeshView alike = cloud.mesh;
  alike.node_type = types;
  for (const MeshView& mesh : {cloud.mesh, alike}) {
    for (const bool other_type : {false, true}) {
      const WorldEdgeOptions options{.radius = 0.002, .other_type = other_type};
      compared = 1;
      CHECK(count_world_edges(mesh, at, 2, options, &compared) == kMostWorldEdgesPerNode * 20'000);
      CHECK(compared == 0);
      CHECK_FALSE(world_edges(mesh, at, 2, options, 2'000'000'000).has_value());
    }
  }
}

TEST_CASE("a rollout whose nodes collapse ends no run") {
  const test::ScratchDirectory scratch;
  constexpr size_t kNodes = 1100;
  const auto pack = [&](const std::string& split, int collapsed_from) {
    std::vector<float> at;
    std::vector<int32_t> first, second, types(kNodes, 1);
    for (int frame = 0; frame < 3; ++frame) {
      for (size_t node = 0; node < kNodes; ++node) {
        at.push_back(frame < collapsed_from ? static_cast<float>(node) : 0.0F);
        at.push_back(frame < collapsed_from ? 0.01F * static_cast<float>(frame) : 0.0F);
      }
    }
    for (int32_t node = 1; std::cmp_less(node, kNodes); ++node)
      first.push_back(node - 1), second.push_back(node);
    types[0] = 0;  // all others are moved by the data
    first.insert(first.end(), second.begin(), second.end());
    const auto text = std::to_string(kNodes);
    test::write_npz(
        scratch.path / "in" / (split + ".npz"),
        {{"mesh_pos", test::npy<float>("<f4", "(3, " + text + ", 2)", at)},
         {"mesh_edge", test::npy<int32_t>("<i4", "(2, " + std::to_string(kNodes - 1) + ")", first)},
         {"node_type", test::npy<int32_t>("<i4", "(" + text + ",)", types)}},
        false);
  };
  std::filesystem::create_directories(scratch.path / "in");
  pack("train", 3);
  pack("valid", 1);
  ConvertOptions convert_options;
  convert_options.input = scratch.path / "in";
  convert_options.output = scratch.path / "in.mgd";
  convert(convert_options);
  Config config = test::small_config(scratch.path, convert_options.output);
  config.data.path = convert_options.output.string();
  config.data.inputs = {};
  config.data.targets = {"world_pos"};
  config.data.world_position = "world_pos";
  config.data.kinematic_types = {1};
  config.data.predicted_types = {0};
  config.data.world_radius = 0.5;
  config.train.steps = 1;
  config.train.batch = config.train.accumulate = 1;
  config.train.validate_every = 0;
  test::train_here(config);
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const Predictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  std::vector<std::string> told;
  EvaluateOptions options{.split = "valid", .stride = 1000};
  options.progress = [&](const std::string& text) { told.push_back(text); };
  const Evaluation diverged = predictor.task().evaluate(predictor.trained(), options);
  CHECK(std::isnan(diverged.dynamics->rollouts.back().fields[0].rmse));
  CHECK(std::isfinite(diverged.fields[0].rmse));
  CHECK(contains(told.back(), "a rollout has diverged: [data.world_radius] needed 1000 nodes"));
  CHECK(contains(told.back(), "frame 1 of valid.npz"));
  options.stride = 1;  // one step from each frame of the data
  CHECK(contains(message_of([&] { predictor.task().evaluate(predictor.trained(), options); }),
                 "frame 1 of valid.npz"));
}

TEST_CASE("a node at the radius is not joined") {
  const Cloud cloud(3);  // edges 0-1, 1-2
  const WorldEdgeOptions options{.radius = 1.0};
  const auto pairs = [&](const std::vector<float>& at) {
    return pairs_of(world_edges(cloud.mesh, at, 2, options, 9).value());
  };
  CHECK(pairs({0, 0, 9, 9, 1, 0}).empty());
  CHECK(pairs({0, 0, 9, 9, 0.999F, 0}) == Pairs{{0, 2}, {2, 0}});
}

TEST_CASE("a batch has the world edges of noisy positions") {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  Config config = world_run(plate);
  config.data.targets = {"stress"};  // positions are the data's
  const MeshDynamics task(dataset, config.data);
  CHECK(task.mesh().sizes.edge_set_names == std::vector<std::string>{"mesh", "world"});
  Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};
  Normalizers learned = Task(task).online_normalizers();
  const std::vector<Sample> samples{{0, 6, 0}, {1, 5, 5}};
  const Batch batch = training_batch(Task(task), runtime, DType::f64, "train", samples, {}, learned, true);
  const EdgeSet& world = batch.graph.edge_sets[1];
  CHECK(world.name == "world");
  Pairs wanted;
  std::vector<double> rows;
  int32_t before = 0;
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset.trajectory("train", sample.trajectory);
    const std::span<const float> at = view.field("world_pos").frame(sample.frame);
    for (const auto& [receiver, sender] : plain_pairs(view.mesh(), at, 3, task.mesh().world.options())) {
      wanted.emplace_back(before + receiver, before + sender);
      double squares = 0;
      for (size_t axis = 0; axis < 3; ++axis) {
        rows.push_back(static_cast<double>(at[static_cast<size_t>(sender) * 3 + axis]) -
                       static_cast<double>(at[static_cast<size_t>(receiver) * 3 + axis]));
        squares += rows.back() * rows.back();
      }
      rows.push_back(std::sqrt(squares));
    }
    before += static_cast<int32_t>(view.mesh().nodes);
  }
  REQUIRE(wanted.size() > 10);
  const int64_t count = world.graph.edge_rows().value();
  REQUIRE(count == static_cast<int64_t>(wanted.size()));
  CHECK(world.graph.edges == std::ceil(6.0 * before));
  for (size_t e = 0; e < wanted.size(); ++e)
    REQUIRE(std::pair(world.graph.receivers.values<int32_t>()[e], world.graph.senders.values<int32_t>()[e]) ==
            wanted[e]);
  CHECK(world.graph.receiver_offsets.values<int32_t>()[static_cast<size_t>(before)] == count);
  CHECK(world.graph.sender_offsets.values<int32_t>()[static_cast<size_t>(before)] == count);
  // Statistics are only of the real edges.
  CHECK(learned.world.count() == static_cast<double>(count));
  learned.world.normalize(std::span(rows));
  for (size_t i = 0; i < rows.size(); ++i)
    REQUIRE(world.features.values<double>()[i] == doctest::Approx(rows[i]).epsilon(1e-9));
}

TEST_CASE("a run with world edges trains, resumes and rolls out") {
  const Moving plate("plate");
  Config config = world_run(plate);
  test::train_here(config);
  const std::filesystem::path whole = std::filesystem::path(config.run.dir) / "checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 2}};
  const Predictor predictor(runtime, whole);
  CHECK(predictor.trained().normalizers.world.count() > 0);
  const MeshTask& task = predictor.mesh_dynamics();
  const TrajectoryView view = predictor.dataset().trajectory("test", 0);
  std::vector<std::vector<float>> frames;
  roll_out(predictor.trained(), task, view, {}, [&](const RolloutFrame& f) { frames.push_back(f.ours); });
  const int64_t t = view.frames() - 2;
  FieldState state = task.state_at(view, t);
  state.current = frames[static_cast<size_t>(t - 1)];
  const std::vector<float> next = predict_next(predictor.trained(), task, view, t, state);
  for (size_t i = 0; i < next.size(); ++i)
    if (view.mesh().node_type[i / 4] == 0) REQUIRE(next[i] == frames[static_cast<size_t>(t)][i]);
  const Batch batch =
      task.prediction_batch(runtime, DType::f32, view, t, state, predictor.trained().normalizers);
  std::vector<float> at;
  for (size_t i = 0; i < state.current.size(); ++i)
    if (i % 4 < 3) at.push_back(state.current[i]);
  const Pairs wanted = plain_pairs(view.mesh(), at, 3, task.world.options());
  const Graph& graph = batch.graph.edge_sets[1].graph;
  CHECK(!wanted.empty());
  REQUIRE(graph.edge_rows().value() == static_cast<int64_t>(wanted.size()));
  for (size_t e = 0; e < wanted.size(); ++e)
    REQUIRE(std::pair(graph.receivers.values<int32_t>()[e], graph.senders.values<int32_t>()[e]) == wanted[e]);

  Config part = config;
  part.run.dir = (plate.scratch.path / "part").string();
  int calls = 0;
  test::train_here(part, false, [&] { return ++calls > 7; });
  test::train_here(part, true);
  CHECK(test::tensors_of(part) == test::tensors_of(config));
}

TEST_CASE("validation has as much room as its frames need") {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  Config config = world_run(plate);
  const Task task = make_task(config, dataset);
  Runtime runtime{RuntimeOptions{.threads = 1}};
  Normalizers normalizers = task.dataset_normalizers({});
  const std::vector<Sample> samples{{0, 6, 0}};
  const auto edges_of = [&](const Task& of) {
    return training_batch(of, runtime, DType::f16, "valid", samples, {}, normalizers)
        .graph.edge_sets[1]
        .graph;
  };
  const Graph roomy = edges_of(task), exact = edges_of(task.for_validation());
  CHECK(exact.edge_rows().value() == roomy.edge_rows().value());
  CHECK(exact.edges == exact.edge_rows().value() + 1);
  CHECK(roomy.edges > exact.edges);
  config.data.world_edges_per_node = 0.01;
  CHECK(edges_of(make_task(config, dataset).for_validation()).edge_rows().value() ==
        exact.edge_rows().value());
  const std::string error = message_of([&] { edges_of(make_task(config, dataset)); });
  CHECK(contains(error, "[data.world_edges_per_node] needed "));

  config = world_run(plate);
  config.precision = DType::f16;
  test::train_here(config);
  for (const double loss : test::losses_of(config.run.dir)) CHECK(std::isfinite(loss));
  config.data.world_radius = 1e9;
  config.run.dir += "_far";
  CHECK(contains(message_of([&] { test::train_here(config); }), "[data.world_edges_per_node] needed "));
}

TEST_CASE("world edges are refused where they cannot be") {
  const std::string data = "[data]\nworld_radius = 0.1\n";
  const auto refusal = [](const std::string& text) { return message_of([&] { parse_config(text, "c"); }); };
  CHECK(refusal(data).empty());  // of meshes that do not move, too
  const std::string moving = data + "world_position = \"x\"\n";
  CHECK(contains(refusal(moving + "period = [0.0, 0.2]\n"), "needed less than half of each period"));
  parse_config(moving + "period = [0.21, 0.0]\n", "c");
  parse_config(moving, "c");
}

TEST_CASE("memory of world edges is planned by their room") {
  const Moving plate("plate");
  Config config = world_run(plate);
  const Dataset dataset = plate.dataset();
  const StepProbe probe(dataset, Device{});
  const int64_t some = probe.predict(config, StepProbe::Batches::largest).live;
  CHECK(some == measured_memory(probe, config).live);
  config.data.world_edges_per_node = 24;
  CHECK(probe.predict(config, StepProbe::Batches::largest).live > some);

  config.data.world_edges_per_node = 0.01;
  const ConfigSummary summary = check_config(config, dataset);
  CHECK(std::ranges::any_of(summary.findings, [](const Finding& finding) {
    return finding.severity == Finding::Severity::error && finding.place == "data.world_edges_per_node";
  }));
  const std::string error = message_of([&] { test::train_here(config); });
  CHECK(contains(error, "[data.world_edges_per_node] needed "));
  CHECK(contains(error, "or more, for frame "));
}

}  // namespace
}  // namespace meshgrad::world_edges_test
