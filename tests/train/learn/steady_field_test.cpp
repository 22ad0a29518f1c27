// SPDX-License-Identifier: Apache-2.0
// The task SteadyField: fields of a mesh without time, from the packed file to evaluate and predict.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/nearest_case.h>

#include <cmath>

#include "support.h"
#include "train/process.h"
#include "train/steady_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::kSide;
using test::message_of;
using test::steady_config;

TEST_CASE("a batch has each mesh's fields, noise only in inputs") {
  const test::ScratchDirectory scratch;
  Config config = steady_config(scratch.path);
  config.data.inputs = {"g", "load"};
  const Task task = make_task(config, Dataset::open(config.data.path));
  REQUIRE(!task.mesh().fields.over_time);
  CHECK(task.mesh().sample_frames(1).size() == 1);
  CHECK(task.loss_weight("train", {{0, 0, 0}, {1, 0, 0}}) == 2 * 9);
  Runtime runtime({.device = {}, .threads = 1});
  Normalizers plain{Normalizer::fixed(std::vector<double>(11, 0.0), std::vector<double>(11, 1.0)),
                    Normalizer::fixed({0, 0, 0}, {1, 1, 1}), Normalizer::fixed({0}, {1})};
  const std::vector<Sample> samples{{1, 0, 0}};
  const Batch batch = training_batch(task, runtime, DType::f64, "train", samples, {}, plain);
  const Batch noisy = training_batch(task, runtime, DType::f64, "train", samples,
                                     {.deviation = 0.5, .gamma = 1.0, .seed = 1}, plain);
  const TrajectoryView mesh = task.dataset().trajectory("train", 1);
  for (size_t node = 0; node < kSide * kSide; ++node) {
    const auto u = static_cast<double>(mesh.field("u").frame(0)[node]);
    CHECK(batch.tensor("target").values<double>()[node] == u);
    CHECK(noisy.tensor("target").values<double>()[node] == u);
    CHECK(batch.graph.node_features.values<double>()[node * 11] ==
          static_cast<double>(mesh.field("g").frame(0)[node]));
    const bool inside = mesh.mesh().node_type[node] == 0;
    CHECK((noisy.graph.node_features.values<double>()[node * 11] !=
           batch.graph.node_features.values<double>()[node * 11]) == inside);
    // The condition of the mesh has no noise, or its nodes would disagree about it.
    CHECK(noisy.graph.node_features.values<double>()[node * 11 + 1] == 0.5);
    CHECK(batch.tensor("mask").values<uint8_t>()[node] == (inside ? 1 : 0));
  }
}

TEST_CASE("a component that never varies is scaled as its field") {
  const test::ScratchDirectory scratch;
  const fs::path path = scratch.path / "beam.mgd";
  PackedFileWriter writer(path, 2, {{"g", 1, true, ""}, {"u", 2, true, "m"}});
  const std::vector<float> positions{0, 0, 1, 0, 0, 1}, g{1, 2, 3}, u{0, 1e-4F, 0, 2e-4F, 0, 4e-4F};
  const std::vector<int32_t> types{0, 0, 0}, cells{0, 1, 2};
  const PackedMesh packed{2, CellKind::triangle, positions, types, cells};
  const int64_t mesh = writer.add_mesh(PackedFileWriter::mesh_key(packed, {}), packed,
                                       edges_from_cells(cells, CellKind::triangle, 3, "beam"));
  writer.add_trajectory({"beam", "train", mesh, 1, 0, 0.0, {g, u}});
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(2)};
  statistics.fields[0].add(g, types, 1);
  statistics.fields[1].add(u, types, 1);
  statistics.edges.assign(3, Moments{6, 0.0, 1.0});
  statistics.node_type_counts = {3, 0, 0, 0, 0, 0, 0, 0, 0};
  writer.finish({"train"}, statistics, "train", "beam");
  Config config = steady_config(scratch.path);
  config.data.path = path.string();
  const Normalizer targets = make_task(config, Dataset::open(path)).dataset_normalizers({}).targets;
  CHECK(targets.standard_deviation(1) == doctest::Approx(1e-4 * std::sqrt(14.0 / 9.0)));
  CHECK(targets.standard_deviation(0) == targets.standard_deviation(1));
}

