// SPDX-License-Identifier: Apache-2.0
// Identifiers as rows of a trained table: batches by hand, what is refused, and runs, on new data too.
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/planning/plan.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <fmt/format.h>

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

/// The rings of test::small_graphs, whose nodes have identifiers below `identifiers`; `label` is whether two
/// nodes or more have an odd one.
NpzArrays named_graphs(int graphs, uint32_t identifiers = 10) {
  NpzArrays arrays = test::small_graphs(graphs);
  std::vector<int32_t> id, label;
  for (int g = 0; g < graphs; ++g) {
    const int nodes = 3 + static_cast<int>(uniform_below(7, 0, static_cast<uint64_t>(g), 6));
    int odd = 0;
    for (int node = 0; node < nodes; ++node) {
      id.push_back(static_cast<int32_t>(uniform_below(9, 1, id.size(), identifiers)));
      odd += id.back() % 2;
    }
    label.push_back(odd >= 2 ? 1 : 0);
  }
  const auto shape = [](size_t rows) { return "(" + std::to_string(rows) + ",)"; };
  arrays["node:id"] = npy<int32_t>("<i4", shape(id.size()), id);
  arrays["graph:label"] = npy<int32_t>("<i4", shape(label.size()), label);
  arrays.erase("graph:total");
  return arrays;
}

Config named_config(const fs::path& folder, int graphs = 200) {
  Config config = test::graph_config(folder, test::pack_graphs(folder, named_graphs(graphs)),
                                     TaskName::graph_classification);
  config.data.inputs = {};
  config.data.embed = {"id"};
  config.model.embedding = 4;
  config.model.width = 16;
  return config;
}

TEST_CASE("a batch has the rows of its identifiers, by row too") {
  const ScratchDirectory scratch;
  const Config config = named_config(scratch.path, 10);
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  REQUIRE(task.sizes().tables.size() == 1);
  CHECK(task.sizes().tables[0].rows == 11);
  CHECK(task.sizes().tables[0].width == 4);
  CHECK(task.sizes().node_inputs == 0);
  CHECK(task.describe().node_inputs.front().name == "row of id, of 10");
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const BatchLayout layout =
      task.layout({.nodes = 40, .edges = 80, .graphs = 4}, DType::f32, BatchLayout::Sizes::capacity);
  const Batch batch = layout.batch(host_tensor({layout.bytes()}, DType::u8).storage());
  SampleScratch rows;
  task.write(batch, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers, false, rows);
  std::vector<int32_t> expected;
  for (const int64_t graph : {1, 0})
    for (const int32_t id : dataset.trajectory("train", graph).field("id").frame_of<int32_t>(0))
      expected.push_back(id);
  const Graph& graph = batch.graph.identifiers.at(0);
  const auto nodes = expected.size();
  const std::span<const int32_t> senders = graph.senders.values<int32_t>().first(nodes);
  CHECK(std::ranges::equal(senders, expected));
  CHECK(graph.counts.values<int64_t>()[0] == 11);
  CHECK(graph.counts.values<int64_t>()[2] == static_cast<int64_t>(nodes));
  const std::span<const int32_t> offsets = graph.sender_offsets.values<int32_t>();
  const std::span<const int32_t> order = graph.sender_order.values<int32_t>();
  CHECK(offsets.size() == 12);
  CHECK(offsets.back() == static_cast<int32_t>(nodes));
  for (size_t row = 0; row < 11; ++row) {
    for (int32_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      const auto at = static_cast<size_t>(i);
      CHECK(expected[static_cast<size_t>(order[at])] == static_cast<int32_t>(row));
      if (i > offsets[row]) CHECK(order[at] > order[at - 1]);
    }
  }
}

TEST_CASE("identifiers outside of the table share its last row") {
  const ScratchDirectory scratch;
  Config config = named_config(scratch.path, 10);
  config.data.identifiers = 4;
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  CHECK(task.sizes().tables[0].rows == 5);
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch = training_batch(task, runtime, DType::f32, "train", {{0, 0, 0}}, {}, normalizers);
  const std::span<const int32_t> rows = batch.graph.identifiers.at(0).senders.values<int32_t>();
  size_t node = 0;
  for (const int32_t id : dataset.trajectory("train", 0).field("id").frame_of<int32_t>(0))
    CHECK(rows[node++] == (id < 4 ? id : 4));
  CHECK(node == rows.size());
}

TEST_CASE("a plan counts tables apart from other parameters") {
  const ScratchDirectory scratch;
  Config config = named_config(scratch.path, 10);
  const auto budget = [&] { return plan_memory(config, {.device_memory = int64_t{1} << 30}).budget; };
  const Task task = make_task(config, Dataset::open(config.data.path));
  constexpr int64_t kRounding = 256;  // of ParameterSet::end_tables
  const int64_t values = round_up(task.sizes().tables[0].rows * config.model.embedding, kRounding);
  CHECK(budget().embed == values * size_of(DType::f32));
  CHECK(contains(to_text(budget()), fmt::format("embed=0.{:06} ", budget().embed)));
  config.precision = DType::bf16;
  CHECK(budget().embed == values * (size_of(DType::f32) + size_of(DType::bf16)));
}

