// SPDX-License-Identifier: Apache-2.0
// Numbers and classes of whole graphs: batches by hand, what is refused, and runs: trained, resumed, on
// ranks, on the CPU and, captured or not, on a GPU or the simulated device where the test is linked with it.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/task.h>

#include <cmath>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::npy;
using test::NpzArrays;
using test::ScratchDirectory;

constexpr TaskName kGraphTasks[] = {TaskName::graph_regression, TaskName::graph_classification};

/// Graphs 0 -> 1, 2 -> 1 and 0 -> 0, of 3 and of 1 node, a third as the first; the last is to validate.
NpzArrays three_graphs() {
  return {{"node_offsets", npy<int32_t>("<i4", "(4,)", {0, 3, 4, 7})},
          {"edge_offsets", npy<int32_t>("<i4", "(4,)", {0, 2, 3, 5})},
          {"edge_index", npy<int32_t>("<i4", "(2, 5)", {0, 2, 0, 0, 2, 1, 1, 0, 1, 1})},
          {"node:x", npy<float>("<f4", "(7, 2)", {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6})},
          {"graph:load", npy<float>("<f4", "(3,)", {10, 30, 10})},
          {"graph:drag", npy<float>("<f4", "(3, 2)", {1, 5, 3, 9, 2, 7})},
          {"graph:label", npy<int32_t>("<i4", "(3,)", {1, 0, 1})}};
}

fs::path pack_three(const fs::path& folder, const NpzArrays& arrays = three_graphs()) {
  test::write_npz(folder / "three.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "three.npz";
  options.output = folder / "three.mgd";
  options.split = {0.67, 0.33};
  options.directed = true;
  convert(options);
  return options.output;
}

template <class T>
std::vector<T> values(const Tensor& tensor) {
  const std::span<T> all = tensor.values<T>();
  return {all.begin(), all.end()};
}

TEST_CASE("a batch of graphs by hand: starts, features, targets") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, pack_three(scratch.path), TaskName::graph_regression);
  config.data.inputs = {"x", "load"};
  config.data.targets = {"drag"};
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().node_inputs == 3);
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{0});
  CHECK(task.sizes().outputs == 2);
  CHECK(task.sizes().pool == GraphPool::sum);
  CHECK(task.samples("train").size() == 2);
  CHECK(task.samples("valid").size() == 1);
  CHECK(task.loss_weight("train", {Sample{}, {1, 0, 0}}) == 2.0);
  CHECK(task.describe().outputs.front().name == "drag");
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch =
      training_batch(task, runtime, DType::f32, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers);
  CHECK(values<int32_t>(batch.graph.graph_starts) == std::vector<int32_t>{0, 1, 4});
  CHECK(values<uint8_t>(batch.tensor("mask")) == std::vector<uint8_t>{1, 1});
  // Means and deviations of two graphs: 2 +- 1 and 7 +- 2.
  CHECK(values<float>(batch.tensor("target")) == std::vector<float>{1, 1, -1, -1});
  const std::vector<float> x = values<float>(batch.graph.node_features);
  CHECK(x[2] == 1.0F);  // the load of graph 1, at its node
  for (const size_t node : {1, 2, 3}) CHECK(x[3 * node + 2] == -1.0F);
  CHECK(x[0] > x[9]);  // 7 and 5
  const Graph& graph = batch.graph.edges(kMeshEdges).graph;
  CHECK(values<int32_t>(graph.senders) == std::vector<int32_t>{0, 1, 3});
  CHECK(values<int32_t>(graph.receivers) == std::vector<int32_t>{0, 2, 2});

  config.task.name = TaskName::graph_classification;
  config.data.targets = {"label"};
  const Task classes = make_task(config, Dataset::open(config.data.path));
  CHECK(classes.sizes().outputs == 2);
  normalizers = classes.dataset_normalizers({});
  const BatchLayout layout =
      classes.layout({.nodes = 9, .edges = 9, .graphs = 4}, DType::f32, BatchLayout::Sizes::capacity);
  const Batch room = layout.batch(host_tensor({layout.bytes()}, DType::u8).storage());
  SampleScratch rows;
  classes.write(room, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers, false, rows);
  CHECK(values<int32_t>(room.tensor("labels")) == std::vector<int32_t>{0, 1, 0, 0});
  CHECK(values<uint8_t>(room.tensor("mask")) == std::vector<uint8_t>{1, 1, 0, 0});
}

