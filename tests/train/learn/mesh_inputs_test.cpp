// SPDX-License-Identifier: Apache-2.0
// From frames to batches: targets, noise, masks and statistics by hand on three nodes; batching; the sampler.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/task/task.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "support.h"
#include "train/scratch_directory.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::message_of;

// Three nodes: normal, inflow, outflow. Fields p (1 component) and v (2), 5 frames.
const std::vector<float> kPositions{0, 0, 3, 0, 0, 4};
const std::vector<int32_t> kTypes{0, 4, 5};
const std::vector<int32_t> kCells{0, 1, 2};
constexpr int64_t kFrames = 5;

float pressure(int64_t t, int64_t node) { return static_cast<float>(t * t + 10 * node); }
float velocity(int64_t t, int64_t node, int64_t c) {
  const int64_t sign = c == 0 ? 1 : -2;
  return static_cast<float>(sign * (t * t * t + t * node) + 7 * c);
}

// A second mesh, of two triangles, so that a union has something to shift.
const std::vector<float> kSquare{0, 0, 1, 0, 1, 1, 0, 1};
const std::vector<int32_t> kSquareTypes{6, 0, 0, 8};
const std::vector<int32_t> kSquareCells{0, 1, 2, 0, 2, 3};

struct Mesh {
  const std::vector<float>& positions;
  const std::vector<int32_t>& types;
  const std::vector<int32_t>& cells;
};
const Mesh kTriangleMesh{kPositions, kTypes, kCells};
const Mesh kSquareMesh{kSquare, kSquareTypes, kSquareCells};

int64_t add_mesh(PackedFileWriter& writer, const Mesh& mesh) {
  const PackedMesh packed{2, CellKind::triangle, mesh.positions, mesh.types, mesh.cells};
  const auto nodes = static_cast<int64_t>(mesh.types.size());
  return writer.add_mesh(PackedFileWriter::mesh_key(packed, {}), packed,
                         edges_from_cells(mesh.cells, CellKind::triangle, nodes, "mesh"));
}

void add_trajectory(PackedFileWriter& writer, const std::string& split, int64_t mesh, int64_t nodes,
                    int64_t frames, DataStatistics* statistics) {
  std::vector<float> p, v;
  for (int64_t t = 0; t < frames; ++t) {
    for (int64_t node = 0; node < nodes; ++node) {
      p.push_back(pressure(t, node));
      for (int64_t c = 0; c < 2; ++c) v.push_back(velocity(t, node, c));
    }
  }
  writer.add_trajectory({split, split, mesh, frames, 0, 0.5, {p, v}});
  if (statistics == nullptr) return;
  statistics->fields[0].add(p, kTypes, frames);
  statistics->fields[1].add(v, kTypes, frames);
}

/// train: the triangle for 5 frames; valid: the square for 3 and the triangle for 2.
Dataset hand_made(const fs::path& folder) {
  PackedFileWriter writer(folder / "hand.mgd", 2, {{"p", 1, true, ""}, {"v", 2, true, "m/s"}});
  const int64_t triangle = add_mesh(writer, kTriangleMesh);
  const int64_t square = add_mesh(writer, kSquareMesh);
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(2)};
  statistics.edges.assign(3, Moments{6, 0.5, 24});
  statistics.node_type_counts = {5, 0, 0, 0, 5, 5, 0, 0, 0};
  add_trajectory(writer, "train", triangle, 3, kFrames, &statistics);
  add_trajectory(writer, "valid", square, 4, 3, nullptr);
  add_trajectory(writer, "valid", triangle, 3, 2, nullptr);
  writer.finish({"train", "valid"}, statistics, "train", "by hand");
  return Dataset::open(folder / "hand.mgd");
}

DataConfig hand_config(Prediction predict = Prediction::change) {
  DataConfig config;
  config.inputs = {"p", "v"};
  config.targets = {"v"};
  config.predict = predict;
  config.predicted_types = {0, 5};
  config.noise_types = {0, 5};
  return config;
}

