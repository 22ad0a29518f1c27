// SPDX-License-Identifier: Apache-2.0
// Meshes that move: edge features of current positions beside those at rest, in batches, rollouts and files.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/train.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/program/memory_plan.h>
#include <meshgrad/train/tools/program/rollout_files.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "train/mesh_arrays.h"
#include "train/moving_data.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::moving_mesh_test {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::Moving;

DataConfig moving_config(Prediction predict) {
  DataConfig config;
  config.inputs = {};
  config.targets = {"world_pos"};
  config.world_position = "world_pos";
  config.predict = predict;
  config.predicted_types = {0};
  return config;
}

Normalizers no_change(const MeshTask& task) {
  const auto plain = [](int64_t width) {
    const auto n = static_cast<size_t>(width);
    return Normalizer::fixed(std::vector<double>(n, 0.0), std::vector<double>(n, 1.0));
  };
  return {plain(task.sizes.node_inputs), plain(task.sizes.edge_inputs.front()), plain(task.sizes.outputs)};
}

/// Displacement and length of the edge sender -> receiver, [dim + 1].
std::vector<double> displacement(std::span<const double> positions, int dim, int32_t sender,
                                 int32_t receiver) {
  std::vector<double> row;
  double squares = 0;
  for (int axis = 0; axis < dim; ++axis) {
    row.push_back(positions[static_cast<size_t>(sender * dim + axis)] -
                  positions[static_cast<size_t>(receiver * dim + axis)]);
    squares += row.back() * row.back();
  }
  row.push_back(std::sqrt(squares));
  return row;
}

/// The rows of a trajectory's edges by a plain loop, from its mesh and these current positions.
std::vector<double> plain_edges(const MeshView& mesh, std::span<const double> world, int world_dim) {
  std::vector<double> rows;
  const std::vector<double> rest(mesh.positions.begin(), mesh.positions.end());
  for (int32_t receiver = 0; receiver < mesh.nodes; ++receiver) {
    for (int32_t sender = 0; sender < mesh.nodes; ++sender) {
      bool joined = false;
      for (size_t e = 0; e < mesh.senders.size(); ++e)
        joined = joined || (mesh.senders[e] == sender && mesh.receivers[e] == receiver);
      if (!joined) continue;
      for (const auto& part :
           {displacement(world, world_dim, sender, receiver), displacement(rest, mesh.dim, sender, receiver)})
        rows.insert(rows.end(), part.begin(), part.end());
    }
  }
  return rows;
}

bool close(std::span<const double> got, const std::vector<double>& wanted) {
  return std::equal(got.begin(), got.end(), wanted.begin(), wanted.end(),
                    [](double a, double b) { return std::abs(a - b) <= 1e-12 * (1 + std::abs(b)); });
}

/// A short run on the data of `kind`.
Config moving_run(const Moving& data, Prediction predict) {
  Config config = test::small_config(data.scratch.path, data.file);
  config.data = moving_config(predict);
  config.data.path = data.file.string();
  if (predict == Prediction::second_change) config.data.inputs = {"world_pos"};
  config.train.noise = 1e-3;
  config.train.steps = 12;
  config.train.accumulate = 1;
  config.train.checkpoint_every = 6;
  return config;
}

