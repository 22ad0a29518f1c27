// SPDX-License-Identifier: Apache-2.0
// Links: how they are split and drawn, and runs of variational graph autoencoders: the same latent noise
// however a step is cut, resumed or recomputed, on any number of ranks, and, captured or not, on a GPU or the
// simulated device where there is one.
#include "train/link_case.h"

#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <cmath>
#include <set>

#include "simulated_ranks.h"
#include "support.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

Evaluation evaluated(const Config& config, const char* split) {
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  return evaluate(predictor, {.split = split});
}

std::vector<NodePair> ring(int32_t nodes) {
  std::vector<NodePair> pairs;
  for (int32_t i = 0; i + 1 < nodes; ++i) pairs.push_back({i, i + 1});
  pairs.push_back({0, nodes - 1});
  std::ranges::sort(pairs);
  return pairs;
}

bool has_any(const std::vector<NodePair>& pairs, const std::vector<NodePair>& of) {
  return std::ranges::any_of(of,
                             [&](const NodePair& pair) { return std::ranges::binary_search(pairs, pair); });
}

TEST_CASE("links are split once, by the seed, with as many other pairs") {
  const std::vector<NodePair> links = ring(100);
  const LinkSplit split = split_links(100, links, 0.05, 0.1, 7);
  CHECK(split.test.linked.size() == 10);
  CHECK(split.valid.linked.size() == 5);
  CHECK(split.train.linked.size() == 85);
  CHECK(split.train.others.empty());
  CHECK(split.valid.others.size() == 5);
  CHECK(split.test.others.size() == 10);
  std::set<NodePair> all;
  for (const PairSample* part : {&split.train, &split.valid, &split.test}) {
    all.insert(part->linked.begin(), part->linked.end());
    CHECK(std::ranges::is_sorted(part->linked));
    CHECK_FALSE(has_any(links, part->others));
    for (const NodePair& pair : part->others) CHECK((pair.a >= 0 && pair.a < pair.b && pair.b < 100));
  }
  CHECK(all.size() == 100);
  CHECK_FALSE(has_any(split.valid.others, split.test.others));
  CHECK(split_links(100, links, 0.05, 0.1, 7).test.linked == split.test.linked);
  CHECK(split_links(100, links, 0.05, 0.1, 8).test.linked != split.test.linked);
}

TEST_CASE("pairs without a link are all drawn where they are few") {
  const std::vector<NodePair> links = ring(5);
  const std::vector<NodePair> rest{{0, 2}, {0, 3}, {1, 3}, {1, 4}, {2, 4}};
  CHECK(other_pairs(5, links, 100, 1, 0) == rest);
  CHECK(other_pairs(5, links, 2, 1, 0).size() == 2);
  CHECK(other_pairs(3, ring(3), 4, 1, 0).empty());
  CHECK(other_pairs(1, {}, 4, 1, 0).empty());
  CHECK(other_pairs(0, {}, 4, 1, 0).empty());
  const PairSample drawn = drawn_pairs(5, links, 3, 1, 0);
  CHECK((drawn.linked.size() == 3 && drawn.others.size() == 3));
  CHECK(drawn_pairs(5, links, 100, 1, 0).linked == links);
  CHECK((drawn_pairs(50, ring(50), 9, 1, 1).linked != drawn_pairs(50, ring(50), 9, 1, 0).linked));
  const std::vector<NodePair> own{{0, 0}, {0, 1}, {1, 1}, {2, 2}};
  CHECK(with_own_pairs(3, {{0, 1}}) == own);
  CHECK(drawn_pairs(3, own, 9, 1, 0).others == std::vector<NodePair>{{0, 2}, {1, 2}});
  const LinkSplit complete = split_links(3, ring(3), 0.34, 0.34, 0);
  CHECK((complete.test.linked.size() == 1 && complete.test.others.empty()));
}

