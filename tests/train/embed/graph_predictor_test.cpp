// SPDX-License-Identifier: Apache-2.0
// Classes of nodes, and numbers and classes of graphs, predicted in memory: as meshgrad predict has them of a
// packed file, in C++ and C, and what is refused.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/graph_predictor.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <cmath>

#include "support.h"
#include "train/graph_case.h"
#include "train/link_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

fs::path trained(const Config& config) {
  test::train_here(config);
  return fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
}

/// Graphs of a split side by side.
struct SideBySide {
  std::vector<double> inputs;
  std::vector<int64_t> edges, starts{0};

  SideBySide() = default;
  SideBySide(const Dataset& data, std::string_view split) {
    for (int64_t i = 0; i < data.size(split); ++i) add(data.trajectory(split, i));
  }
  void add(const TrajectoryView& graph) {
    const MeshView& mesh = graph.mesh();
    for (size_t e = 0; e < mesh.senders.size(); ++e) {
      edges.push_back(starts.back() + mesh.senders[e]);
      edges.push_back(starts.back() + mesh.receivers[e]);
    }
    for (const float value : graph.field("x").frame(0)) inputs.push_back(static_cast<double>(value));
    starts.push_back(starts.back() + mesh.nodes);
  }
  GraphArrays arrays() const {
    return {.inputs = inputs, .edges = edges, .directed = true, .starts = starts};
  }
};

TEST_CASE("graphs in memory are predicted as those of a packed file") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(40));
  for (const TaskName name : {TaskName::graph_regression, TaskName::graph_classification}) {
    Config config = test::graph_config(scratch.path, data, name);
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    const fs::path checkpoint = trained(config);
    Runtime runtime({.threads = 1});
    const Predictor packed(runtime, checkpoint);
    const PredictedTable table = predict_table(packed, {.split = "test"});
    GraphPredictor predictor(runtime, checkpoint);
    CHECK(predictor.per_graph());
    CHECK(predictor.classes() == (name == TaskName::graph_classification));
    CHECK(predictor.columns() == (predictor.classes() ? 2 : 1));
    CHECK(predictor.node_columns() == 1);
    CHECK(predictor.graph_columns() == 0);
    CHECK(predictor.dim() == 0);
    const SideBySide graphs(packed.dataset(), "test");
    std::vector<double> together(table.values.size());
    predictor.predict(graphs.arrays(), together);
    const auto width = static_cast<size_t>(predictor.columns());
    for (size_t i = 0; i < together.size(); ++i) CHECK(together[i] == doctest::Approx(table.values[i]));
    for (int64_t i = 0; i < std::ssize(table.numbers); ++i) {
      SideBySide one;
      one.add(packed.dataset().trajectory("test", i));
      std::vector<double> alone(width);
      GraphArrays arrays = one.arrays();
      arrays.starts = {};
      predictor.predict(arrays, alone);
      for (size_t c = 0; c < width; ++c)
        CHECK(alone[c] == doctest::Approx(together[static_cast<size_t>(i) * width + c]));
    }
  }
}

TEST_CASE("classes of nodes in memory are those of a packed file") {
  const ScratchDirectory scratch;
  const fs::path checkpoint = trained(test::class_config(scratch.path, test::pack_rings(scratch.path)));
  Runtime runtime({.threads = 1});
  const Predictor packed(runtime, checkpoint);
  const PredictedTable table = predict_table(packed, {.split = "test"});
  GraphPredictor predictor(runtime, checkpoint);
  CHECK_FALSE(predictor.per_graph());
  CHECK(predictor.node_columns() == 2);
  SideBySide graph;
  graph.add(packed.dataset().trajectory(0));
  std::vector<double> values(2 * static_cast<size_t>(graph.starts.back()));
  predictor.predict(graph.arrays(), values);
  REQUIRE(table.numbers.size() > 3);
  for (size_t i = 0; i < table.numbers.size(); ++i)
    for (size_t c = 0; c < 2; ++c)
      CHECK(values[2 * static_cast<size_t>(table.numbers[i]) + c] ==
            doctest::Approx(table.values[2 * i + c]));
}