TEST_CASE("the nearest training case is alike in what is read") {
  const test::ScratchDirectory scratch;
  Config config = steady_config(scratch.path);
  config.data.inputs = {"load"};  // the phase of a square: 0, 0.5, ... in training, 0.3 and 1.2 to test
  const Task task = make_task(config, Dataset::open(config.data.path));
  const NearestCase nearest(task.mesh());
  const auto solution = [&](const std::string& split, int64_t i) {
    return task.mesh().fields.target_values(task.dataset().trajectory(split, i), 0);
  };
  // Squares are 0.01 times their phase apart, so that each node's nearest is the same one.
  CHECK(nearest.values(task.dataset().trajectory("test", 0), 0) == solution("train", 1));
  CHECK(nearest.values(task.dataset().trajectory("test", 1), 0) == solution("train", 2));
  // A case is not its own nearest.
  CHECK(nearest.values(task.dataset().trajectory("train", 0), 0) == solution("train", 1));
  TargetErrors errors(task.mesh());
  const std::vector<float> truth = solution("test", 0), case_there = solution("train", 1);
  const std::vector<uint8_t> mask =
      task.mesh().fields.predicted_mask(task.dataset().trajectory("test", 0).mesh());
  errors.nodes.add(truth, truth, mask, truth, case_there);
  double squares = 0.0, count = 0.0;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (mask[i] == 0) continue;
    squares += std::pow(static_cast<double>(case_there[i]) - static_cast<double>(truth[i]), 2);
    count += 1.0;
  }
  CHECK(errors.fields()[0].nearest_rmse == doctest::Approx(std::sqrt(squares / count)));
}

TEST_CASE("a run learns a steady field and resumes") {
  const test::ScratchDirectory scratch;
  Config config = steady_config(scratch.path);
  test::train_here(config);
  const std::string straight = test::checkpoint_bytes(config.run.dir, "last");
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, find_checkpoint(config.run.dir, "last"));
  const Evaluation result = evaluate(predictor, {.split = "test"});
  REQUIRE(result.fields.size() == 1);
  CHECK_FALSE(result.dynamics.has_value());
  const FieldError& u = result.fields.front();
  CHECK(u.name == "u");
  CHECK(u.unit == "K");
  CHECK(u.relative_l2 < 0.3);

  // The same figures by hand.
  double mean = 0.0, values = 0.0;
  for (int64_t i = 0; i < predictor.dataset().size("train"); ++i) {
    const TrajectoryView mesh = predictor.dataset().trajectory("train", i);
    for (size_t node = 0; node < mesh.mesh().node_type.size(); ++node) {
      if (mesh.mesh().node_type[node] != 0) continue;
      mean += static_cast<double>(mesh.field("u").frame(0)[node]);
      values += 1.0;
    }
  }
  mean /= values;
  double squares = 0.0, absolute = 0.0, truth_squares = 0.0, missed = 0.0, count = 0.0;
  for (int64_t i = 0; i < 2; ++i) {
    const TrajectoryView mesh = predictor.dataset().trajectory("test", i);
    const std::vector<float> ours = predict_steady(predictor, mesh, 0);
    for (size_t node = 0; node < ours.size(); ++node) {
      const double truth = static_cast<double>(mesh.field("u").frame(0)[node]);
      const double error = static_cast<double>(ours[node]) - truth;
      if (mesh.mesh().node_type[node] != 0) {
        CHECK(error == 0.0);  // boundary values are the data's
        continue;
      }
      squares += error * error;
      absolute += std::abs(error);
      truth_squares += truth * truth;
      missed += (mean - truth) * (mean - truth);
      count += 1.0;
    }
  }
  CHECK(u.rmse == doctest::Approx(std::sqrt(squares / count)));
  CHECK(u.mae == doctest::Approx(absolute / count));
  CHECK(u.baseline_rmse == doctest::Approx(std::sqrt(missed / count)));
  const TrajectoryView mesh = predictor.dataset().trajectory("test", 0);
  CHECK_THROWS_WITH_AS(roll_out(predictor, mesh, {}, {}), doctest::Contains("needed \"mesh_dynamics\""),
                       ConfigError);
  CHECK_THROWS_AS(state_at(predictor, mesh, 0), ConfigError);
  CHECK(u.relative_l2 == doctest::Approx(std::sqrt(squares / truth_squares)));

  fs::remove_all(config.run.dir);
  int64_t batches = 0;
  test::train_here(config, false, [&] { return ++batches == 40; });
  test::train_here(config, true);
  CHECK(test::checkpoint_bytes(config.run.dir, "last") == straight);
}

