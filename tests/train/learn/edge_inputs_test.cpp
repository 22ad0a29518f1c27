// SPDX-License-Identifier: Apache-2.0
// Fields on edges as inputs: batches by hand, of graphs and of meshes, what is refused, and runs.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/extras/first_config.h>

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

/// The rings of test::small_graphs, whose edges have a field `e` of 0 or 1 and an integer `kind`; `total` is
/// half the sum of e, which nothing else tells.
NpzArrays graphs_of_edges(int graphs) {
  NpzArrays arrays = test::small_graphs(graphs);
  std::vector<float> e, total;
  std::vector<int32_t> kind;
  for (int g = 0; g < graphs; ++g) {
    const int nodes = 3 + static_cast<int>(uniform_below(7, 0, static_cast<uint64_t>(g), 6));
    total.push_back(0);
    for (int edge = 0; edge < 2 * nodes; ++edge) {
      e.push_back(static_cast<float>(uniform_below(8, 1, e.size(), 2)));
      kind.push_back(1);
      total.back() += e.back() / 2;
    }
  }
  const auto shape = [](size_t rows) { return "(" + std::to_string(rows) + ",)"; };
  arrays["edge:e"] = npy<float>("<f4", shape(e.size()), e);
  arrays["edge:kind"] = npy<int32_t>("<i4", shape(e.size()), kind);
  arrays["graph:total"] = npy<float>("<f4", shape(total.size()), total);
  return arrays;
}

Config config_of_edges(const fs::path& folder, int graphs = 200) {
  Config config = test::graph_config(folder, test::pack_graphs(folder, graphs_of_edges(graphs)),
                                     TaskName::graph_regression);
  config.data.edge_inputs = {"e"};
  config.model.width = 16;
  return config;
}

/// A square of which each edge is listed in both directions, with a flow that has a sign.
fs::path pack_square(const fs::path& folder) {
  NpzArrays arrays = test::square_arrays(3);
  arrays.erase("cells");
  arrays["edges"] = npy<int32_t>("<i4", "(8, 2)", {0, 1, 1, 0, 1, 2, 2, 1, 2, 3, 3, 2, 3, 0, 0, 3});
  arrays["edge:flow"] = npy<float>("<f4", "(8,)", {1, -1, 2, -2, 3, -3, 4, -4});
  arrays["edge:change"] = npy<float>("<f4", "(3, 8, 1)", test::counting(24));
  test::write_npz(folder / "square.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "square.npz";
  options.output = folder / "square.mgd";
  options.split = {1.0};
  convert(options);
  return options.output;
}

Config square_config(const fs::path& folder) {
  Config config = test::small_config(folder, pack_square(folder));
  config.data.inputs = config.data.targets = {"u"};
  config.data.edge_inputs = {"flow"};
  config.train.noise = 0.0;
  config.train.accumulate = 1;
  return config;
}

TEST_CASE("edges of a graph read their fields, normalised") {
  const ScratchDirectory scratch;
  const Config config = config_of_edges(scratch.path, 10);
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{1});
  CHECK(task.describe().edge_inputs.front().name == "e");
  Runtime runtime({.threads = 1});
  const FieldStatistics stats = dataset.field_stats("e");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Normalizers normalizers = task.dataset_normalizers({});
    const Batch batch =
        training_batch(task, runtime, dtype, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers);
    const test::Matrix rows = test::to_matrix(batch.graph.edges(kMeshEdges).features);
    size_t edge = 0;
    for (const int64_t graph : {1, 0}) {
      for (const float value : dataset.trajectory("train", graph).field("e").frame(0))
        CHECK(rows.v[edge++] == doctest::Approx((value - stats.mean[0]) / stats.std[0]).epsilon(0.01));
    }
    CHECK(edge == rows.v.size());
  }
  Normalizers learned = task.online_normalizers();
  std::vector<Sample> all;
  for (int32_t i = 0; i < 6; ++i) all.push_back({i, 0, 0});
  training_batch(task, runtime, DType::f64, "train", all, {}, learned, true);
  CHECK(learned.edges.mean(0) == doctest::Approx(stats.mean[0]));
  CHECK(learned.edges.standard_deviation(0) == doctest::Approx(stats.std[0]));
}

TEST_CASE("edges of a mesh read a value for each direction") {
  const ScratchDirectory scratch;
  Config config = square_config(scratch.path);
  config.data.edge_inputs = {"flow", "change"};
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().edge_inputs == std::vector<int64_t>{5});
  const TaskDescription text = task.describe();
  CHECK(text.edge_inputs.at(1).name == "distance");
  CHECK(text.edge_inputs.at(2).name == "flow");
  CHECK(task.mesh().fields.given_inputs() == std::vector<std::string>{"change"});
  Runtime runtime({.threads = 1});
  const MeshTask& mesh = task.mesh();
  const TrajectoryView view = mesh.dataset.trajectory("train", 0);
  std::vector<double> rows(8 * 5);
  SampleScratch rest;
  write_edges(mesh.fields, view, 1, mesh.state_at(view, 1), rest, rows.data());
  // Sorted by receiver, then by sender: 1, 3 to 0; 0, 2 to 1; 1, 3 to 2; 0, 2 to 3.
  const std::vector<double> flow{-1, 4, 1, -2, 2, -3, -4, 3}, change{9, 14, 8, 11, 10, 13, 15, 12};
  for (size_t edge = 0; edge < 8; ++edge) {
    CHECK(rows[5 * edge + 3] == flow[edge]);
    CHECK(rows[5 * edge + 4] - rows[4] == change[edge] - change[0]);
    CHECK(rows[5 * edge + 2] == 1.0);
  }
  const Normalizers normalizers = task.dataset_normalizers({});
  CHECK(normalizers.edges.mean(3) == 0.0);
  CHECK(normalizers.edges.standard_deviation(3) == doctest::Approx(std::sqrt(7.5)));
}