TEST_CASE("data whose edges have directions are told from others") {
  const ScratchDirectory scratch;
  Config config =
      test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(20), false),
                         TaskName::graph_regression);
  config.train.steps = 1;
  const fs::path checkpoint = trained(config);
  Runtime runtime({.threads = 1});
  GraphPredictor predictor(runtime, checkpoint);
  const std::vector<float> inputs{1, 0, 1};
  const std::vector<int32_t> once{0, 1, 1, 2, 0, 2}, both{0, 1, 1, 0, 1, 2, 2, 1, 2, 0, 0, 2};
  std::vector<double> values(1), again(1);
  predictor.predict({.inputs = inputs, .edges = once}, values);
  predictor.predict({.inputs = inputs, .edges = both, .directed = false}, again);
  CHECK(values == again);
  CHECK(contains(
      message_of([&] { predictor.predict({.inputs = inputs, .edges = both, .directed = true}, again); }),
      "[graphs: directed] needed edges without directions, as in training, got directed edges"));
  const fs::path other = test::pack_graphs(scratch.path, test::small_graphs(20), true);
  CHECK(contains(
      message_of([&] { Predictor(runtime, checkpoint, other.string()); }),
      "last.safetensors was trained on, got directed edges; fix: convert the data with --undirected"));
}

TEST_CASE("fields on graphs are read") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::small_graphs(20);
  std::vector<float> load;
  for (int i = 0; i < 20; ++i) load.push_back(static_cast<float>(i % 3));
  arrays["graph:load"] = test::npy<float>("<f4", "(20,)", load);
  Config config =
      test::graph_config(scratch.path, test::pack_graphs(scratch.path, arrays), TaskName::graph_regression);
  config.data.inputs = {"load", "x"};
  config.train.steps = 10;
  const fs::path checkpoint = trained(config);
  Runtime runtime({.threads = 1});
  const Predictor packed(runtime, checkpoint);
  const PredictedTable table = predict_table(packed, {.split = "test"});
  GraphPredictor predictor(runtime, checkpoint);
  CHECK(predictor.graph_columns() == 1);
  const SideBySide graphs(packed.dataset(), "test");
  GraphArrays given = graphs.arrays();
  const std::vector<float> of_test(load.end() - 4, load.end());
  given.graph_inputs = of_test;
  std::vector<double> values(4);
  predictor.predict(given, values);
  for (size_t i = 0; i < 4; ++i) CHECK(values[i] == doctest::Approx(table.values[i]));
  given.directed = std::nullopt;  // as the checkpoint says
  std::vector<double> again(4);
  predictor.predict(given, again);
  CHECK(again == values);
  given.directed = false;
  CHECK(contains(message_of([&] { predictor.predict(given, again); }),
                 "[graphs: directed] needed directed edges, as in training, got edges without directions"));
  given.directed = true;
  given.graph_inputs = {};
  CHECK(contains(message_of([&] { predictor.predict(given, values); }),
                 "[graphs: graph_inputs] needed [4, 1] numbers, got 0"));
}

TEST_CASE("fields on edges and identifiers are read as packed") {
  for (const bool directed : {true, false}) {
    const ScratchDirectory scratch;
    test::NpzArrays arrays = test::rich_graphs(20);
    Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, arrays, directed),
                                       TaskName::graph_regression);
    config.data.inputs = {};
    config.data.embed = {"id", "kind"};
    config.data.edge_inputs = {"e", "pair"};
    config.train.steps = 20;
    const fs::path checkpoint = trained(config);
    Runtime runtime({.threads = 1});
    const Predictor packed(runtime, checkpoint);
    const PredictedTable table = predict_table(packed, {.split = "test"});
    GraphPredictor predictor(runtime, checkpoint);
    CHECK(predictor.node_columns() == 0);
    CHECK(predictor.edge_columns() == 3);
    CHECK(predictor.identifiers().size() == 2);
    SideBySide graphs(packed.dataset(), "test");
    std::vector<float> rows;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < packed.dataset().size("test"); ++i) {
      const TrajectoryView graph = packed.dataset().trajectory("test", i);
      const auto e = graph.field("e").frame(0), pair = graph.field("pair").frame(0);
      for (size_t edge = 0; edge < e.size(); ++edge)
        rows.insert(rows.end(), {e[edge], pair[2 * edge], pair[2 * edge + 1]});
      const auto id = graph.field("id").frame_of<int32_t>(0), kind = graph.field("kind").frame_of<int32_t>(0);
      for (size_t node = 0; node < id.size(); ++node) ids.insert(ids.end(), {id[node], kind[node]});
    }
    // Edges in another order have their values with them.
    std::vector<int64_t> edges;
    std::vector<float> values_of_edges;
    for (size_t at = graphs.edges.size() / 2; at-- > 0;) {
      edges.insert(edges.end(), {graphs.edges[2 * at], graphs.edges[2 * at + 1]});
      values_of_edges.insert(values_of_edges.end(), rows.begin() + static_cast<std::ptrdiff_t>(3 * at),
                             rows.begin() + static_cast<std::ptrdiff_t>(3 * at + 3));
    }
    GraphArrays given{.edges = edges,
                      .directed = directed,
                      .starts = graphs.starts,
                      .identifiers = ids,
                      .edge_inputs = values_of_edges};
    std::vector<double> values(table.values.size());
    predictor.predict(given, values);
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(table.values[i]));
    const auto refused = [&] { return message_of([&] { predictor.predict(given, values); }); };
    given.edge_inputs = rows;
    CHECK(refused().empty());
    CHECK(values[0] != doctest::Approx(table.values[0]));
    given.edge_inputs = {};
    CHECK(contains(refused(), "[graphs: edge_inputs] needed ["));
    given.edge_inputs = rows;
    given.identifiers = graphs.starts;
    CHECK(contains(refused(), "[graphs: starts, row"));
    given.identifiers = ids;
    edges[0] = edges[2];
    edges[1] = edges[3];
    CHECK((directed ? refused().empty()
                    : contains(refused(), "[graphs: edges] needed each edge of the mesh, at most once")));
  }
}