TEST_CASE("a batch of links never has those of validation and test") {
  const ScratchDirectory scratch;
  const Config config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  const Task task = make_task(config, Dataset::open(config.data.path));
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.online_normalizers();
  const MeshView mesh = task.dataset().trajectory(0).mesh();
  const std::vector<NodePair> links = linked_pairs(mesh);
  const LinkSplit split = split_links(mesh.nodes, links, 0.05, 0.1, mixed_bits(0));
  for (const char* name : {"train", "valid", "test"}) {
    const Batch batch = training_batch(task, runtime, DType::f32, name, {Sample{}}, {}, normalizers);
    const Graph& graph = batch.graph.edge_sets[0].graph;
    check_graph(graph);
    CHECK(graph.edges == mesh.nodes + 2 * std::ssize(split.train.linked));
    std::set<NodePair> read;
    const auto senders = graph.senders.values<int32_t>(), receivers = graph.receivers.values<int32_t>();
    for (size_t e = 0; e < senders.size(); ++e)
      read.insert({std::min(senders[e], receivers[e]), std::max(senders[e], receivers[e])});
    for (const PairSample* part : {&split.valid, &split.test})
      for (const NodePair& pair : part->linked) CHECK(read.count(pair) == 0);
    for (const NodePair& pair : split.train.linked) CHECK(read.count(pair) == 1);
    // 1 / sqrt(d d) sums to 1 over the edges of a node only where all degrees are equal: the first edge by
    // hand.
    const auto offsets = graph.receiver_offsets.values<int32_t>();
    const auto degree = [&](int32_t node) {
      return static_cast<double>(offsets[static_cast<size_t>(node) + 1] - offsets[static_cast<size_t>(node)]);
    };
    const float first = batch.graph.edge_sets[0].weights.values<float>()[0];
    CHECK(static_cast<double>(first) ==
          doctest::Approx(1.0 / std::sqrt(degree(senders[0]) * degree(receivers[0]))));
  }
}

TEST_CASE("a vgae finds links that it has not read, and resumes") {
  const ScratchDirectory scratch;
  Config config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  config.data.link_valid = config.data.link_test = 0.15;
  test::train_here(config);
  const Evaluation test = evaluated(config, "test");
  REQUIRE(test.metrics.size() == 5);
  CHECK(test.metrics[0].name == "AUC");
  CHECK(test.metrics[0].value > 0.7);
  CHECK(test.metrics[1].value > 0.7);
  CHECK(test.metrics[3].value == test.metrics[4].value);
  CHECK(test.notes.empty());
  // predict has these pairs, with the probabilities that the metrics rank.
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const PredictedTable table = predict_table(predictor, {.split = "test"});
  CHECK(table.rows == "pair");
  CHECK(table.column_names() == std::vector<std::string>{"node_a", "node_b", "linked", "probability"});
  REQUIRE(static_cast<double>(table.numbers.size()) == test.metrics[3].value + test.metrics[4].value);
  const MeshView mesh = predictor.dataset().trajectory(0).mesh();
  const std::vector<NodePair> links = linked_pairs(mesh);
  const LinkSplit split = split_links(mesh.nodes, links, 0.15, 0.15, mixed_bits(0));
  double entropy = 0.0;
  for (size_t i = 0; i < table.numbers.size(); ++i) {
    CHECK(table.numbers[i] == static_cast<int64_t>(i));
    const double* row = table.values.data() + 4 * i;
    const bool linked = i < split.test.linked.size();
    const NodePair& pair = linked ? split.test.linked[i] : split.test.others[i - split.test.linked.size()];
    CHECK((row[0] == pair.a && row[1] == pair.b && row[2] == (linked ? 1.0 : 0.0)));
    entropy -= std::log(linked ? row[3] : 1.0 - row[3]);
  }
  CHECK(test.metrics[2].value == doctest::Approx(entropy / static_cast<double>(table.numbers.size())));
  CHECK(contains(message_of([&] { evaluate(predictor, {.split = "test", .label = "label"}); }),
                 "[--label] needed many graphs, which have scores"));
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
}

TEST_CASE("a vgae of attention layers finds links, too") {
  const ScratchDirectory scratch;
  Config config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  config.data.link_valid = config.data.link_test = 0.15;
  config.model.vgae.encoder = VgaeEncoder::attention;
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK_FALSE(task.sizes().edge_weights);
  test::train_here(config);
  CHECK(evaluated(config, "test").metrics[0].value > 0.7);
  CHECK(test::tensors_of(config).contains("model.latent.receiver_score"));
}