/// Normalisers that change nothing, so that a batch shows physical values.
Normalizers identity(const MeshDynamics& features) {
  const auto plain = [](int64_t width) {
    const auto n = static_cast<size_t>(width);
    return Normalizer::fixed(std::vector<double>(n, 0.0), std::vector<double>(n, 1.0));
  };
  return {plain(features.mesh().fields.node_inputs), plain(features.mesh().sizes.edge_inputs.front()),
          plain(features.mesh().fields.outputs)};
}

struct DataFixture {
  test::ScratchDirectory scratch;
  Dataset dataset = hand_made(scratch.path);
  Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};
};

Batch batch_of(DataFixture& f, const MeshDynamics& features, const std::vector<Sample>& samples,
               const NoiseOptions& noise, const std::string& split = "train") {
  Normalizers none = identity(features);
  return training_batch(Task(features), f.runtime, DType::f64, split, samples, noise, none, false);
}

TEST_CASE("inputs are fields in order, then the one-hot type") {
  DataFixture f;
  const MeshDynamics features(f.dataset, hand_config());
  REQUIRE(features.mesh().fields.node_inputs == 1 + 2 + 9);
  REQUIRE(features.mesh().fields.outputs == 2);
  const Batch batch = batch_of(f, features, {{0, 2, 0}}, {});
  const auto x = batch.graph.node_features.values<double>();
  for (size_t node = 0; node < 3; ++node) {
    const auto n = static_cast<int64_t>(node);
    CHECK(x[node * 12] == pressure(2, n));
    CHECK(x[node * 12 + 1] == velocity(2, n, 0));
    CHECK(x[node * 12 + 2] == velocity(2, n, 1));
    for (int32_t type = 0; type < 9; ++type)
      CHECK(x[node * 12 + 3 + static_cast<size_t>(type)] == (kTypes[node] == type ? 1.0 : 0.0));
  }
  // Sorted by (receiver, sender): 1->0, 2->0, 0->1, 2->1, 0->2, 1->2; sender minus receiver, then the length.
  const std::vector<double> edges{3, 0, 3, 0, 4, 4, -3, 0, 3, -3, 4, 5, 0, -4, 4, 3, -4, 5};
  const auto actual = batch.graph.edge_sets[0].features.values<double>();
  CHECK(std::equal(edges.begin(), edges.end(), actual.begin(), actual.end()));
  const auto mask = batch.tensor("mask").values<uint8_t>();
  CHECK(std::vector<int>(mask.begin(), mask.end()) == std::vector<int>{1, 0, 1});
}

TEST_CASE("several targets lie side by side in the order of the config") {
  DataFixture f;
  DataConfig config = hand_config();
  config.targets = {"v", "p"};
  const MeshDynamics features(f.dataset, config);
  CHECK(features.mesh().fields.target_names() == "v, p");
  const auto values = features.mesh().fields.target_values(f.dataset.trajectory("train", 0), 3);
  REQUIRE(values.size() == 9);
  CHECK(values[3] == velocity(3, 1, 0));
  CHECK(values[4] == velocity(3, 1, 1));
  CHECK(values[5] == pressure(3, 1));
}

/// The noise of a sample on v: zero where the type takes none.
double noise_on(const DataFixture& f, const NoiseOptions& noise, const Sample& sample, size_t node,
                size_t c) {
  if (kTypes[node] == 4) return 0.0;
  const uint64_t id = f.dataset.trajectory("train", 0).sample_id(sample.frame);
  const double draw =
      training_noise(noise.seed, sample.visit, id, static_cast<uint32_t>(node), static_cast<uint32_t>(c));
  return noise.deviation * draw;
}