TEST_CASE("graphs in memory need what tells their nodes") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::small_graphs(20);
  arrays["graph:load"] = test::npy<float>("<f4", "(20,)", std::vector<float>(20, 1.0F));
  Config config =
      test::graph_config(scratch.path, test::pack_graphs(scratch.path, arrays), TaskName::graph_regression);
  config.data.inputs = {"load"};
  config.train.steps = 1;
  Runtime runtime({.threads = 1});
  GraphPredictor predictor(runtime, trained(config));
  const std::vector<float> load{1};
  const std::vector<int32_t> edges{0, 1, 1, 2}, types{0, 0, 0}, starts{0, 3};
  GraphArrays given{.edges = edges, .directed = true, .graph_inputs = load};
  std::vector<double> values(1), again(1);
  CHECK(contains(message_of([&] { predictor.predict(given, values); }),
                 "[graphs: node_type] needed [nodes] numbers"));
  given.node_type = types;
  predictor.predict(given, values);
  given.node_type = {};
  given.starts = starts;
  predictor.predict(given, again);
  CHECK(values == again);
}

TEST_CASE("graphs in memory that do not fit are refused") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(20)),
                                     TaskName::graph_regression);
  config.train.steps = 1;
  const fs::path checkpoint = trained(config);
  Runtime runtime({.threads = 1});
  GraphPredictor predictor(runtime, checkpoint);
  const std::vector<double> inputs{1, 0, 1, 1};
  const std::vector<int32_t> edges{0, 1, 2, 3}, starts{0, 2, 4};
  std::vector<double> values(2);
  const auto refused = [&](const auto& spoil) {
    GraphArrays arrays{.inputs = inputs, .edges = edges, .directed = true, .starts = starts};
    spoil(arrays);
    return message_of([&] { predictor.predict(arrays, values); });
  };
  CHECK(refused([](GraphArrays&) {}).empty());
  const std::vector<int32_t> across{0, 1, 1, 2}, outside{0, 1, 2, 4}, descending{0, 3, 2, 4}, cut{0, 2, 3};
  CHECK(contains(refused([&](GraphArrays& a) { a.edges = across; }),
                 "[graphs: edges, row 1] needed two nodes of one graph, numbered from 0 to 3, got 1 and 2"));
  CHECK(contains(refused([&](GraphArrays& a) { a.edges = outside; }), "got 2 and 4"));
  CHECK(contains(refused([&](GraphArrays& a) { a.first_node = 1; }), "[graphs: starts, row 0]"));
  CHECK(contains(refused([&](GraphArrays& a) { a.starts = descending; }), "[graphs: starts, row 2]"));
  CHECK(contains(refused([&](GraphArrays& a) { a.starts = cut; }), "[graphs: starts, row 2]"));
  CHECK(contains(refused([&](GraphArrays& a) { a.starts = {}; }), "[graphs: values] needed [1, 1] numbers"));
  CHECK(contains(refused([&](GraphArrays& a) { a.positions = inputs; }), "[graphs: positions]"));
  const std::vector<double> bad{1, 0, std::nan(""), 1};
  CHECK(contains(refused([&](GraphArrays& a) { a.inputs = bad; }),
                 "[graphs: field x, row 2] needed finite numbers, got nan"));
  config = test::link_config(scratch.path, test::pack_groups(scratch.path));
  config.run.dir += "_links";
  config.train.steps = 1;
  CHECK(contains(message_of([&] { GraphPredictor(runtime, trained(config)); }),
                 "got \"link_reconstruction\"; fix: use meshgrad predict"));
  config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.run.dir += "_waves";
  config.train.steps = 1;
  const fs::path of_meshes = trained(config);
  CHECK(contains(message_of([&] { GraphPredictor(runtime, of_meshes); }),
                 "[task.name] needed a checkpoint of node_classification, graph_classification or "
                 "graph_regression, got \"mesh_dynamics\""));
}