TEST_CASE("edges read current positions with their noise") {
  const Moving flag("flag");
  const Dataset dataset = flag.dataset();
  constexpr double kNoise = 0.01, kGamma = 0.1;
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const bool second = predict == Prediction::second_change;
    const MeshDynamics task(dataset, moving_config(predict));
    CHECK(task.mesh().fields.node_inputs == 9);
    REQUIRE(task.mesh().sizes.edge_inputs.front() == 4 + 3);
    Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};
    Normalizers none = no_change(task.mesh());
    const std::vector<Sample> samples{{0, 3, 0}, {1, 2, 5}};
    const Batch batch = training_batch(Task(task), runtime, DType::f64, "train", samples,
                                       {.deviation = kNoise, .gamma = kGamma, .seed = 9, .fields = {}}, none);
    std::vector<double> edges, targets;
    for (const Sample& sample : samples) {
      const TrajectoryView view = dataset.trajectory("train", sample.trajectory);
      const FieldView field = view.field("world_pos");
      const auto now = field.frame(sample.frame), next = field.frame(sample.frame + 1),
                 before = field.frame(sample.frame - 1);
      std::vector<double> noisy(now.begin(), now.end());
      for (size_t i = 0; i < noisy.size(); ++i) {
        const bool moved = view.mesh().node_type[i / 3] == 0;
        const double draw = training_noise(9, sample.visit, view.sample_id(sample.frame),
                                           static_cast<uint32_t>(i / 3), static_cast<uint32_t>(i % 3));
        const auto noise = static_cast<double>(static_cast<float>(moved ? kNoise * draw : 0.0));
        noisy[i] = static_cast<double>(static_cast<float>(noisy[i] + noise));
        const double goal = static_cast<double>(next[i]) + (1 - kGamma) * noise;
        targets.push_back(second ? goal - 2 * noisy[i] + static_cast<double>(before[i]) : goal - noisy[i]);
      }
      const std::vector<double> rows = plain_edges(view.mesh(), noisy, 3);
      edges.insert(edges.end(), rows.begin(), rows.end());
    }
    CHECK(close(batch.graph.edge_sets[0].features.values<double>(), edges));
    CHECK(close(batch.tensor("target").values<double>(), targets));
  }
}

TEST_CASE("a static field of positions comes from the data") {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  DataConfig config = moving_config(Prediction::change);
  config.targets = {"stress"};
  const MeshDynamics task(dataset, config);
  const TrajectoryView view = dataset.trajectory("train", 0);
  Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};
  const Batch batch = task.mesh().prediction_batch(runtime, DType::f64, view, 4,
                                                   task.mesh().state_at(view, 4), no_change(task.mesh()));
  const auto frame = view.field("world_pos").frame(4);
  CHECK(close(batch.graph.edge_sets[0].features.values<double>(),
              plain_edges(view.mesh(), std::vector<double>(frame.begin(), frame.end()), 3)));
  CHECK(task.mesh().fields.given_inputs() == std::vector<std::string>{"world_pos"});
}

TEST_CASE("statistics of current positions cover a small data set") {
  const Moving flag("flag");
  const Dataset dataset = flag.dataset();
  const MeshDynamics task(dataset, moving_config(Prediction::change));
  const Normalizers normalizers = task.mesh().dataset_normalizers({});
  REQUIRE(normalizers.edges.width() == 7);
  std::vector<Moments> moments(7);
  for (int64_t i = 0; i < 2; ++i) {
    const TrajectoryView view = dataset.trajectory("train", i);
    for (int64_t t = 0; t < view.frames(); ++t) {
      const auto frame = view.field("world_pos").frame(t);
      const std::vector<double> rows =
          plain_edges(view.mesh(), std::vector<double>(frame.begin(), frame.end()), 3);
      for (size_t at = 0; at < rows.size(); ++at) moments[at % 7].add(rows[at]);
    }
  }
  for (size_t column = 0; column < 7; ++column) {
    CAPTURE(column);
    CHECK(normalizers.edges.mean(column) == doctest::Approx(moments[column].mean).epsilon(1e-6));
    CHECK(normalizers.edges.standard_deviation(column) ==
          doctest::Approx(moments[column].standard_deviation()).epsilon(1e-6));
  }
}