TEST_CASE("the change and its noise: input + n, target - gamma n") {
  DataFixture f;
  const MeshDynamics features(f.dataset, hand_config());
  const Sample sample{0, 2, 4};
  for (const double gamma : {1.0, 0.25, 0.0}) {
    const NoiseOptions noise{0.5, gamma, 11};
    const Batch batch = batch_of(f, features, {sample}, noise);
    for (size_t i = 0; i < 6; ++i) {
      const size_t node = i / 2, c = i % 2;
      const auto n = static_cast<int64_t>(node), k = static_cast<int64_t>(c);
      const double added = noise_on(f, noise, sample, node, c);
      const double change = velocity(3, n, k) - velocity(2, n, k);
      CHECK(batch.graph.node_features.values<double>()[node * 12 + 1 + c] ==
            doctest::Approx(velocity(2, n, k) + added).epsilon(1e-6));
      CHECK(batch.tensor("target").values<double>()[i] ==
            doctest::Approx(change - gamma * added).epsilon(1e-5));
      CHECK(batch.graph.node_features.values<double>()[node * 12] ==
            pressure(2, n));  // not predicted: no noise
    }
  }
  CHECK(noise_on(f, {0.5, 1, 11}, sample, 0, 0) != noise_on(f, {0.5, 1, 11}, {0, 2, 5}, 0, 0));
}

TEST_CASE("noise of each field has its own deviation") {
  DataFixture f;
  DataConfig config = hand_config();
  config.targets = {"p", "v"};
  const MeshDynamics features(f.dataset, config);
  const Sample sample{0, 2, 4};
  const Batch clean = batch_of(f, features, {sample}, {});
  NoiseOptions noise{.deviation = 1.0, .gamma = 0.5, .seed = 11};
  const Batch all = batch_of(f, features, {sample}, noise);
  noise.deviation = 0.0;
  noise.fields = {{"p", 3.0}};
  const Batch one = batch_of(f, features, {sample}, noise);
  noise.scale = 0.5;
  const Batch half = batch_of(f, features, {sample}, noise);
  const auto added = [&](const Batch& batch, int64_t node, int64_t column) {
    const int64_t at = node * features.mesh().fields.node_inputs + column;
    return batch.graph.node_features.data<double>()[at] - clean.graph.node_features.data<double>()[at];
  };
  for (int64_t node = 0; node < 3; ++node) {
    CHECK(added(one, node, 0) == doctest::Approx(3.0 * added(all, node, 0)).epsilon(1e-5));
    CHECK(added(half, node, 0) == doctest::Approx(1.5 * added(all, node, 0)).epsilon(1e-5));
    for (const int64_t column : {1, 2}) CHECK(added(one, node, column) == 0.0);
  }
  CHECK(added(all, 0, 0) != 0.0);
  CHECK(added(all, 0, 1) != 0.0);

  noise.scale = 1.0;
  const Normalizer noisy = features.mesh().dataset_normalizers(noise).targets;
  const Normalizer quiet = features.mesh().dataset_normalizers({}).targets;
  CHECK(noisy.standard_deviation(0) == doctest::Approx(std::hypot(quiet.standard_deviation(0), 1.5)));
  CHECK(noisy.standard_deviation(1) == quiet.standard_deviation(1));
}

TEST_CASE("a second change takes (1 + gamma) of the noise") {
  DataFixture f;
  const MeshDynamics features(f.dataset, hand_config(Prediction::second_change));
  const Sample sample{0, 3, 0};
  const NoiseOptions noise{0.5, 0.25, 3};
  const Batch batch = batch_of(f, features, {sample}, noise);
  for (size_t i = 0; i < 6; ++i) {
    const size_t node = i / 2, c = i % 2;
    const auto n = static_cast<int64_t>(node), k = static_cast<int64_t>(c);
    const double added = noise_on(f, noise, sample, node, c);
    const double second = velocity(4, n, k) - 2 * velocity(3, n, k) + velocity(2, n, k);
    CHECK(batch.graph.node_features.values<double>()[node * 12 + 1 + c] ==
          doctest::Approx(velocity(3, n, k) - velocity(2, n, k) + added).epsilon(1e-6));
    CHECK(batch.tensor("target").values<double>()[i] == doctest::Approx(second - 1.25 * added).epsilon(1e-5));
  }
}