TEST_CASE("fields that edges cannot read are refused") {
  const ScratchDirectory scratch;
  Config config = square_config(scratch.path);
  const Dataset square = Dataset::open(config.data.path);
  const auto refused = [&] { return message_of([&] { make_task(config, square); }); };
  CHECK(refused().empty());
  config.data.edge_inputs = {"u"};
  CHECK(contains(refused(), "[data.edge_inputs] needed f32 fields on edges, got u (f32 on nodes)"));
  config.data.edge_inputs = {"change"};
  CHECK(refused().empty());
  config.unroll.steps = 2;
  CHECK(contains(refused(), "[data.edge_inputs] needed static fields with unroll.steps above 1"));
  config.unroll.steps = 1;
  config.data.hops = 2;
  CHECK(contains(refused(), "[data.edge_inputs] needed [] with data.hops above 1"));
  CHECK(contains(message_of([&] { online_config(config); }),
                 "[data.edge_inputs] needed [] for meshes that a program gives"));
  config = config_of_edges(scratch.path, 10);
  config.data.edge_inputs = {"kind"};
  CHECK(contains(message_of([&] { make_task(config, Dataset::open(config.data.path)); }),
                 "needed f32 fields on edges, got kind (i32 on edges)"));
  const auto contradicts = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"model.name=gat", "task.name=graph_regression",
                                     "data.edge_inputs=[\"e\"]", "train.noise=0"});
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(contradicts({}).empty());
  CHECK(contains(contradicts({"gat.edge_features=false"}),
                 "[data.edge_inputs] needed [] with gat.edge_features"));
  CHECK(contains(contradicts({"gat.score=gatv2"}), "[gat.edge_features] needed false"));
}

TEST_CASE("a run learns what edges alone tell") {
  const ScratchDirectory scratch;
  Config config = config_of_edges(scratch.path);
  config.train.steps = 400;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const auto rmse = [&] {
    const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
    const FieldError errors = evaluate(predictor, {.split = "test"}).fields.at(0);
    return errors.rmse / errors.baseline_rmse;
  };
  CHECK(rmse() < 0.3);
  config.data.edge_inputs = {};
  config.run.dir += "-without";
  test::train_here(config);
  CHECK(rmse() > 0.5);
}

TEST_CASE("a gat reads fields on edges") {
  const ScratchDirectory scratch;
  Config config = config_of_edges(scratch.path, 20);
  config.model.name = ModelName::gat;
  config.train.steps = 2;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  CHECK(evaluate(predictor, {.split = "test"}).fields.at(0).rmse > 0.0);
  CHECK(test::tensors_of(config).contains("model.layer.0.edge_scores.weight"));
}

TEST_CASE("programs cannot give fields on edges") {
  const ScratchDirectory scratch;
  Config config = square_config(scratch.path);
  config.train.steps = 1;
  config.train.validate_every = 0;
  config.train.batch = 1;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  CHECK(contains(message_of([&] { MeshPredictor(runtime, checkpoint); }),
                 "[data.edge_inputs] needed [] for meshes that a program gives, got flow"));
}

TEST_CASE("init proposes fields on edges") {
  const ScratchDirectory scratch;
  CHECK(
      first_config(Dataset::open(config_of_edges(scratch.path, 20).data.path), {}).config.data.edge_inputs ==
      std::vector<std::string>{"e"});
  CHECK(first_config(Dataset::open(pack_square(scratch.path)), {}).config.data.edge_inputs ==
        std::vector<std::string>{"flow"});
}

TEST_CASE("a device reads fields on edges as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = config_of_edges(scratch.path, 20);
  config.train.batch = 3;
  config.train.steps = 4;
  config.train.validate_every = 2;
  for (const EdgeReduce reduce : {EdgeReduce::sum, EdgeReduce::mean, EdgeReduce::max}) {
    config.model.reduce = reduce;
    config.run.device = "cpu";
    config.run.dir = (scratch.path / std::string(name_of(reduce))).string();
    const TrainResult cpu = test::train_here(config);
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      Config here = config;
      here.run.dir += graphs == GraphsMode::off ? "-plain" : "-captured";
      here.run.device = "cuda";
      here.graphs = graphs;
      Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
      CAPTURE(name_of(reduce));
      CHECK(train(runtime, here, {}).state.last_valid_loss ==
            doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
    }
  }
}

}  // namespace
}  // namespace meshgrad
