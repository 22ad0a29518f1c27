// SPDX-License-Identifier: Apache-2.0
// Targets on graphs in the tasks on meshes, beside those on nodes or alone: batches and losses by hand, runs,
// and what is refused. On the CPU and, captured or not, on a GPU or the simulated device where the test is
// linked with it.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/mesh_parts.h>

#include <cmath>

#include "support.h"
#include "train/graph_target_case.h"
#include "train/process.h"

namespace meshgrad::graph_targets_test {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;
using test::target_config;

template <class T>
std::vector<T> values(const Tensor& tensor) {
  const std::span<T> all = tensor.values<T>();
  return {all.begin(), all.end()};
}

fs::path last_of(const Config& config) { return fs::path(config.run.dir) / "checkpoints/last.safetensors"; }

TEST_CASE("a batch of meshes has targets of graphs, by hand") {
  const ScratchDirectory scratch;
  const Config config = target_config(scratch.path, {.one_size = false});
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().outputs == 1);
  CHECK(task.sizes().graph_outputs == 2);
  CHECK(task.describe().outputs.back().name == "of the mesh: drag");
  CHECK(task.metrics().back().key == "relative_l2 of drag");
  Normalizers normalizers = task.dataset_normalizers({});
  CHECK(normalizers.graph_targets.width() == 2);
  const BatchLayout layout =
      task.layout({.nodes = 50, .edges = 300, .graphs = 3}, DType::f64, BatchLayout::Sizes::capacity);
  const Batch batch = layout.batch(host_tensor({layout.bytes()}, DType::u8).storage());
  SampleScratch rows;
  task.write(batch, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers, false, rows);
  CHECK(values<int32_t>(batch.graph.graph_starts) == std::vector<int32_t>{0, 16, 25, 25});
  CHECK(values<uint8_t>(batch.tensor("graph_mask")) == std::vector<uint8_t>{1, 1, 0});
  // As much as their predicted nodes: 4 x 4 and 3 x 3 without the first column.
  CHECK(values<double>(batch.tensor("graph_rows")) == std::vector<double>{12, 6, 0});
  CHECK(values<double>(batch.tensor("graph_columns")) == std::vector<double>{1, 1});
  const std::vector<double> targets = values<double>(batch.tensor("graph_target"));
  for (const int64_t mesh : {1, 0}) {
    const auto drag = task.dataset().trajectory("train", mesh).field("drag").frame(0);
    for (size_t c = 0; c < 2; ++c) {
      const double normalised = (static_cast<double>(drag[c]) - normalizers.graph_targets.mean(c)) /
                                normalizers.graph_targets.standard_deviation(c);
      CHECK(targets[2 * static_cast<size_t>(1 - mesh) + c] == doctest::Approx(normalised).epsilon(1e-12));
    }
  }
  CHECK(targets[4] == 0.0);
  Normalizers learned = task.online_normalizers();
  task.write(batch, "train", {{1, 0, 0}, {0, 0, 0}}, {}, learned, true, rows);
  CHECK(learned.graph_targets.count() == 2.0);
}

/// The loss of constant predictions of nodes and graphs, and its part of graphs by hand.
struct ByHand {
  double loss = 0.0, graphs = 0.0, nodes = 0.0;
};