TEST_CASE("kinematic nodes read their next change") {
  const Moving plate("plate");
  const Dataset dataset = plate.dataset();
  DataConfig data = moving_config(Prediction::change);
  data.kinematic_types = {1};
  const MeshDynamics task(dataset, data);
  REQUIRE(task.mesh().fields.node_inputs == 3 + 9);
  const TrajectoryView view = dataset.trajectory("train", 1);
  const FieldView field = view.field("world_pos");
  Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};
  const auto inputs_at = [&](int64_t t) {
    const Batch batch = task.mesh().prediction_batch(runtime, DType::f64, view, t,
                                                     task.mesh().state_at(view, t), no_change(task.mesh()));
    const auto values = batch.graph.node_features.values<double>();
    return std::vector<double>(values.begin(), values.end());
  };
  const std::vector<double> rows = inputs_at(2), last = inputs_at(view.frames() - 1);
  double moved = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 12 > 2) continue;
    const size_t at = i / 12 * 3 + i % 12;
    const double change = static_cast<double>(field.frame(3)[at]) - static_cast<double>(field.frame(2)[at]);
    CHECK(rows[i] == (view.mesh().node_type[i / 12] == 1 ? change : 0.0));
    CHECK(last[i] == 0.0);
    moved += std::abs(rows[i]);
  }
  CHECK(moved > 0);
  // Normalised by the root of the mean square over these nodes of the training split; 0 stays 0.
  std::array<double, 3> squares{};
  double count = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const TrajectoryView one = dataset.trajectory("train", i);
    for (int64_t t = 0; t + 1 < one.frames(); ++t) {
      const auto now = one.field("world_pos").frame(t), next = one.field("world_pos").frame(t + 1);
      for (size_t at = 0; at < now.size(); ++at) {
        const double change = static_cast<double>(next[at]) - static_cast<double>(now[at]);
        if (one.mesh().node_type[at / 3] == 1) squares[at % 3] += change * change;
        if (one.mesh().node_type[at / 3] == 1 && at % 3 == 0) count += 1;
      }
    }
  }
  const Normalizers normalizers = task.mesh().dataset_normalizers({});
  CHECK(normalizers.nodes.mean(2) == 0.0);
  CHECK(normalizers.nodes.standard_deviation(2) ==
        doctest::Approx(std::sqrt(squares[2] / count)).epsilon(1e-5));

  // Kinematic nodes follow the data in any rollout; those of other types that are not predicted stay.
  Config config = moving_run(plate, Prediction::change);
  config.data.kinematic_types = {1};
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  const Predictor predictor(runtime, checkpoint);
  const TrajectoryView test = predictor.dataset().trajectory("test", 0);
  for (const RolloutBoundary boundary : {RolloutBoundary::data, RolloutBoundary::initial}) {
    roll_out(predictor.trained(), predictor.mesh_dynamics(), test, {.boundary = boundary},
             [&](const RolloutFrame& frame) {
               for (size_t i = 0; i < frame.ours.size(); ++i)
                 if (test.mesh().node_type[i / 3] == 1) REQUIRE(frame.ours[i] == frame.truth[i]);
             });
  }
  CHECK(contains(message_of([] { parse_config("[data]\nkinematic_types = [0]\n", "c"); }),
                 "[data.kinematic_types] needed types that are not predicted, got 0"));
}

TEST_CASE("MeshPredictor takes positions of kinematic nodes") {
  const Moving plate("plate");
  Config config = moving_run(plate, Prediction::change);
  config.data.kinematic_types = {1};
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 2}};
  const Predictor predictor(runtime, checkpoint);
  const TrajectoryView test = predictor.dataset().trajectory("test", 0);
  MeshPredictor in_memory(runtime, checkpoint);
  in_memory.set_mesh(test::arrays_of(test.mesh()));
  const auto positions_at = [&](int64_t t) { return test.field("world_pos").frame(t); };
  in_memory.set_field("world_pos", positions_at(0));
  CHECK(contains(message_of([&] { in_memory.predict(); }), "one step after (set_next_field), got none"));
  CHECK(contains(message_of([&] { in_memory.set_next_field("stress", positions_at(0)); }),
                 "needed data.world"));
  in_memory.record_steps(true);  // changes no bit
  roll_out(predictor.trained(), predictor.mesh_dynamics(), test,
           {.steps = 3, .boundary = RolloutBoundary::initial}, [&](const RolloutFrame& frame) {
             in_memory.set_next_field("world_pos", positions_at(frame.t));
             CHECK(contains(message_of([&] { in_memory.predict(2); }), "needed 1 with data.kinematic_types"));
             in_memory.predict();
             std::vector<float> values(frame.ours.size());
             in_memory.get_field("world_pos", values);
             CHECK(values == frame.ours);
           });
}