TEST_CASE("a mesh gives graph tasks positions and node types") {
  const ScratchDirectory scratch;
  NpzArrays arrays = test::square_arrays(1);
  arrays["graph:drag"] = npy<float>("<f4", "()", {2});
  test::write_npz(scratch.path / "square.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "square.npz";
  options.output = scratch.path / "square.mgd";
  options.split = {1.0};
  convert(options);
  Config config = test::graph_config(scratch.path, options.output, TaskName::graph_regression);
  config.data.inputs = {"u"};
  config.data.targets = {"drag"};
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().node_inputs == 1 + 9);
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{3});
  config.data.node_types = 6;
  CHECK(contains(message_of([&] { make_task(config, Dataset::open(config.data.path)); }),
                 "[data.node_types] needed more than 6"));
}

TEST_CASE("fields and labels that do not fit graph tasks are refused") {
  const ScratchDirectory scratch;
  const fs::path data = pack_three(scratch.path);
  Config config = test::graph_config(scratch.path, data, TaskName::graph_regression);
  const auto refused = [&] { return message_of([&] { make_task(config, Dataset::open(data)); }); };
  config.data.targets = {"x"};
  CHECK(contains(refused(), "[data.targets] needed f32 fields on graphs, got x (f32 on nodes"));
  config.data.targets = {"label"};
  CHECK(contains(refused(), "[data.targets] needed f32 fields on graphs, got label (i32 on graphs"));
  CHECK(contains(refused(), "task.name = \"graph_classification\", data.targets = [\"label\"]"));
  config.data.targets = {"drag"};
  config.data.inputs = {"x", "drag"};
  CHECK(contains(refused(), "[data.inputs] needed fields that are not targets, got drag"));
  config.data.inputs = {"x"};
  CHECK(refused().empty());
  config.train.noise = 0.1;
  CHECK(contains(refused(), "[train.noise] needed 0 with task.name = \"graph_regression\""));
  config = test::graph_config(scratch.path, data, TaskName::graph_classification);
  CHECK(refused().empty());
  config.data.targets = {"drag"};
  CHECK(contains(refused(), "[data.targets] needed one i32 field of 1 component on graphs"));
  config.data.targets = {"label"};
  config.data.classes = 1;
  CHECK(contains(refused(),
                 "label, graph three.npz: graph 0 (split train, number 0)] needed a class below 1, "
                 "the number of classes, got 1, the first of 2"));
  config.data.classes = 0;
  const auto with_labels = [&](const std::vector<int32_t>& labels) {
    NpzArrays arrays = three_graphs();
    arrays["graph:label"] = npy<int32_t>("<i4", "(3,)", labels);
    pack_three(scratch.path, arrays);
    return refused();
  };
  CHECK(contains(with_labels({1, -1, -1}),
                 "graph three.npz: graph 1 (split train, number 1)] needed a class, "
                 "from 0, of each graph of a split, got -1, the first of 2"));
  CHECK(contains(with_labels({0, 1, 2}),
                 "split train] needed a graph of each class, got 0 of class 2, and 1 "
                 "in other splits, the first graph three.npz: graph 2"));
  CHECK(contains(with_labels({0, 2, 2}), "got 0 of class 1, and 0 in other splits"));
  config.data.classes = 3;
  CHECK(refused().empty());
}

TEST_CASE("keys of meshes are refused for graphs, and pools for nodes") {
  const ScratchDirectory scratch;
  for (const TaskName name : kGraphTasks) {
    Config config = test::graph_config(scratch.path, "graphs.mgd", name);
    config.data.node_types = 3;  // data.predicted_types, which is unused, has 5
    CHECK(message_of([&] { check_config(config); }).empty());
    config.data.hops = 2;
    CHECK(contains(message_of([&] { check_config(config); }), "[data.hops]"));
  }
  Config config = test::small_config(scratch.path, "waves.mgd");
  config.task.name = TaskName::node_classification;
  config.train.noise = 0.0;
  config.model.pool = GraphPool::max;
  CHECK(contains(message_of([&] { check_config(config); }),
                 "[model.pool] needed \"mean\" with task.name = \"node_classification\", which predicts no "
                 "values of graphs, got \"max\""));
}