/// Mean and standard deviation, in two passes.
std::pair<double, double> two_pass(const std::vector<double>& values) {
  double mean = 0.0, squares = 0.0;
  for (const double v : values) mean += v / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / static_cast<double>(values.size()))};
}

TEST_CASE("normalisers of the data set include the noise") {
  DataFixture f;
  const auto change = [](int64_t t, int64_t n, int64_t c) {
    return velocity(t + 1, n, c) - velocity(t, n, c);
  };
  std::vector<double> all_p, changes, seconds;
  for (int64_t t = 0; t < kFrames; ++t) {
    for (int64_t n = 0; n < 3; ++n) all_p.push_back(static_cast<double>(pressure(t, n)));
    for (const int64_t n : {0, 2}) {
      if (t + 1 < kFrames) changes.push_back(static_cast<double>(change(t, n, 1)));
      if (t + 2 < kFrames) seconds.push_back(static_cast<double>(change(t + 1, n, 1) - change(t, n, 1)));
    }
  }
  const NoiseOptions noise{2.0, 0.5, 0};
  const Normalizers first = MeshDynamics(f.dataset, hand_config()).mesh().dataset_normalizers(noise);
  CHECK(first.nodes.mean(0) == doctest::Approx(two_pass(all_p).first));
  CHECK(first.nodes.standard_deviation(0) == doctest::Approx(two_pass(all_p).second));
  CHECK(first.nodes.mean(5) == 0.0);
  CHECK(first.nodes.standard_deviation(5) == 1.0);
  CHECK(first.edges.mean(1) == 0.5);
  CHECK(first.edges.standard_deviation(1) == doctest::Approx(2.0));
  CHECK(first.targets.mean(1) == doctest::Approx(two_pass(changes).first));
  CHECK(first.targets.standard_deviation(1) == doctest::Approx(std::hypot(two_pass(changes).second, 1.0)));

  const Normalizers second =
      MeshDynamics(f.dataset, hand_config(Prediction::second_change)).mesh().dataset_normalizers(noise);
  CHECK(second.targets.mean(1) == doctest::Approx(two_pass(seconds).first));
  CHECK(second.targets.standard_deviation(1) == doctest::Approx(std::hypot(two_pass(seconds).second, 3.0)));
}

TEST_CASE("a prediction is in the field's unit on predicted nodes") {
  DataFixture f;
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const MeshDynamics features(f.dataset, hand_config(predict));
    const TrajectoryView trajectory = f.dataset.trajectory("train", 0);
    const Normalizers normalizers = features.mesh().dataset_normalizers({});
    Normalizers same = normalizers;
    const Batch batch =
        training_batch(Task(features), f.runtime, DType::f64, "train", {{0, 2, 0}}, {}, same, false);
    FieldState state = features.mesh().state_at(trajectory, 2);
    SampleScratch scratch;
    features.mesh().advance(trajectory.mesh(), batch.tensor("target"), normalizers, scratch, state);
    const std::vector<float>& next = state.current;
    for (size_t i = 0; i < 6; ++i) {
      const auto n = static_cast<int64_t>(i / 2), c = static_cast<int64_t>(i % 2);
      CHECK(next[i] == doctest::Approx(velocity(n == 1 ? 2 : 3, n, c)));
    }
  }
}

