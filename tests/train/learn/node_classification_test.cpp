// SPDX-License-Identifier: Apache-2.0
// Classes of the nodes of one graph: batches by hand, what is refused, and runs: trained, resumed, on the CPU
// and, captured or not, on a GPU or the simulated device where the test is linked with it.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/task.h>

#include <cmath>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::NpzArrays;
using test::ScratchDirectory;

// 0 -> 1 -> 2 -> 0, and 0 -> 2.
NpzArrays triangle() {
  return test::graph_arrays<int32_t>({0, 1, 1, 2, 2, 0, 0, 2}, {1, 2, 3, 4, 5, 6}, {2, 0, 1}, {1, 2, 1});
}

TEST_CASE("a graph's batch by hand: features, labels, split") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_graph(scratch.path, triangle()));
  config.data.classes = 3;  // no node of class 0 is trained on
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().node_inputs == 2);
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{0});
  CHECK(task.sizes().outputs == 3);
  CHECK(task.samples("train").size() == 1);
  CHECK(task.samples("valid").size() == 1);
  CHECK(task.samples("test").size() == 0);
  CHECK(contains(task.no_samples("test").what(), "needed nodes in test, got none"));
  CHECK(task.loss_weight("train", {Sample{}}) == 2.0);
  CHECK(task.loss_weight("valid", {Sample{}, Sample{}}) == 2.0);
  CHECK(task.describe().outputs.front().name == "class of label");

  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch =
      training_batch(task, runtime, DType::f32, "train", {Sample{}, Sample{}}, {}, normalizers);
  CHECK(batch.graph.nodes == 6);
  const auto mask = batch.tensor("mask").values<uint8_t>();
  CHECK(std::vector<uint8_t>(mask.begin(), mask.end()) == std::vector<uint8_t>{1, 0, 1, 1, 0, 1});
  const auto labels = batch.tensor("labels").values<int32_t>();
  CHECK(std::vector<int32_t>(labels.begin(), labels.end()) == std::vector<int32_t>{2, 0, 1, 2, 0, 1});
  const auto x = batch.graph.node_features.values<float>();
  const double std = std::sqrt(8.0 / 3.0);  // of 1, 3, 5
  for (size_t i = 0; i < 6; ++i)
    CHECK(x[2 * i] == doctest::Approx((1.0 + 2.0 * static_cast<double>(i % 3) - 3.0) / std).epsilon(1e-6));
  const auto senders = batch.graph.edges(kMeshEdges).graph.senders.values<int32_t>();
  CHECK(std::vector<int32_t>(senders.begin(), senders.end()) == std::vector<int32_t>{2, 0, 0, 1, 5, 3, 3, 4});
}

TEST_CASE("data of several graphs or no classes is refused") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_graph(scratch.path, triangle()));
  const auto refused = [&](const NpzArrays& arrays) {
    const fs::path path = test::pack_graph(scratch.path, arrays);
    return message_of([&] { make_task(config, Dataset::open(path)); });
  };
  NpzArrays divided_twice = triangle();
  divided_twice["train_mask_b"] = divided_twice["valid_mask"];
  divided_twice["test_mask_b"] = divided_twice["train_mask"];
  CHECK(contains(refused(triangle()),
                 "label: split train] needed a node of each class, got 0 of class 0, and "
                 "1 in other splits, the first node 1"));
  config.data.classes = 2;
  CHECK(contains(refused(triangle()),
                 "label, node 0] needed a class below 2, the number of classes, got 2; fix"));
  config.data.classes = 3;
  CHECK(refused(triangle()).empty());
  config.data.targets = {"x"};
  CHECK(contains(refused(triangle()), "[data.targets] needed one i32 field of 1 component on nodes"));
  config.data.targets = {"label", "x"};
  CHECK(contains(refused(triangle()), "[data.targets] needed one field"));
  config.data.targets = {"label"};
  config.data.inputs = {"label"};
  CHECK(contains(refused(triangle()), "[data.inputs] needed f32 fields on nodes or graphs, got label (i32"));
  config.data.inputs = {};
  CHECK(contains(refused(triangle()), "[data.inputs] needed at least one field"));
  config.data.inputs = {"x"};
  config.data.node_split = "other";
  CHECK(contains(refused(triangle()), "[data.node_split] needed one of the data's node splits: mask, got"));
  config.data.node_split = "";
  CHECK(contains(refused(divided_twice),
                 "[data.node_split] needed one of the data's node splits: mask, mask_b"));
  config.data.node_split = "mask_b";
  CHECK(refused(divided_twice).empty());
  config.data.node_split = "";
  NpzArrays without = triangle();
  for (const char* name : {"train_mask", "valid_mask", "test_mask"}) without.erase(name);
  CHECK(contains(refused(without), "[data.node_split] needed data that divide their nodes"));
  CHECK(contains(refused(test::graph_arrays<int32_t>({0, 1, 1, 2}, {1, 2, 3}, {0, -1, 1}, {1, 2, 1})),
                 "label, node 1] needed a class"));
  CHECK(refused(test::graph_arrays<int32_t>({0, 1, 1, 2}, {1, 2, 3}, {0, -1, 1}, {1, 0, 1})).empty());
  const fs::path meshes = test::pack_waves(scratch.path);
  CHECK(
      contains(message_of([&] { make_task(config, Dataset::open(meshes)); }), "[task.name] needed data of"));
}