TEST_CASE("a rollout takes only kinematic positions from the data") {
  const Moving plate("plate");
  Config config = moving_run(plate, Prediction::change);
  config.data.kinematic_types = {1};
  config.data.targets = {"world_pos", "stress"};
  test::train_here(config);
  Runtime runtime{RuntimeOptions{.threads = 2}};
  const Predictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  const TrajectoryView test = predictor.dataset().trajectory("test", 0);
  roll_out(predictor.trained(), predictor.mesh_dynamics(), test, {.boundary = RolloutBoundary::initial},
           [&](const RolloutFrame& frame) {
             for (size_t i = 0; i < frame.ours.size(); ++i) {
               if (test.mesh().node_type[i / 4] != 1) continue;
               const bool position = i % 4 < 3;
               REQUIRE(frame.ours[i] == (position ? frame.truth[i] : test.field("stress").frame(0)[i / 4]));
             }
           });
}

TEST_CASE("a rollout moves the mesh") {
  for (const Prediction predict : {Prediction::second_change, Prediction::change}) {
    const Moving data(predict == Prediction::change ? "plate" : "flag");
    const Config config = moving_run(data, predict);
    test::train_here(config);
    Runtime runtime{RuntimeOptions{.threads = 2}};
    const Predictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
    CHECK(std::isfinite(predictor.task()
                            .evaluate(predictor.trained(), {.split = "test"})
                            .dynamics->rollouts.back()
                            .fields[0]
                            .rmse));

    const MeshTask& task = predictor.mesh_dynamics();
    const TrajectoryView view = predictor.dataset().trajectory("test", 0);
    std::vector<std::vector<float>> frames;
    roll_out(predictor.trained(), task, view, {}, [&](const RolloutFrame& f) { frames.push_back(f.ours); });
    // The second step of the rollout is a prediction from the first step's state.
    const int64_t first = task.sample_frames(view.frames()).first;
    FieldState state = task.state_at(view, first);
    if (!state.previous.empty()) state.previous = state.current;
    state.current = frames[0];
    const std::vector<float> second = predict_next(predictor.trained(), task, view, first + 1, state);
    for (size_t i = 0; i < second.size(); ++i)
      if (view.mesh().node_type[i / 3] == 0) REQUIRE(second[i] == frames[1][i]);

    RolloutFilesOptions options;
    options.directory = data.scratch.path / "rollout";
    options.split = "test";
    write_rollout(predictor, options);
    const std::string text = test::read_text(options.directory / "frame_00002.vtu");
    const VtkGrid grid = parse_vtk_xml(std::as_bytes(std::span(text)), "frame_00002.vtu");
    const auto& points = std::get<std::vector<float>>(grid.points.values);
    CHECK(points == frames[1]);
  }
}