TEST_CASE("a vgae of drawn pairs and features learns in 16 bits, too") {
  const ScratchDirectory scratch;
  Config config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  config.data.link_valid = config.data.link_test = 0.15;
  config.model.vgae.pairs = 64;
  config.model.vgae.feature_weight = 0.5;
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    config.precision = precision;
    config.run.dir = (scratch.path / std::string(name_of(precision))).string();
    test::train_here(config);
    CHECK(evaluated(config, "test").metrics[0].value > 0.7);
  }
}

TEST_CASE("a vgae has its bits recomputed or on 2 or 4 ranks") {
  const ScratchDirectory scratch;
  Config config = test::link_config(scratch.path, test::pack_groups(scratch.path, 30));
  config.train.steps = 5;
  config.train.accumulate = 4;
  config.model.vgae.pairs = 16;
  config.model.vgae.feature_weight = 0.5;
  config.ranks.reduction = RankReduction::ordered;
  for (const VgaeEncoder encoder : {VgaeEncoder::convolution, VgaeEncoder::attention}) {
    Config here = config;
    here.model.vgae.encoder = encoder;
    const fs::path folder = scratch.path / std::to_string(static_cast<int>(encoder));
    const auto in = [&](const std::string& name) { return (folder / name).string(); };
    here.run.dir = in("plain");
    test::train_here(here);
    const auto plain = test::tensors_of(here);
    for (const int ranks : {2, 4}) {
      here.run.dir = in(std::to_string(ranks));
      test::train_on_ranks(ranks, here);
      CHECK(test::tensors_of(here) == plain);
    }
    here.recompute.mode = RecomputeMode::sqrt;
    here.recompute.check = true;
    here.recompute.include = {"encoder", "latent", "features"};
    here.run.dir = in("recomputed");
    test::train_here(here);
    CHECK(test::tensors_of(here) == plain);
  }
}

TEST_CASE("links of many graphs are learned, and graphs have scores") {
  const ScratchDirectory scratch;
  Config config = test::many_links_config(scratch.path, test::small_graphs(40));
  config.model.vgae.feature_weight = 0.5;
  test::train_here(config);
  const Evaluation test = evaluated(config, "test");
  CHECK(test.metrics[0].value > 0.6);  // 0.5 by chance
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const PredictedTable table = predict_table(predictor, {.split = "valid"});
  CHECK(table.rows == "graph");
  CHECK(table.column_names() == std::vector<std::string>{"score", "pairs", "divergence", "features"});
  REQUIRE(table.numbers.size() == 8);
  // A graph's score is its loss without sampling.
  Normalizers normalizers = predictor.trained().normalizers;
  double sum = 0.0;
  for (int64_t i = 0; i < 8; ++i) {
    const auto* row = table.values.data() + 4 * i;
    CHECK(row[0] == doctest::Approx(row[1] + row[2] + row[3]));
    sum += row[0];
    const Batch batch = training_batch(predictor.task(), runtime, DType::f32, "valid",
                                       {Sample{.trajectory = i}}, {}, normalizers);
    Tape tape(runtime, Tape::Mode::evaluate);
    const Variable loss = predictor.task().loss(tape, predictor.trained().model, batch, {}).sum;
    CHECK(*loss.value().data<double>() == doctest::Approx(row[0]).epsilon(1e-5));
  }
  Runtime one({.threads = 1});
  std::vector<Sample> all;
  for (int64_t i = 0; i < 8; ++i) all.push_back({.trajectory = i});
  const Batch batch = training_batch(predictor.task(), one, DType::f32, "valid", all, {}, normalizers);
  Tape tape(one, Tape::Mode::evaluate);
  CHECK(*predictor.task().loss(tape, predictor.trained().model, batch, {}).sum.value().data<double>() ==
        doctest::Approx(sum).epsilon(1e-5));
}