ByHand loss_by_hand(const Config& config, const std::vector<Sample>& samples, double graph_value,
                    const std::function<double(double)>& cost) {
  Runtime runtime({.threads = 1});
  const Task task = make_task(config, Dataset::open(config.data.path));
  const Model model = make_model(runtime, config, task.sizes());
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch = training_batch(task, runtime, DType::f64, "train", samples, {}, normalizers);
  const auto constant = [&](const Shape& shape, double value) {
    const std::vector<double> all(static_cast<size_t>(shape.elements()), value);
    return Variable(Tensor::from<double>(runtime, all, shape, Tag::data), false);
  };
  const auto graphs = static_cast<int64_t>(samples.size());
  const auto loss = [&](double value) {
    const Model giving = model_giving(
        model, {constant({batch.graph.nodes, task.sizes().outputs}, 0.0), constant({graphs, 2}, value)});
    Tape tape(runtime, Tape::Mode::evaluate);
    return *task.loss(tape, giving, batch, {}).sum.value().data<double>();
  };
  ByHand found{.loss = loss(graph_value)};
  const Normalizer& scale = normalizers.graph_targets;
  for (const Sample& sample : samples) {
    const double weight = task.loss_weight("train", {sample}) / static_cast<double>(task.mesh().predictions);
    for (int64_t k = 0; k < task.mesh().predictions; ++k) {
      const int64_t t = sample.frame + k + (task.mesh().fields.over_time ? 1 : 0);
      const auto drag = task.dataset().trajectory("train", sample.trajectory).field("drag").frame(t);
      for (size_t c = 0; c < 2; ++c) {
        const double target = (static_cast<double>(drag[c]) - scale.mean(c)) / scale.standard_deviation(c);
        found.graphs += weight * cost(graph_value - target);
      }
    }
  }
  return found;
}

TEST_CASE("the loss of graphs is that of their nodes' weight, by hand") {
  const ScratchDirectory scratch;
  const std::vector<Sample> samples{{1, 0, 0}, {0, 0, 0}, {2, 0, 0}};
  for (const int64_t frames : {1, 6}) {
    for (const int64_t steps : {1, 3}) {
      if (frames == 1 && steps > 1) continue;
      Config config = target_config(scratch.path, {.frames = frames, .one_size = false});
      config.precision = DType::f64;
      config.unroll.steps = steps;
      CAPTURE(frames);
      CAPTURE(steps);
      const auto square = [](double e) { return e * e; };
      // The errors of nodes are the same whatever is predicted of graphs.
      const ByHand zero = loss_by_hand(config, samples, 0.0, square);
      const double nodes = zero.loss - zero.graphs;
      CHECK(nodes > 0.0);
      const ByHand one = loss_by_hand(config, samples, 1.5, square);
      CHECK(one.loss == doctest::Approx(nodes + one.graphs).epsilon(1e-9));
      config.loss.field_weights = {{"drag", 0.25}};
      const ByHand weighted = loss_by_hand(config, samples, 1.5, square);
      CHECK(weighted.loss == doctest::Approx(nodes + 0.25 * one.graphs).epsilon(1e-9));
      config.loss.field_weights = {{"u", 0.0}};
      config.loss.name = LossName::l1;
      const ByHand sizes = loss_by_hand(config, samples, 1.5, [](double e) { return std::abs(e); });
      CHECK(sizes.loss == doctest::Approx(sizes.graphs).epsilon(1e-9));
    }
  }
}

TEST_CASE("the loss of graphs alone is their mean, by hand") {
  const ScratchDirectory scratch;
  Config config = target_config(scratch.path, {.one_size = false, .alone = true});
  config.precision = DType::f64;
  const std::vector<Sample> samples{{1, 0, 0}, {0, 0, 0}, {2, 0, 0}};
  const ByHand squares = loss_by_hand(config, samples, 1.5, [](double e) { return e * e; });
  CHECK(squares.loss == doctest::Approx(squares.graphs).epsilon(1e-9));
  config.loss.name = LossName::l1;
  config.loss.field_weights = {{"drag", 0.25}};
  const ByHand sizes = loss_by_hand(config, samples, 1.5, [](double e) { return 0.25 * std::abs(e); });
  CHECK(sizes.loss == doctest::Approx(sizes.graphs).epsilon(1e-9));
}