TEST_CASE("a target of data.value_targets is its next value") {
  const Moving data("plate");
  const Dataset dataset = data.dataset();
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const bool second = predict == Prediction::second_change;
    CAPTURE(second);
    DataConfig config = moving_config(predict);
    config.inputs = {"stress"};
    config.targets = {"world_pos", "stress"};
    config.value_targets = {"stress"};
    const MeshDynamics task(dataset, config);
    CHECK(task.mesh().fields.node_inputs == 1 + 9);
    NoiseOptions noise{.deviation = 1e-3, .gamma = 0.1, .seed = 1};
    const Normalizers normalizers = task.mesh().dataset_normalizers(noise);
    const FieldStatistics stats = task.mesh().predicted_stats("stress", Quantity::value);
    CHECK(normalizers.targets.mean(3) == stats.mean[0]);
    CHECK(normalizers.targets.standard_deviation(3) == stats.std[0]);
    CHECK(normalizers.nodes.mean(0) ==
          dataset.field_stats("stress", NodeTypeSet::all(), Quantity::value).mean[0]);

    Runtime runtime{RuntimeOptions{.threads = 1}};
    Normalizers plain = no_change(task.mesh());
    const TrajectoryView view = dataset.trajectory("train", 0);
    const Batch batch =
        training_batch(Task(task), runtime, DType::f64, "train", {{0, 2, 0}}, noise, plain, false);
    const std::span<const double> target = batch.tensor("target").values<double>();
    const std::span<const double> inputs = batch.graph.node_features.values<double>();
    FieldState state = task.mesh().state_at(view, 2);
    const std::span<const float> stress = view.field("stress").frame(3), now = view.field("stress").frame(2);
    SampleScratch scratch;
    task.mesh().advance(view.mesh(), batch.tensor("target"), plain, scratch, state);
    const std::vector<float>& next = state.current;
    for (size_t i = 0; i < stress.size(); ++i) {
      CHECK(target[4 * i + 3] == static_cast<double>(stress[i]));
      // Its value is given, also where second changes are predicted.
      CHECK(std::abs(inputs[10 * i] - static_cast<double>(now[i])) <
            (view.mesh().node_type[i] == 0 ? 5e-3 : 1e-12));
      CHECK(next[4 * i + 3] == (view.mesh().node_type[i] == 0 ? stress[i] : now[i]));
    }
  }
}

TEST_CASE("a plate trains with its stress as a value") {
  const Moving data("plate");
  Config config = moving_run(data, Prediction::change);
  config.data.targets = {"world_pos", "stress"};
  config.data.value_targets = {"stress"};
  test::train_here(config);
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const Predictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  const std::vector<FieldError> errors =
      predictor.task().evaluate(predictor.trained(), {.split = "test"}).fields;
  CHECK(std::isfinite(errors.at(1).rmse));

  Config halves = config;
  halves.run.dir = (data.scratch.path / "halves").string();
  int polls = 0;
  test::train_here(halves, false, [&] { return ++polls > 6; });
  CHECK(test::tensors_of(halves) != test::tensors_of(config));
  test::train_here(halves, true);
  CHECK(test::tensors_of(halves) == test::tensors_of(config));
  halves.data.value_targets = {};
  CHECK(contains(message_of([&] { test::train_here(halves, true); }), "data.value_targets"));
}

TEST_CASE("MeshPredictor steps a moving mesh as a rollout does") {
  const Moving data("plate");
  const Config config = moving_run(data, Prediction::change);
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 2}};
  const Predictor packed(runtime, checkpoint);
  const TrajectoryView view = packed.dataset().trajectory("test", 0);
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_mesh(test::arrays_of(view.mesh()));
  predictor.set_field("world_pos", view.field("world_pos").frame(0));
  predictor.record_steps(true);
  roll_out(packed.trained(), packed.mesh_dynamics(), view, {.steps = 4, .boundary = RolloutBoundary::initial},
           [&](const RolloutFrame& frame) {
             predictor.predict();
             std::vector<float> values(frame.ours.size());
             predictor.get_field("world_pos", values, 0);
             CHECK(values == frame.ours);
           });
  CHECK(predictor.recorded_steps() == 4);
}

