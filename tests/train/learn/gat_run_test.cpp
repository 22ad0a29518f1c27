// SPDX-License-Identifier: Apache-2.0
// Runs of graph attention networks with dropout: the same masks however a step is cut, resumed or recomputed,
// on any number of ranks, and, captured or not, on a GPU or the simulated device where there is one.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>

#include <cmath>
#include <set>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

/// As on Cora: heads side by side, then an attention decoder, with dropout of inputs and weights.
Config gat_on(Config config) {
  config.model.name = ModelName::gat;
  config.model.activation = Activation::elu;
  config.model.gat.heads = 2;
  config.model.gat.dropout = 0.2;
  config.model.gat.attention_dropout = 0.3;
  config.model.gat.decoder = GatDecoder::attention;
  return config;
}
Config gat_on_rings(const fs::path& folder, int nodes = 40) {
  return gat_on(test::class_config(folder, test::pack_rings(folder, nodes)));
}

double accuracy(const Config& config, const char* split) {
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  return evaluate(predictor, {.split = split}).metrics.at(0).value;
}

TEST_CASE("keys of another model are refused, and those of gat checked") {
  const auto refused = [](const std::vector<std::string>& settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(refused({"model.name=gat", "model.width=64"}).empty());
  CHECK(contains(refused({"gat.heads=8"}),
                 "[gat.heads] needed 4 with model.name = \"mesh_graph_net\", as only \"gat\" reads "
                 "gat.heads, got 8; fix: set gat.heads = 4, or model.name = \"gat\""));
  CHECK(contains(refused({"model.name=gat", "model.norm=rms"}),
                 "[model.norm] needed \"layer\" with model.name = \"gat\", as only \"mesh_graph_net\" reads "
                 "model.norm, got \"rms\""));
  CHECK(contains(refused({"model.name=gat", "model.width=66"}),
                 "[gat.heads] needed a divisor of model.width = 66"));
  CHECK(refused({"model.name=gat", "model.width=66", "gat.concatenate=false"}).empty());
  CHECK(contains(refused({"model.name=gat", "gat.decoder=attention", "gat.jumping=max"}),
                 "[gat.jumping] needed \"none\" with gat.decoder = \"attention\", got \"max\""));
  CHECK(contains(refused({"model.name=gat", "gat.decoder=attention", "task.name=graph_classification"}),
                 "[gat.decoder] needed \"mlp\" where nodes are pooled"));
  CHECK(contains(refused({"model.name=gat", "gat.jumping=concatenate", "model.blocks=8"}),
                 "[gat.jumping] needed \"none\" or \"max\" with more than 7 blocks"));
  CHECK(contains(refused({"model.name=gat", "gat.score=gatv2"}),
                 "[gat.edge_features] needed false with gat.score = \"gatv2\", got true"));
  CHECK(contains(refused({"model.name=gat", "data.world_position=p", "data.world_radius=1"}),
                 "[data.world_radius] needed 0 with model.name = \"gat\""));
  CHECK(contains(refused({"model.name=gat", "ranks.partition=rcb"}),
                 "[ranks.partition] needed whole meshes with model.name = \"gat\""));
}

TEST_CASE("keys of a batch's nodes are the sample's, not the batch's") {
  const ScratchDirectory scratch;
  const Config config = test::graph_config(
      scratch.path, test::pack_graphs(scratch.path, test::small_graphs(9)), TaskName::graph_regression);
  Config dropping = gat_on(config);
  dropping.model.gat.decoder = GatDecoder::mlp;
  Runtime runtime({.threads = 1});
  const auto keys_of = [&](const Config& here, const std::vector<Sample>& samples, uint64_t seed) {
    const Task task = make_task(here, Dataset::open(config.data.path));
    Normalizers normalizers = task.dataset_normalizers({});
    NoiseOptions noise;
    noise.seed = seed;
    const Batch batch = training_batch(task, runtime, DType::f32, "train", samples, noise, normalizers);
    std::vector<std::vector<int64_t>> graphs;
    if (!batch.graph.node_keys.defined()) return graphs;
    const auto keys = batch.graph.node_keys.values<int64_t>();
    const auto starts = batch.graph.graph_starts.values<int32_t>();
    for (size_t g = 0; g < samples.size(); ++g)
      graphs.emplace_back(keys.begin() + starts[g], keys.begin() + starts[g + 1]);
    return graphs;
  };
  CHECK(keys_of(config, {Sample{}}, 3).empty());
  const Sample first{.trajectory = 1}, second{.trajectory = 2}, again{.trajectory = 1, .visit = 1};
  const auto both = keys_of(dropping, {first, second, again}, 3);
  REQUIRE(both.size() == 3);
  CHECK(keys_of(dropping, {second}, 3)[0] == both[1]);
  CHECK(keys_of(dropping, {second, first}, 3)[1] == both[0]);
  std::set<int64_t> distinct;
  size_t keys = 0;
  for (const uint64_t seed : {3, 4}) {
    for (const auto& graph : keys_of(dropping, {first, second, again}, seed)) {
      distinct.insert(graph.begin(), graph.end());
      keys += graph.size();
    }
  }
  CHECK(distinct.size() == keys);
}

TEST_CASE("a gat with dropout learns two rings and resumes") {
  const ScratchDirectory scratch;
  Config config = gat_on_rings(scratch.path);
  test::train_here(config);
  for (const char* split : {"train", "test"}) CHECK(accuracy(config, split) >= 0.9);
  const auto whole = test::tensors_of(config);
  const std::string metrics = test::lasting_metrics(config.run.dir);
  config.run.dir = (scratch.path / "pieces").string();
  for (const int64_t stop : {7, 9}) {
    int64_t calls = 0;
    test::train_here(config, stop != 7, [&] { return ++calls == stop; });
  }
  test::train_here(config, true, nullptr, 3);
  CHECK(test::tensors_of(config) == whole);
  CHECK(test::lasting_metrics(config.run.dir) == metrics);
  config.run.dir = (scratch.path / "another").string();
  config.model.gat.attention_dropout = 0.0;
  test::train_here(config);
  CHECK(test::tensors_of(config) != whole);
}

TEST_CASE("a gat in 16 bits learns two rings") {
  const ScratchDirectory scratch;
  Config config = gat_on_rings(scratch.path);
  config.precision = DType::bf16;
  test::train_here(config);
  CHECK(accuracy(config, "test") >= 0.9);
}

TEST_CASE("a gat with dropout has its bits recomputed or on two ranks") {
  const ScratchDirectory scratch;
  Config config = gat_on_rings(scratch.path);
  config.train.steps = 5;
  config.train.accumulate = 2;
  test::check_same_bits(config, {"layer", "decoder"});
}

TEST_CASE("a gat of whole graphs learns their classes") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(60)),
                                     TaskName::graph_classification);
  config = gat_on(config);
  config.model.gat.decoder = GatDecoder::mlp;
  config.model.gat.dropout = config.model.gat.attention_dropout = 0.1;
  config.model.gat.jumping = Jumping::concatenate;
  config.normalize.mode = NormalizeMode::none;
  config.train.steps = 120;
  test::train_here(config);
  CHECK(accuracy(config, "train") >= 0.9);
}