TEST_CASE("ranks share the graphs of an evaluation of links") {
  const ScratchDirectory scratch;
  Config config = test::many_links_config(scratch.path, test::small_graphs(40));
  config.model.vgae.feature_weight = 0.5;
  config.train.steps = 5;
  test::train_here(config);
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  const auto metrics_of = [](const Evaluation& result) {
    std::vector<double> values;
    for (const Metric& metric : result.metrics) values.push_back(metric.value);
    return values;
  };
  Runtime here({.threads = 1});
  const Predictor alone(here, checkpoint);
  const std::vector<double> expected = metrics_of(evaluate(alone, {.split = "test", .label = "label"}));
  CHECK(expected.size() == 7);
  test::on_ranks(3, [&](Ranks& ranks) {
    Runtime runtime({.threads = 1});
    const Predictor predictor(runtime, checkpoint);
    int64_t asked = 0;
    EvaluateOptions options{.split = "test", .label = "label", .ranks = &ranks};
    options.stop = [&] { return ++asked < 0; };
    CHECK(metrics_of(evaluate(predictor, options)) == expected);
    CHECK(asked == 3);  // once for each three of 8 graphs
    options.stop = [&] { return ranks.rank() == 1; };
    CHECK(evaluate(predictor, options).stopped);
  });
}

TEST_CASE("labels of graphs say how well scores tell anomalies") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::small_graphs(40);
  std::vector<int32_t> odd, kind(40, 2);
  for (int g = 0; g < 40; ++g) odd.push_back(g % 3 == 0 ? 1 : 0);
  arrays["graph:odd"] = test::npy<int32_t>("<i4", "(40,)", odd);
  arrays["graph:kind"] = test::npy<int32_t>("<i4", "(40,)", kind);
  Config config = test::many_links_config(scratch.path, arrays);
  config.train.steps = 5;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  const PredictedTable table = predict_table(predictor, {.split = "test"});
  // The share of pairs of an anomaly and another graph of which the anomaly has the higher score.
  double right = 0.0, pairs = 0.0;
  for (size_t a = 0; a < 8; ++a) {
    for (size_t b = 0; b < 8; ++b) {
      if (odd[32 + a] != 1 || odd[32 + b] != 0) continue;
      pairs += 1.0;
      const double anomaly = table.values[3 * a], other = table.values[3 * b];
      right += anomaly > other ? 1.0 : anomaly == other ? 0.5 : 0.0;  // equal graphs have equal scores
    }
  }
  const Evaluation result = evaluate(predictor, {.split = "test", .label = "odd"});
  REQUIRE(result.metrics.size() == 7);
  CHECK(result.metrics[5].name == "AUC of scores");
  CHECK(result.metrics[5].value == doctest::Approx(right / pairs));
  CHECK(result.metrics[6].name == "average precision of scores");
  CHECK(evaluate(predictor, {.split = "test"}).metrics.size() == 5);
  const auto refused = [&](const char* label) {
    return message_of([&] { evaluate(predictor, {.split = "test", .label = label}); });
  };
  CHECK(contains(refused("kind"), "graph 0 of split test] needed 1 for an anomaly, or 0, got 2"));
  CHECK(contains(refused("x"), "[--label] needed an i32 field of 1 component on graphs"));
  CHECK_FALSE(refused("none").empty());
}

TEST_CASE("batches of links have room for their edges and pairs") {
  const ScratchDirectory scratch;
  Config config = test::many_links_config(scratch.path, test::small_graphs(40));
  config.train.batch = TrainConfig().batch;
  config.train.batch_nodes = 40;
  config.model.vgae.pairs = 100000;
  const Task task = make_task(config, Dataset::open(config.data.path));
  const BatchShape most = largest_batch(config, task);
  BatchOrder order(config, task);
  for (int64_t batch = 0; batch < 40; ++batch) {
    std::vector<Sample> samples;
    for (int64_t at = order.begin_of(batch); at < order.begin_of(batch + 1); ++at)
      samples.push_back(order.sampler().at(at));
    const BatchShape shape = task.shape("train", samples);
    REQUIRE(shape.edges > 2 * shape.nodes);  // a ring's, and self edges
    REQUIRE(most.holds(shape));
  }
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch = training_batch(task, runtime, DType::f32, "train", {{0, 0, 0}}, {}, normalizers);
  CHECK(batch.tensor("pair_others").rows() == 4 * 8 * 9 / 2);  // the most that a graph of 8 nodes has
}