TEST_CASE("given positions are an input of MeshPredictor and plan") {
  const Moving data("plate");
  Config config = moving_run(data, Prediction::change);
  config.data.targets = {"stress"};
  test::train_here(config);
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const MeshPredictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  REQUIRE(predictor.inputs().size() == 1);
  CHECK(predictor.inputs().front().name == "world_pos");
  const PlannedMesh mesh{.nodes = 50, .edges = 300, .dim = 3, .fields = {{"stress", 1}}};
  const MemoryPlan plan = plan_memory(config, {.device_memory = int64_t{1} << 30, .mesh = mesh});
  CHECK(contains(plan.notes.front(), "stress [1], world_pos [3]"));

  config.train.noise = 0.0;
  config.train.field_noise = {{"world_pos", 0.1}};
  const std::vector<Contradiction> found = contradictions(config);
  REQUIRE(found.size() == 1);
  CHECK(contains(found.front().needed, "fields among data.targets = [stress], as other fields get no noise"));
}

TEST_CASE("configurations that do not fit a moving mesh are refused") {
  const Moving data("plate");
  const Dataset dataset = data.dataset();
  DataConfig config = moving_config(Prediction::change);
  config.world_position = "stress";
  CHECK(contains(message_of([&] { MeshTask(dataset, config, true); }),
                 "[data.world_position] needed a field of 2 or 3 components: a position, got stress of 1"));
  config.world_position = "world_pos";
  CHECK(contains(message_of([&] { SteadyField(dataset, config); }),
                 "[data.world_position] needed a field that is no target"));
  const std::string data_keys =
      "[data]\ninputs = []\ntargets = [\"world_pos\"]\nworld_position = \"world_pos\"\n";
  CHECK_NOTHROW(parse_config(data_keys, "c"));
  CHECK_NOTHROW(parse_config(data_keys + "[train]\nnoise = {world_pos = 1e-3}\n", "c"));
  CHECK(contains(message_of([&] { parse_config(data_keys + "[unroll]\nsteps = 2\n", "c"); }),
                 "[unroll.steps] needed 1 with data.world_position"));
  const auto refused = [](const std::string& text) {
    return message_of([&] { parse_config("[data]\nvalue_targets = [\"velocity\"]\n" + text, "c"); });
  };
  CHECK(contains(refused("targets = [\"pressure\"]\n"),
                 "[data.value_targets] needed fields among data.targets = [pressure], got \"velocity\""));
  CHECK(contains(refused("[task]\nname = \"steady_field\"\n"),
                 "[data.value_targets] needed [] with task.name"));
  CHECK(contains(refused("[unroll]\nsteps = 2\n"), "[data.value_targets] needed [] with unroll.steps"));
  CHECK(contains(refused("[loss]\nchange_penalty = 1\n"), "[data.value_targets] needed [] with loss.change"));
}

TEST_CASE("init: a mesh that moves is read by its edges") {
  const Moving flag("flag"), plate("plate");
  const Config cloth = first_config(flag.dataset(), {}).config;
  CHECK(cloth.data.world_position == "world_pos");
  CHECK(cloth.data.predict == Prediction::second_change);
  CHECK(cloth.data.inputs == std::vector<std::string>{"world_pos"});
  CHECK(cloth.train.gamma == 0.1);
  CHECK(test::task_warnings(flag.dataset(), cloth, "train.noise").empty());
  const Config pressed = first_config(plate.dataset(), {}).config;
  CHECK(pressed.data.world_position == "world_pos");
  CHECK(pressed.data.predict == Prediction::change);
  CHECK(pressed.data.inputs.empty());
  CHECK(pressed.data.value_targets == std::vector<std::string>{"stress"});
  CHECK(test::task_warnings(plate.dataset(), pressed, "train.noise").empty());
  CHECK(pressed.data.kinematic_types == std::vector<int64_t>{1});
  CHECK(pressed.train.gamma == 1.0);
  CHECK(pressed.data.world_radius ==
        doctest::Approx(plate.dataset().edge_stats().mean[3]).epsilon(0.05).scale(0));
  CHECK(pressed.data.world_pairs == WorldPairs::other_type);
  CHECK(cloth.data.world_radius == 0.0);
  CHECK(cloth.data.kinematic_types.empty());
}

}  // namespace
}  // namespace meshgrad::moving_mesh_test