TEST_CASE("inputs are as they are without normalisers") {
  const ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.train.steps = 1;
  config.normalize.mode = NormalizeMode::none;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  for (size_t c = 0; c < 2; ++c) {
    CHECK(predictor.trained().normalizers.nodes.mean(c) == 0.0);
    CHECK(predictor.trained().normalizers.nodes.standard_deviation(c) == 1.0);
  }
}

TEST_CASE("a device trains a gat as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = gat_on_rings(scratch.path, 12);
  config.train.steps = 4;
  config.train.validate_every = 2;
  config.train.log_every = 1;
  const TrainResult cpu = test::train_here(config);
  const auto on_device = [&](const std::string& name, GraphsMode graphs) {
    Config here = config;
    here.run.dir = (scratch.path / name).string();
    here.run.device = "cuda";
    here.graphs = graphs;
    Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
    const TrainResult result = train(runtime, here, {});
    CHECK(result.state.last_valid_loss == doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
    return test::tensors_of(here);
  };
  const auto plain = on_device("plain", GraphsMode::off);
  // cuBLASLt may choose another algorithm for a batch's capacity than for its rows.
  const auto captured = on_device("captured", GraphsMode::capture);
  if (cuda_devices().front().name == "simulated") CHECK(captured == plain);
}

}  // namespace
}  // namespace meshgrad