TEST_CASE("a run on graphs learns sums of their nodes") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(200)),
                                     TaskName::graph_regression);
  config.train.steps = 400;
  config.model.width = 16;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const Evaluation result = evaluate(predictor, {.split = "test"});
  CHECK(result.trajectories == 40);
  REQUIRE(result.fields.size() == 1);
  CHECK(result.fields[0].name == "total");
  CHECK(result.fields[0].rmse < 0.2 * result.fields[0].baseline_rmse);
  CHECK(result.fields[0].mae <= result.fields[0].rmse);
  CHECK(result.fields[0].relative_l2 < 0.2);
  const Evaluation first = evaluate(predictor, {.split = "test", .trajectories = 3});
  CHECK(first.trajectories == 3);
  CHECK(first.fields[0].rmse != result.fields[0].rmse);
}

TEST_CASE("a run on graphs learns a label by counting") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(200)),
                                     TaskName::graph_classification);
  config.train.steps = 400;
  config.model.width = 16;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const Evaluation result = evaluate(predictor, {.split = "test"});
  CHECK(result.metrics.at(0).name == "accuracy");
  CHECK(result.metrics.at(0).value >= 0.9);
  CHECK(result.metrics.at(1).value < 0.8);
  CHECK(result.confusion.size() == 2);
  CHECK(result.metrics.back().name == "graphs");
  CHECK(result.metrics.back().value == 40.0);
}

TEST_CASE("class weights are in the loss and in its weight") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, pack_three(scratch.path), TaskName::graph_classification);
  config.loss.class_weights = {0.5, 3.0};
  const Task task = make_task(config, Dataset::open(config.data.path));
  const std::vector<Sample> samples{{0, 0, 0}, {1, 0, 0}};  // of class 1 and 0
  CHECK(task.loss_weight("train", samples) == 3.5);
  Runtime runtime({.threads = 1});
  const Model model = make_model(runtime, config, task.sizes());
  Normalizers normalizers = task.dataset_normalizers({});
  const auto loss = [&](const std::vector<Sample>& of) {
    const Batch batch = training_batch(task, runtime, DType::f32, "train", of, {}, normalizers);
    Tape tape(runtime, Tape::Mode::evaluate);
    return *task.loss(tape, model, batch, {}).sum.value().data<double>();
  };
  const double weighted = loss(samples), first = loss({samples[0]}), second = loss({samples[1]});
  CHECK(weighted == doctest::Approx(first + second).epsilon(1e-6));
  config.loss.class_weights = {};
  const Task plain = make_task(config, Dataset::open(config.data.path));
  const Batch batch = training_batch(plain, runtime, DType::f32, "train", {samples[0]}, {}, normalizers);
  Tape tape(runtime, Tape::Mode::evaluate);
  CHECK(first ==
        doctest::Approx(3.0 * *plain.loss(tape, model, batch, {}).sum.value().data<double>()).epsilon(1e-6));
}

TEST_CASE("a table of graphs has classes and probabilities") {
  const ScratchDirectory scratch;
  for (const TaskName name : kGraphTasks) {
    Config config =
        test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(20)), name);
    config.train.steps = 2;
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    test::train_here(config);
    Runtime runtime({.threads = 1});
    const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
    const PredictedTable table = predict_table(predictor, {.split = "test"});
    CHECK(table.numbers == std::vector<int64_t>{0, 1, 2, 3});
    if (name == TaskName::graph_regression) {
      CHECK(table.classes.empty());
      CHECK(table.column_names() == std::vector<std::string>{"total"});
      const Evaluation evaluation = evaluate(predictor, {.split = "test"});
      double squares = 0.0;
      for (int64_t i = 0; i < 4; ++i) {
        const auto total = predictor.dataset().trajectory("test", i).field("total").frame(0).front();
        squares += std::pow(table.values[static_cast<size_t>(i)] - static_cast<double>(total), 2);
      }
      CHECK(std::sqrt(squares / 4.0) == doctest::Approx(evaluation.fields.front().rmse).epsilon(1e-5));
      continue;
    }
    CHECK(table.column_names() == std::vector<std::string>{"p0", "p1"});
    for (size_t i = 0; i < 4; ++i) {
      CHECK(table.values[2 * i] + table.values[2 * i + 1] == doctest::Approx(1.0));
      CHECK(table.classes[i] == (table.values[2 * i + 1] > table.values[2 * i] ? 1 : 0));
    }
  }
}