TEST_CASE("a run learns fields and a number of each mesh") {
  const ScratchDirectory scratch;
  for (const int64_t frames : {1, 6}) {
    Config config = target_config(scratch.path, {.frames = frames});
    config.train.steps = frames == 1 ? 300 : 900;
    config.train.validate_every = 300;
    if (frames == 1) config.train.best = "rmse of drag";
    config.run.dir = (scratch.path / std::to_string(frames)).string();
    config.optimizer.lr = 5e-3;
    test::train_here(config);
    Runtime runtime({.threads = 1});
    const Predictor predictor(runtime, last_of(config));
    const Evaluation result = evaluate(predictor, {.split = "test"});
    CHECK(result.targets == "u, drag");
    REQUIRE(result.fields.size() == 2);
    CHECK(result.fields[1].name == "drag");
    CHECK(result.fields[1].unit == "N");
    CAPTURE(frames);
    CHECK(result.fields[0].rmse < 0.3 * result.fields[0].baseline_rmse);
    // Over time the baseline, that nothing changes, is near: the spread of the data is what to beat.
    const double spread = predictor.trained().normalizers.graph_targets.standard_deviation(0);
    CHECK(result.fields[1].rmse < 0.25 * spread);
    if (frames == 1) continue;
    REQUIRE(result.dynamics);
    const RolloutErrors& rollouts = result.dynamics->rollouts.back();
    REQUIRE(rollouts.fields.size() == 2);
    CHECK(rollouts.fields[1].name == "drag");
    CHECK(rollouts.fields[1].rmse < 0.5 * rollouts.fields[1].baseline_rmse);
  }
}

TEST_CASE("runs with targets of graphs resume, with the bits of ranks") {
  const ScratchDirectory scratch;
  for (const auto& [frames, alone] : {std::pair{1, false}, {1, true}, {6, false}}) {
    Config config =
        target_config(scratch.path, {.frames = frames, .train = 8, .one_size = false, .alone = alone});
    config.train.steps = 8;
    config.train.batch = 2;
    config.train.accumulate = 2;
    config.train.validate_every = 4;
    if (frames == 1) config.train.best = "mae of drag";
    config.ranks.reduction = RankReduction::ordered;
    config.unroll.steps = frames > 1 ? 3 : 1;
    const std::string name = std::to_string(frames) + (alone ? "alone" : "");
    config.run.dir = (scratch.path / name).string();
    const TrainResult straight = test::train_here(config);
    CHECK(std::isfinite(straight.state.last_valid_error));
    CHECK(std::isfinite(straight.state.last_valid_metric) == (frames == 1));
    const auto whole = test::tensors_of(config);
    CHECK(whole.contains("normalizer.graph_targets.mean"));
    CHECK(whole.contains("model.graph_decoder.linear_0.weight"));
    CHECK(whole.contains("model.node_decoder.linear_0.weight") != alone);
    const std::string metrics = test::lasting_metrics(config.run.dir);
    config.run.dir = (scratch.path / ("pieces" + name)).string();
    for (const int64_t stop : {3, 2}) {
      int64_t calls = 0;
      test::train_here(config, stop != 3, [&] { return ++calls == stop; });
    }
    test::train_here(config, true, nullptr, 3);
    CHECK(test::tensors_of(config) == whole);
    CHECK(test::lasting_metrics(config.run.dir) == metrics);
    for (const int ranks : {2, 4}) {
      config.run.dir = (scratch.path / (std::to_string(ranks) + "ranks" + name)).string();
      test::train_on_ranks(ranks, config);
      CHECK(test::tensors_of(config) == whole);
    }
    config.recompute.mode = RecomputeMode::block;
    config.recompute.include = {"encoder", "processor", "decoder"};
    for (const SegmentUnit unit : {SegmentUnit::block, SegmentUnit::frame, SegmentUnit::sequence}) {
      if (frames == 1 && unit != SegmentUnit::block) continue;
      config.recompute.segments = unit;
      config.run.dir =
          (scratch.path / ("recomputed" + name + std::to_string(static_cast<int>(unit)))).string();
      test::train_here(config);
      CHECK(test::tensors_of(config) == whole);
    }
  }
}