TEST_CASE("a union of meshes is the graph of their shifted edges") {
  DataFixture f;
  const std::vector<MeshView> meshes{f.dataset.trajectory("valid", 0).mesh(),
                                     f.dataset.trajectory("train", 0).mesh(),
                                     f.dataset.trajectory("valid", 0).mesh()};
  std::vector<int32_t> senders, receivers;
  int32_t shift = 0;
  for (const MeshView& mesh : meshes) {
    for (const int32_t node : mesh.senders) senders.push_back(node + shift);
    for (const int32_t node : mesh.receivers) receivers.push_back(node + shift);
    shift += static_cast<int32_t>(mesh.nodes);
  }
  int64_t edges = 0;
  for (const MeshView& mesh : meshes) edges += mesh.edges;
  const BatchLayout layout({.node_inputs = 1, .edge_inputs = {1}, .edge_set_names = {"mesh"}, .outputs = 1},
                           {shift, edges}, DType::f32, BatchLayout::Sizes::exact);
  const Batch batch = layout.batch(host_tensor({layout.bytes()}, DType::u8).storage());
  const Graph ours = batch.graph.edge_sets.front().graph;
  Dataset::MeshSizes all;
  for (const MeshView& mesh : meshes) all = append_to_union(ours, mesh, all);
  CHECK(all.nodes == shift);
  CHECK(all.edges == edges);
  const Graph built = build_graph(f.runtime, shift, senders, receivers);
  check_graph(ours);
  CHECK(ours.nodes == 11);
  CHECK(ours.owned_nodes == 11);
  CHECK(ours.edges == built.edges);
  for (const auto part : {&Graph::senders, &Graph::receivers, &Graph::receiver_offsets,
                          &Graph::sender_offsets, &Graph::sender_order}) {
    const auto a = (ours.*part).values<int32_t>();
    const auto b = (built.*part).values<int32_t>();
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
}

TEST_CASE("a batch is its samples one after the other") {
  DataFixture f;
  const MeshDynamics features(f.dataset, hand_config());
  const NoiseOptions noise{0.5, 1.0, 1};
  const std::vector<Sample> samples{{0, 1, 2}, {1, 0, 0}};
  const Batch both = batch_of(f, features, samples, noise, "valid");
  CHECK_FALSE(both.graph.graph_starts.defined());
  const auto check_part = [&](const Tensor& whole, const Tensor& part, size_t first) {
    const auto a = whole.values<double>();
    const auto b = part.values<double>();
    CHECK(std::equal(b.begin(), b.end(), a.begin() + static_cast<std::ptrdiff_t>(first)));
  };
  size_t nodes = 0, edges = 0;
  for (const Sample& sample : samples) {
    const Batch one = batch_of(f, features, {sample}, noise, "valid");
    check_part(both.graph.node_features, one.graph.node_features, nodes * 12);
    check_part(both.tensor("target"), one.tensor("target"), nodes * 2);
    check_part(both.graph.edge_sets[0].features, one.graph.edge_sets[0].features, edges * 3);
    nodes += static_cast<size_t>(one.graph.nodes);
    edges += static_cast<size_t>(one.graph.edge_sets[0].graph.edges);
  }
  CHECK(both.graph.nodes == static_cast<int64_t>(nodes));
}

TEST_CASE("an online normaliser equals two passes") {
  std::mt19937 random(8);
  std::normal_distribution<double> draw(1e6, 1e-2);  // where a sum of squares would cancel
  Normalizer normalizer(3);
  std::vector<std::vector<double>> columns(3);
  for (const size_t rows : {1, 0, 7, 100, 33}) {
    std::vector<double> batch;
    for (size_t i = 0; i < rows; ++i) {
      const double values[] = {draw(random), 42.0, static_cast<double>(random() % 7)};
      for (size_t c = 0; c < 3; ++c) columns[c].push_back(values[c]), batch.push_back(values[c]);
    }
    normalizer.accumulate(std::span<const double>(batch));
  }
  for (const size_t c : {size_t{0}, size_t{2}}) {
    const auto [mean, deviation] = two_pass(columns[c]);
    CHECK(normalizer.mean(c) == doctest::Approx(mean).epsilon(1e-14));
    CHECK(normalizer.standard_deviation(c) == doctest::Approx(deviation).epsilon(1e-6));
  }
  CHECK(normalizer.mean(1) == 42.0);
  CHECK(normalizer.standard_deviation(1) == 1.0);
  std::vector<double> row{1e6, 42.0, 3.0};
  normalizer.normalize(std::span<double>(row));
  CHECK(row[1] == 0.0);
  normalizer.denormalize(std::span<double>(row));
  CHECK(row[0] == doctest::Approx(1e6));
  CHECK(row[1] == 42.0);
}

TEST_CASE("a learning batch adds its rows before it is normalised") {
  DataFixture f;
  const MeshDynamics features(f.dataset, hand_config());
  Normalizers learned = features.mesh().online_normalizers();
  std::vector<double> changes;
  for (const int64_t t : {0, 2}) {
    training_batch(Task(features), f.runtime, DType::f64, "train", {{0, t, 0}}, {}, learned, true);
    for (int64_t n = 0; n < 3; ++n)
      changes.push_back(static_cast<double>(velocity(t + 1, n, 0) - velocity(t, n, 0)));
  }
  CHECK(learned.targets.mean(0) == doctest::Approx(two_pass(changes).first));
  CHECK(learned.targets.standard_deviation(0) == doctest::Approx(two_pass(changes).second));
  CHECK(learned.nodes.count() == 6.0);
  CHECK(learned.edges.count() == 12.0);
  training_batch(Task(features), f.runtime, DType::f64, "train", {{0, 1, 0}}, {}, learned, false);
  CHECK(learned.nodes.count() == 6.0);
}

TEST_CASE("fields and types that do not exist are named") {
  DataFixture f;
  DataConfig config = hand_config();
  config.inputs = {"speed"};
  CHECK(test::contains(message_of([&] { MeshDynamics(f.dataset, config); }), "speed"));
  config = hand_config();
  config.node_types = 5;  // the data has type 5
  CHECK(test::contains(message_of([&] { MeshDynamics(f.dataset, config); }), "[data.node_types]"));
}

TEST_CASE("every pass of the sampler visits every frame once") {
  DataFixture f;
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const Sampler sampler(Task(MeshDynamics(f.dataset, hand_config(predict))), "valid", 5);
    const int64_t first = predict == Prediction::change ? 0 : 1;
    CHECK(sampler.samples() == (predict == Prediction::change ? 2 + 1 : 1));
    for (int64_t pass = 0; pass < 4; ++pass) {
      std::set<std::pair<int64_t, int64_t>> seen;
      for (int64_t i = 0; i < sampler.samples(); ++i) {
        const Sample sample = sampler.at(pass * sampler.samples() + i);
        CHECK(sample.visit == pass);
        CHECK(sample.frame >= first);
        CHECK(sample.frame + 1 < f.dataset.trajectory("valid", sample.trajectory).frames());
        seen.insert({sample.trajectory, sample.frame});
      }
      CHECK(static_cast<int64_t>(seen.size()) == sampler.samples());
    }
  }
  const Task task(MeshDynamics(f.dataset, hand_config()));
  const Sampler train(task, "train", 5);
  std::set<std::vector<int64_t>> orders;
  for (int64_t pass = 0; pass < 20; ++pass) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 4; ++i) order.push_back(train.at(pass * 4 + i).frame);
    orders.insert(order);
  }
  CHECK(orders.size() > 5);
  CHECK(test::contains(message_of([&] { Sampler(task, "tset", 0); }), "tset"));
}

TEST_CASE("shuffled is a permutation of any count") {
  for (uint64_t count = 1; count <= 200; ++count) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < count; ++i) seen.insert(shuffled(1, count % 3, i, count));
    CAPTURE(count);
    CHECK(seen.size() == count);
    CHECK(*seen.rbegin() == count - 1);
  }
}

}  // namespace
}  // namespace meshgrad