TEST_CASE("programs for meshes refuse runs on graphs") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(20));
  for (const TaskName name : kGraphTasks) {
    Config config = test::graph_config(scratch.path, data, name);
    config.train.steps = 1;
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    test::train_here(config);
    Runtime runtime({.threads = 1});
    const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
    CHECK(contains(message_of([&] { MeshPredictor(runtime, checkpoint); }),
                   "[task.name] needed a checkpoint of a task on meshes, got \"graph_"));
    CHECK(contains(message_of([&] { online_config(config); }),
                   "[task.name] needed a task on meshes with OnlineTrainer, got \"graph_"));
    const Predictor predictor(runtime, checkpoint);
    CHECK(contains(message_of([&] { predictor.mesh_dynamics(); }), "[task.name] needed a task on meshes"));
  }
}

TEST_CASE("runs on graphs resume, with the bits of any ranks") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(30));
  for (const TaskName name : kGraphTasks) {
    Config config = test::graph_config(scratch.path, data, name);
    config.train.steps = 12;
    config.train.validate_every = 4;
    config.ranks.reduction = RankReduction::ordered;
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    const TrainResult straight = test::train_here(config);
    CHECK(std::isfinite(straight.state.last_valid_error));
    const auto whole = test::tensors_of(config);
    const std::string metrics = test::lasting_metrics(config.run.dir);
    config.run.dir = (scratch.path / "pieces").string() + std::string(name_of(name));
    for (const int64_t stop : {3, 4}) {
      int64_t calls = 0;
      test::train_here(config, stop != 3, [&] { return ++calls == stop; });
    }
    test::train_here(config, true, nullptr, 3);
    CHECK(test::tensors_of(config) == whole);
    CHECK(test::lasting_metrics(config.run.dir) == metrics);
    for (const int ranks : {2, 4}) {
      config.run.dir = (scratch.path / std::to_string(ranks)).string() + std::string(name_of(name));
      test::train_on_ranks(ranks, config);
      CHECK(test::tensors_of(config) == whole);
    }
    config.run.dir = (scratch.path / "recomputed").string() + std::string(name_of(name));
    config.recompute.mode = RecomputeMode::block;
    config.recompute.include = {"encoder", "processor", "pool"};
    test::train_here(config);
    CHECK(test::tensors_of(config) == whole);
  }
}

TEST_CASE("validation of graphs does not depend on batches") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(30));
  for (const TaskName name : kGraphTasks) {
    Config config = test::graph_config(scratch.path, data, name);
    const auto validate = [&](int64_t batch) {
      Runtime runtime({.threads = 2});
      config.train.batch = batch;
      const Task task = make_task(config, Dataset::open(data));
      const Model model = make_model(runtime, config, task.sizes());
      Normalizers normalizers = task.dataset_normalizers({});
      Ranks alone;
      return validate_model(runtime, alone, task, model, {}, normalizers, config, {}, {}).value();
    };
    const Validation alone = validate(1);
    CHECK(alone.loss > 0.0);
    for (const int64_t batch : {2, 5}) {
      const Validation together = validate(batch);
      CHECK(together.loss == alone.loss);
      CHECK(together.error == alone.error);
      CHECK(together.baseline == alone.baseline);
    }
  }
}

TEST_CASE("a device trains on graphs as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(20));
  for (const TaskName name : kGraphTasks) {
    Config config = test::graph_config(scratch.path, data, name);
    config.model.pool = name == TaskName::graph_regression ? GraphPool::mean : GraphPool::max;
    config.train.batch = 3;
    config.train.steps = 4;
    config.train.validate_every = 2;
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    test::check_trains_on_device(config);
  }
}

}  // namespace
}  // namespace meshgrad