TEST_CASE("a model of one graph's links does not predict many graphs") {
  const ScratchDirectory scratch;
  Config config = test::many_links_config(scratch.path, test::small_graphs(40));
  config.train.steps = 1;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  const fs::path one = test::pack_groups(scratch.path);
  CHECK(contains(message_of([&] { Predictor(runtime, checkpoint, one.string()); }),
                 "needed data in which a sample is a graph, as in training, got the whole graph"));
}

TEST_CASE("what links cannot be learned from is refused") {
  const ScratchDirectory scratch;
  const Config config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  const auto error = [&](const auto& change) {
    Config other = config;
    change(other);
    return message_of([&] { make_task(other, Dataset::open(other.data.path)); });
  };
  CHECK(error([](Config&) {}).empty());
  CHECK(contains(error([](Config& c) { c.model.name = ModelName::gat; }),
                 "[model.name] needed \"vgae\" with task.name = \"link_reconstruction\", got \"gat\""));
  CHECK(contains(error([](Config& c) { c.data.link_valid = c.data.link_test = 0.5; }),
                 "needed a graph with links to train on, got none"));
  CHECK(contains(error([](Config& c) { c.train.noise = 0.1; }), "[train.noise]"));
  Config many = test::many_links_config(scratch.path, test::small_graphs(20));
  many.data.link_test = 0.2;
  CHECK(contains(message_of([&] { make_task(many, Dataset::open(many.data.path)); }),
                 "[data.link_valid] needed 0.05, and data.link_test = 0.1, the defaults"));
  const auto refused = [](const std::vector<std::string>& settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(contains(refused({"vgae.latent=8"}), "as only \"vgae\" reads vgae.latent"));
  CHECK(contains(refused({"data.link_seed=8"}), "which splits no links"));
  CHECK(contains(
      refused({"task.name=link_reconstruction", "data.targets=[]", "model.name=vgae", "vgae.heads=8"}),
      "[vgae.heads] needed 4 with vgae.encoder = \"convolution\", which has no heads, got "
      "8; fix: leave it out"));
  CHECK(contains(refused({"task.name=link_reconstruction", "data.targets=[]", "model.name=vgae",
                          "vgae.heads=3", "vgae.encoder=attention"}),
                 "[vgae.heads] needed a divisor of model.width = 128"));
  CHECK(contains(refused({"model.name=vgae"}),
                 "[model.name] needed another model with task.name = \"mesh_dynamics\""));
  CHECK(contains(refused({"task.name=link_reconstruction", "model.name=vgae", "data.targets=[\"x\"]"}),
                 "which reconstructs links"));
  Config none = config;
  none.data.link_test = 0.0;
  const Task task = make_task(none, Dataset::open(none.data.path));
  CHECK(task.samples("test").size() == 0);
  CHECK(contains(task.no_samples("test").what(), "needed linked pairs for test, got none"));
  CHECK(contains(message_of([&] { static_cast<void>(task.samples("other")); }),
                 "[split] needed train, valid or test, as links are divided, got \"other\""));
}

TEST_CASE("a device trains a vgae as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = test::link_config(scratch.path, test::pack_groups(scratch.path, 20));
  config.train.steps = 4;
  config.train.validate_every = 2;
  config.train.log_every = 1;
  config.model.vgae.feature_weight = 0.5;
  config.data.link_valid = config.data.link_test = 0.2;
  for (const int64_t pairs : {0, 16}) {
    config.model.vgae.pairs = pairs;
    config.model.vgae.encoder = pairs > 0 ? VgaeEncoder::attention : VgaeEncoder::convolution;
    config.run.dir = (scratch.path / ("cpu" + std::to_string(pairs))).string();
    const TrainResult cpu = test::train_here(config);
    const auto on_device = [&](const std::string& name, GraphsMode graphs) {
      Config here = config;
      here.run.dir = (scratch.path / (name + std::to_string(pairs))).string();
      here.run.device = "cuda";
      here.graphs = graphs;
      Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
      const TrainResult result = train(runtime, here, {});
      CHECK(result.state.last_valid_loss == doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
      return test::tensors_of(here);
    };
    const auto plain = on_device("plain", GraphsMode::off);
    const auto captured = on_device("captured", GraphsMode::capture);
    if (cuda_devices().front().name == "simulated") CHECK(captured == plain);
  }
}

}  // namespace
}  // namespace meshgrad