TEST_CASE("validation of numbers of meshes does not depend on batches") {
  const ScratchDirectory scratch;
  for (const int64_t frames : {1, 4}) {
    Config config = target_config(scratch.path, {.frames = frames, .train = 6, .one_size = false});
    const auto validate = [&](int64_t batch, const std::vector<std::string>& targets) {
      Runtime runtime({.threads = 2});
      config.train.batch = batch;
      config.data.targets = targets;
      const Task task = make_task(config, Dataset::open(config.data.path));
      const Model model = make_model(runtime, config, task.sizes());
      Normalizers normalizers = task.dataset_normalizers({});
      Ranks alone;
      return validate_model(runtime, alone, task, model, {}, normalizers, config, {}, {}).value();
    };
    CHECK(validate(1, {"u"}).error != validate(1, {"u", "drag"}).error);
    for (const std::vector<std::string>& targets : {{"u", "drag"}, std::vector<std::string>{"drag"}}) {
      if (frames > 1 && targets.size() == 1) continue;
      const Validation alone = validate(1, targets);
      CHECK(alone.error > 0.0);
      CHECK(alone.baseline > 0.0);
      for (const int64_t batch : {2, 4}) {
        const Validation together = validate(batch, targets);
        CHECK(together.loss == alone.loss);
        CHECK(together.error == alone.error);
        CHECK(together.baseline == alone.baseline);
      }
    }
  }
}

/// A program's own arrays give the numbers of the data's first test mesh, twice.
void check_embedded(Runtime& runtime, const Predictor& predictor, const fs::path& checkpoint) {
  const TrajectoryView view = predictor.dataset().trajectory("test", 0);
  const MeshTask& task = predictor.trained().task.mesh();
  std::vector<float> truth;
  predict_next(predictor.trained(), task, view, 0, task.state_at(view, 0), &truth);
  REQUIRE(truth.size() == 2);
  MeshPredictor embedded(runtime, checkpoint);
  REQUIRE(embedded.graph_targets().size() == 1);
  CHECK(std::ssize(embedded.targets()) == task.sizes.outputs);
  const MeshView& mesh = view.mesh();
  const MeshArrays one{.positions = mesh.positions,
                       .first = mesh.senders,
                       .second = mesh.receivers,
                       .node_type = mesh.node_type};
  const std::vector<MeshArrays> two{one, one};
  embedded.set_meshes(two);
  std::vector<double> ours(2), short_of_one(1);
  CHECK(contains(message_of([&] { embedded.get_field("drag", ours); }), "needed a prediction, got none"));
  CHECK(contains(message_of([&] { embedded.set_field("drag", ours); }), "needed one of the model's: "));
  for (const int64_t at : {0, 1}) {
    embedded.set_field("g", view.field("g").frame(0), at);
    if (task.fields.over_time) embedded.set_field("u", view.field("u").frame(0), at);
  }
  embedded.predict();
  CHECK(contains(message_of([&] { embedded.get_field("drag", short_of_one); }), "field drag"));
  for (const int64_t at : {0, 1}) {
    embedded.get_field("drag", ours, at);
    for (size_t c = 0; c < 2; ++c)
      CHECK(ours[c] == doctest::Approx(static_cast<double>(truth[c])).epsilon(1e-4));
  }
  CHECK(contains(message_of([&] { embedded.set_mesh({.in_parts = true}); }),
                 "needed whole meshes, for a model with targets on graphs: drag, got meshes in parts"));
}