TEST_CASE("C predicts graphs as C++ does") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::rich_graphs(20)),
                                     TaskName::graph_classification);
  config.data.embed = {"id"};
  config.data.edge_inputs = {"e"};
  config.train.steps = 10;
  const std::string checkpoint = trained(config).string();
  std::vector<float> inputs{1, 0, 1, 1, 0, 1, 1}, edge_inputs{1, 0, 2, 3, 1, 5};
  const std::vector<int64_t> ids{1, 4, 2, 9, 3, 3, 50};
  const std::vector<int32_t> edges{1, 2, 2, 3, 3, 1, 4, 5, 5, 6, 6, 7}, starts{1, 4, 8};
  Runtime runtime({.threads = 1});
  std::vector<float> expected(4);
  GraphPredictor(runtime, checkpoint)
      .predict({.inputs = inputs,
                .edges = edges,
                .directed = true,
                .first_node = 1,
                .starts = starts,
                .identifiers = ids,
                .edge_inputs = edge_inputs},
               expected);
  meshgrad_runtime* own = nullptr;
  REQUIRE(meshgrad_runtime_create(nullptr, &own) == MESHGRAD_OK);
  meshgrad_graph_predictor* predictor = nullptr;
  REQUIRE(meshgrad_graph_predictor_create(own, checkpoint.c_str(), &predictor) == MESHGRAD_OK);
  int32_t columns = 0, per_graph = 0, width = 0, identifiers = -1, graph_width = -1, edge_width = -1,
          dim = -1;
  CHECK(meshgrad_graph_predictor_sizes(predictor, &width, &identifiers, &graph_width, &edge_width, &dim,
                                       &columns, &per_graph) == MESHGRAD_OK);
  CHECK(std::vector{width, identifiers, graph_width, edge_width, dim, columns, per_graph} ==
        std::vector<int32_t>{1, 1, 0, 1, 0, 2, 1});
  CHECK(meshgrad_graph_predictor_sizes(predictor, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                       nullptr) == MESHGRAD_OK);
  std::vector<float> values(4);
  const meshgrad_array into = meshgrad_f32(values.data(), 2, 2);
  meshgrad_graph graph;
  meshgrad_graph_init(&graph);
  graph.inputs = meshgrad_f32(inputs.data(), 7, 1);
  graph.edges = meshgrad_i32(edges.data(), 6, 2);
  graph.starts = meshgrad_i32(starts.data(), 3, 1);
  graph.identifiers = {
      .data = const_cast<int64_t*>(ids.data()), .dtype = MESHGRAD_I64, .rank = 2, .shape = {7, 1}};
  graph.edge_inputs = meshgrad_f32(edge_inputs.data(), 6, 1);
  graph.first_node = 1;
  const auto refused = [&](const char* text) {
    CHECK(meshgrad_graph_predictor_predict(predictor, &graph, &into) == MESHGRAD_INVALID_ARGUMENT);
    CHECK(contains(meshgrad_last_error(), text));
  };
  graph.directed = 2;
  refused("[graph: directed] needed 1, 0 for edges once or both ways, or -1 for what the data had, got 2");
  graph.directed = -1;
  CHECK(meshgrad_graph_predictor_predict(predictor, &graph, &into) == MESHGRAD_OK);
  CHECK(values == expected);
  graph.edges = meshgrad_i32(edges.data(), 2, 6);
  refused("[graph: edges] needed 2 columns");
  graph.size = 4;
  refused("[meshgrad_graph: size]");
  meshgrad_predictor* of_meshes = nullptr;
  CHECK(meshgrad_predictor_create(own, checkpoint.c_str(), &of_meshes) == MESHGRAD_CONFIG_ERROR);
  meshgrad_graph_predictor_destroy(predictor);
  meshgrad_graph_predictor_destroy(nullptr);
  meshgrad_runtime_destroy(own);
}

}  // namespace
}  // namespace meshgrad