TEST_CASE("fields that are no identifiers are refused") {
  const ScratchDirectory scratch;
  Config config = named_config(scratch.path, 10);
  const auto refused = [&] {
    return message_of([&] { make_task(config, Dataset::open(config.data.path)); });
  };
  CHECK(refused().empty());
  config.data.embed = {"x"};
  CHECK(contains(refused(),
                 "[data.embed] needed i32 fields of 1 component on nodes, identifiers from 0, got x"));
  config.data.embed = {};
  CHECK(contains(refused(), "[data.inputs] needed at least one field on nodes"));
  const auto contradicts = [](std::vector<std::string> settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(contains(contradicts({"data.embed=[\"id\"]"}),
                 "[data.embed] needed [] with task.name = \"mesh_dynamics\""));
  CHECK(contains(contradicts({"task.name=graph_regression", "train.noise=0", "model.embedding=3"}),
                 "[model.embedding] needed 16 where data.embed is empty"));
  CHECK(contains(contradicts({"task.name=graph_regression", "train.noise=0", "data.identifiers=3"}),
                 "[data.identifiers] needed 0 where data.embed is empty"));
}

TEST_CASE("a run learns by identifiers, and reads new data") {
  const ScratchDirectory scratch;
  Config config = named_config(scratch.path);
  config.train.steps = 400;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  const Evaluation result = evaluate(Predictor(runtime, checkpoint), {.split = "test"});
  CHECK(result.metrics.at(0).name == "accuracy");
  CHECK(result.metrics.at(0).value >= 0.9);
  // Other data have fewer identifiers, or more.
  for (const uint32_t identifiers : {3U, 40U}) {
    const fs::path folder = scratch.path / std::to_string(identifiers);
    fs::create_directories(folder);
    const fs::path other = test::pack_graphs(folder, named_graphs(20, identifiers));
    const Predictor predictor(runtime, checkpoint, other.string());
    CHECK(predictor.task().sizes().tables[0].rows == 11);
    // Those of the second data whose identifiers are outside of the table read one row: labels are odd ones.
    CHECK((evaluate(predictor, {.split = "test"}).metrics.at(0).value >= 0.9) == (identifiers == 3));
  }
}

TEST_CASE("resumed, recomputed or on ranks, tables keep the bits") {
  const ScratchDirectory scratch;
  for (const ModelName name : {ModelName::mesh_graph_net, ModelName::gat}) {
    Config config = named_config(scratch.path, 20);
    config.model.name = name;
    config.train.steps = 6;
    config.ranks.reduction = RankReduction::ordered;
    const std::string dir = (scratch.path / std::string(name_of(name))).string();
    config.run.dir = dir;
    test::train_here(config);
    const auto whole = test::tensors_of(config);
    CHECK(whole.contains("model.embedding.id.weight"));
    config.run.dir = dir + "-pieces";
    int64_t calls = 0;
    test::train_here(config, false, [&] { return ++calls == 3; });
    test::train_here(config, true, nullptr, 3);
    CHECK(test::tensors_of(config) == whole);
    config.run.dir = dir + "-ranks";
    test::train_on_ranks(2, config);
    CHECK(test::tensors_of(config) == whole);
    config.run.dir = dir + "-recomputed";
    config.recompute.mode = RecomputeMode::block;
    config.recompute.include = {"*"};
    test::train_here(config);
    CHECK(test::tensors_of(config) == whole);
  }
}

TEST_CASE("init proposes identifiers, and says when types are many") {
  const ScratchDirectory scratch;
  const Config config = named_config(scratch.path, 20);
  const FirstConfig first = first_config(Dataset::open(config.data.path));
  CHECK(first.config.data.embed == std::vector<std::string>{"id"});
  CHECK(first.notes.empty());
  NpzArrays arrays = named_graphs(20, 1999);
  arrays["node_type"] = arrays["node:id"];
  arrays.erase("node:id");
  const fs::path many = test::pack_graphs(scratch.path, arrays);
  const FirstConfig typed = first_config(Dataset::open(many));
  REQUIRE(typed.notes.size() == 1);
  CHECK(contains(typed.notes[0], "if they are identifiers"));
}

TEST_CASE("a device trains tables as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = named_config(scratch.path, 20);
  config.train.batch = 3;
  config.train.steps = 4;
  config.train.validate_every = 2;
  for (const DType precision : {DType::f32, DType::bf16}) {
    config.precision = precision;
    config.run.device = "cpu";
    config.run.dir = (scratch.path / std::string(name_of(precision))).string();
    const TrainResult cpu = test::train_here(config);
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      Config here = config;
      here.run.dir += graphs == GraphsMode::off ? "-plain" : "-captured";
      here.run.device = "cuda";
      here.graphs = graphs;
      Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
      CAPTURE(name_of(precision));
      CHECK(train(runtime, here, {}).state.last_valid_loss ==
            doctest::Approx(cpu.state.last_valid_loss).epsilon(precision == DType::f32 ? 1e-4 : 0.02));
    }
  }
}

}  // namespace
}  // namespace meshgrad