TEST_CASE("numbers of meshes are written, and read by programs") {
  const ScratchDirectory scratch;
  for (const auto& [frames, alone] : {std::pair{1, false}, {1, true}, {4, false}}) {
    Config config =
        target_config(scratch.path, {.frames = frames, .train = 6, .one_size = false, .alone = alone});
    config.train.steps = 4;
    config.run.dir = (scratch.path / (std::to_string(frames) + (alone ? "alone" : ""))).string();
    test::train_here(config);
    const char* const command = frames == 1 ? "predict" : "rollout";
    const test::Outcome told = test::run_meshgrad({command, config.run.dir, "--quiet"});
    CHECK(told.code == 0);
    CHECK_MESSAGE(contains(told.out, "\ndrag"), told.out);
    const fs::path folder = fs::path(config.run.dir) / (frames == 1 ? "predictions_test" : "rollout_test_0");
    const std::string csv = test::read_text(folder / "predictions.csv");
    CHECK(contains(csv, frames == 1 ? "\ngraph,drag[0],drag[1]\n0," : "\ngraph,frame,drag[0],drag[1]\n0,1,"));
    CHECK(contains(told.out, "graphs    " + (folder / "predictions.csv").string()));
    const test::Outcome errors = test::run_meshgrad({"evaluate", config.run.dir, "--json", "--quiet"});
    const auto json = nlohmann::json::parse(errors.out);
    CHECK(json.at("fields").at("drag").at("unit") == "N");
    CHECK(json.at("fields").at("drag").at("mae") > 0.0);

    Runtime runtime({.threads = 1});
    check_embedded(runtime, Predictor(runtime, last_of(config)), last_of(config));
    CHECK(fs::exists(folder / "mesh_00000_test11.vtu") == (frames == 1 && !alone));
    CHECK(contains(told.out, "ParaView") != alone);
    const fs::path there = scratch.path / (alone ? "numbers" : "new");
    std::vector<std::string> words{command, config.run.dir, config.data.path,
                                   "-o",    there.string(), "--quiet"};
    const test::Outcome fresh = test::run_meshgrad(words);
    CHECK_MESSAGE(fresh.code == 0, fresh.err);
    const auto files = std::distance(fs::directory_iterator(there), fs::directory_iterator());
    CHECK((files == 2) == alone);
    words.insert(words.end(), {"--probe", "0,0"});
    const test::Outcome probed = test::run_meshgrad(words);
    CHECK(contains(probed.err,
                   "[--probe] needed a model with targets on nodes, got targets on graphs alone; "
                   "fix: leave it out") == alone);
    CHECK(contains(test::read_text(there / "predictions.csv"),
                   frames == 1 ? "\ngraph,drag[0],drag[1]\n0," : "\ngraph,frame,drag[0],drag[1]\n0,1,"));
  }
}

TEST_CASE("a trainer in a solver learns numbers of meshes") {
  const ScratchDirectory scratch;
  Config config = target_config(scratch.path, {.frames = 6});
  const Dataset data = Dataset::open(config.data.path);
  config.train.steps = 600;
  config.optimizer.lr = 5e-3;
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, config,
                        {.dim = 2,
                         .dt = 0.1,
                         .fields = {{.name = "u", .components = 1},
                                    {.name = "g", .components = 1},
                                    {.name = "drag", .components = 2, .on = FieldOn::graph}},
                         .capacity = 200});
  const MeshView mesh = data.trajectory("train", 0).mesh();
  const MeshArrays arrays{.positions = mesh.positions,
                          .first = mesh.senders,
                          .second = mesh.receivers,
                          .node_type = mesh.node_type};
  for (int64_t i = 0; i < data.size("train"); ++i) {
    const TrajectoryView view = data.trajectory("train", i);
    trainer.set_mesh(arrays);
    for (int64_t t = 0; t < view.frames(); ++t) {
      for (const char* name : {"u", "g", "drag"}) trainer.set_field(name, view.field(name).frame(t));
      trainer.append();
    }
    trainer.train(25);
  }
  MeshPredictor predictor(trainer);
  double squares = 0.0, spread = 0.0;
  for (int64_t i = 0; i < data.size("test"); ++i) {
    const TrajectoryView view = data.trajectory("test", i);
    predictor.set_mesh(arrays);
    for (const char* name : {"u", "g"}) predictor.set_field(name, view.field(name).frame(2));
    predictor.predict();
    std::vector<double> drag(2);
    predictor.get_field("drag", drag);
    for (size_t c = 0; c < 2; ++c) {
      const auto truth = static_cast<double>(view.field("drag").frame(3)[c]);
      squares += std::pow(drag[c] - truth, 2);
      spread += std::pow((c == 0 ? 4.0 : 5.0) - truth, 2);
    }
  }
  CHECK(squares < 0.1 * spread);
  CHECK(contains(message_of([&] { trainer.set_mesh({.in_parts = true}); }),
                 "needed whole meshes, with targets on graphs: drag, got a mesh in parts"));
}