TEST_CASE("evaluate prints JSON, and predict writes VTU") {
  const test::ScratchDirectory scratch;
  Config config = steady_config(scratch.path);
  config.train.steps = 5;
  test::train_here(config);
  const auto json =
      nlohmann::json::parse(test::run_meshgrad({"evaluate", config.run.dir, "--json", "--quiet"}).out);
  CHECK(json["fields"]["u"]["unit"] == "K");
  for (const char* key : {"rmse", "mae", "relative_l2"}) CHECK(json["fields"]["u"][key].get<double>() > 0.0);
  CHECK(json["baseline"] == "the mean over the nodes of a type in split train of these data");
  const test::Outcome predicted = test::run_meshgrad({"predict", config.run.dir, "--quiet"});
  CHECK(predicted.code == 0);
  CHECK_MESSAGE(contains(predicted.out, "2 VTU files in "), predicted.out);
  const std::string vtu = test::read_text(fs::path(config.run.dir) / "predictions_test/mesh_00001_test.vtu");
  for (const char* name : {"\"u\"", "\"u_truth\"", "\"u_error\"", "\"node_type\""})
    CHECK(contains(vtu, name));
  CHECK(fs::exists(fs::path(config.run.dir) / "predictions_test/u_mesh_00000_test.svg"));
  CHECK(test::run_meshgrad({"predict", config.run.dir, "--meshes", "1", "--quiet"}).code == 0);
  CHECK_FALSE(fs::exists(fs::path(config.run.dir) / "predictions_test/mesh_00001_test.vtu"));
  CHECK_FALSE(fs::exists(fs::path(config.run.dir) / "predictions_test/u_mesh_00001_test.svg"));
  const test::Outcome rolled = test::run_meshgrad({"rollout", config.run.dir, "--quiet"});
  CHECK(rolled.code == 2);
  CHECK(contains(rolled.err, "fix: use meshgrad predict"));
}

TEST_CASE("what does not fit the task is refused by its key") {
  const test::ScratchDirectory scratch;
  Config config = steady_config(scratch.path);
  config.data.inputs = {"g", "u"};
  CHECK(contains(message_of([&] { make_task(config, Dataset::open(config.data.path)); }),
                 "[data.inputs] needed fields that are not targets"));
  CHECK(contains(message_of([] {
                   parse_config("[task]\nname = \"steady_field\"\n[unroll]\nsteps = 2\n", "config.toml");
                 }),
                 "[unroll.steps] needed 1 with task.name = \"steady_field\""));
  CHECK(
      contains(message_of([] {
                 parse_config("[task]\nname = \"steady_field\"\n[data]\nkinematic_types = [1]\n", "c");
               }),
               "c:4: [data.kinematic_types] needed [] with task.name = \"steady_field\", which has no time, "
               "got [1]; fix: set data.kinematic_types = [], or another task.name"));
  CHECK(parse_config("[task]\nname = \"steady_field\"\n", "c").train.noise == 0.0);
  CHECK(parse_config("[task]\nname = \"steady_field\"\n[train]\nnoise = 0.1\n", "c").train.noise == 0.1);
  CHECK(parse_config("", "c").train.noise > 0.0);
}

}  // namespace
}  // namespace meshgrad