TEST_CASE("keys of meshes are refused for node classes") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, "graph.mgd");
  CHECK(message_of([&] { check_config(config); }).empty());
  config.data.hops = 2;
  CHECK(contains(message_of([&] { check_config(config); }), "[data.hops]"));
  config = test::small_config(scratch.path, "waves.mgd");
  config.data.node_split = "mask";
  CHECK(contains(message_of([&] { check_config(config); }), "[data.node_split]"));
}

TEST_CASE("a run on two rings learns them and resumes") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  const TrainResult straight = test::train_here(config);
  CHECK(std::isfinite(straight.state.last_valid_loss));
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  for (const char* split : {"train", "test"}) {
    const Evaluation result = evaluate(predictor, {.split = split});
    REQUIRE(result.metrics.size() == 9);
    CHECK(result.metrics[0].name == "accuracy");
    CHECK(result.metrics[0].value >= 0.9);
    CHECK(result.metrics[1].value < 0.6);
  }
  const PredictedTable table = predict_table(predictor, {.split = "test"});
  CHECK(table.rows == "node");
  CHECK(std::vector<int64_t>(table.numbers.begin(), table.numbers.begin() + 3) ==
        std::vector<int64_t>{4, 5, 10});
  CHECK(table.classes.at(0) == 0);
  CHECK(table.classes.at(1) == 1);
  const std::string whole = test::checkpoint_bytes(config.run.dir, "last");
  const std::string metrics = test::lasting_metrics(config.run.dir);
  config.run.dir = (scratch.path / "pieces").string();
  for (const int64_t stop : {7, 9, 13}) {
    int64_t calls = 0;
    test::train_here(config, stop != 7, [&] { return ++calls == stop; });
  }
  test::train_here(config, true, nullptr, 3);
  CHECK(test::tensors_of(config) == test::tensors_of(test::class_config(scratch.path, config.data.path)));
  CHECK(test::lasting_metrics(config.run.dir) == metrics);
}

TEST_CASE("a run on two rings in 16 bits learns them") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.precision = DType::bf16;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const Evaluation result = evaluate(predictor, {.split = "test"});
  CHECK(result.metrics.at(0).value >= 0.9);
  CHECK(result.metrics.at(1).value < 0.6);
}

TEST_CASE("two ranks on one graph have the bits of one rank") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.train.steps = 4;
  config.train.accumulate = 2;
  config.ranks.reduction = RankReduction::ordered;
  test::train_here(config);
  const auto whole = test::tensors_of(config);
  config.run.dir = (scratch.path / "ranks").string();
  test::train_on_ranks(2, config);
  CHECK(test::tensors_of(config) == whole);
}

TEST_CASE("recomputed segments leave the bits of a run on a graph") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.train.steps = 6;
  test::train_here(config);
  const auto plain = test::tensors_of(config);
  config.run.dir = (scratch.path / "recomputed").string();
  config.recompute.mode = RecomputeMode::block;
  test::train_here(config);
  CHECK(test::tensors_of(config) == plain);
}

TEST_CASE("a device trains on a graph as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path, 12));
  config.train.steps = 4;
  config.train.validate_every = 2;
  config.train.log_every = 1;
  const TrainResult cpu = test::train_here(config);
  const auto on_device = [&](const std::string& name, GraphsMode graphs, int64_t stop_at) {
    Config here = config;
    here.run.dir = (scratch.path / name).string();
    here.run.device = "cuda";
    here.graphs = graphs;
    for (int piece = 0; piece < (stop_at > 0 ? 2 : 1); ++piece) {
      Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
      TrainOptions options;
      options.resume = piece > 0;
      int64_t calls = 0;
      if (stop_at > 0 && piece == 0) options.observer.stop = [&] { return ++calls == stop_at; };
      const TrainResult result = train(runtime, here, options);
      if (piece > 0 || stop_at == 0)
        CHECK(result.state.last_valid_loss == doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
    }
    return test::tensors_of(here);
  };
  const auto plain = on_device("plain", GraphsMode::off, 0);
  CHECK(on_device("captured", GraphsMode::capture, 0) == plain);
  CHECK(on_device("resumed", GraphsMode::capture, 2) == plain);
}

}  // namespace
}  // namespace meshgrad