TEST_CASE("targets of graphs that do not fit are refused") {
  const ScratchDirectory scratch;
  Config config = target_config(scratch.path);
  const auto refused = [&] {
    return message_of([&] { make_task(config, Dataset::open(config.data.path)); });
  };
  CHECK(refused().empty());
  config.data.inputs = {"g", "drag"};
  CHECK(contains(refused(), "[data.inputs] needed fields that are not targets, got drag; fix: remove it"));
  config.data.inputs = {"g"};
  config.data.targets = {"drag"};
  CHECK(refused().empty());
  const LossConfig plain = config.loss;
  config.loss.sample = 0.5;
  CHECK(contains(refused(), "[loss.sample] needed 1.0 where all targets are on graphs, got 0.5"));
  config.loss = plain;
  config.loss.type_weights = {{"0", 2.0}};
  CHECK(contains(refused(), "[loss.type_weights] needed 1.0 where all targets are on graphs, got {"));
  config.loss = plain;
  config.loss.name = LossName::relative_l2;
  CHECK(contains(refused(),
                 "[loss.name] needed \"mse\", \"huber\" or \"l1\" where all targets are on graphs, got "
                 "\"relative_l2\""));
  config.loss = plain;
  config.data.targets = {"u", "kind"};
  CHECK(contains(
      refused(),
      "[data.targets] needed f32 fields on graphs, got kind (i32 on graphs, 1 components); fix: name "
      "another, or learn this class alone: task.name = \"graph_classification\", data.targets = "
      "[\"kind\"]"));
  config.data.targets = {"u", "lift"};
  CHECK(contains(refused(), "lift"));
  config.data.targets = {"u"};
  config.model.pool = GraphPool::max;
  CHECK(contains(refused(), "[model.pool] needed \"mean\" where no target is on graphs, got \"max\""));
  config.data.targets = {"u", "drag"};
  CHECK(refused().empty());
  config.model.name = ModelName::gat;
  CHECK(contains(refused(),
                 "[model.name] needed \"mesh_graph_net\" for targets on graphs of a mesh: drag, got "
                 "\"gat\"; fix: set it, or task.name = \"graph_regression\""));
  config.model.name = ModelName::mesh_graph_net;
  config.ranks.partition = MeshPartition::rcb;
  CHECK(contains(refused(),
                 "[ranks.partition, ranks.parts_in_turn] needed whole meshes for targets on graphs: "
                 "drag, got meshes that are cut; fix: leave them out"));
  config.ranks.partition = MeshPartition::none;
  test::pack_targets(scratch.path, {.bad = std::nanf("")});
  CHECK(contains(refused(),
                 "targets.mgd: drag] needed finite numbers, which a model can learn, got nan at train0 "
                 "(split train, number 0), the first of 1"));

  Config moving = target_config(scratch.path, {.frames = 3});
  moving.data.targets = {"u", "load"};
  CHECK(contains(message_of([&] { make_task(moving, Dataset::open(moving.data.path)); }),
                 "[data.targets] needed fields that change over time, got load"));
  moving.data.targets = {"drag"};
  CHECK(contains(message_of([&] { make_task(moving, Dataset::open(moving.data.path)); }),
                 "[data.targets] needed a field on nodes, the state of a rollout, beside those on graphs, "
                 "got drag; fix: add one, or set task.name = \"steady_field\" or \"graph_regression\""));
}

TEST_CASE("a device trains on numbers of meshes as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  for (const auto& [frames, alone] : {std::pair{1, false}, {1, true}, {5, false}}) {
    Config config =
        target_config(scratch.path, {.frames = frames, .train = 6, .one_size = false, .alone = alone});
    config.train.steps = 4;
    config.train.validate_every = 2;
    config.unroll.steps = frames > 1 ? 2 : 1;
    config.run.dir = (scratch.path / (std::to_string(frames) + (alone ? "alone" : ""))).string();
    test::check_trains_on_device(config, [](Runtime& runtime, const Config& here) {
      const Predictor predictor(runtime, last_of(here));
      CHECK(evaluate(predictor, {.split = "test"}).fields.back().rmse > 0.0);
      check_embedded(runtime, predictor, last_of(here));
    });
  }
}

}  // namespace
}  // namespace meshgrad::graph_targets_test
