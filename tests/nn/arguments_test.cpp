// SPDX-License-Identifier: Apache-2.0
// What a C++ caller can forget: each is refused by name.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include <functional>

#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

const std::vector<int32_t> kSenders{2, 0, 1, 3}, kReceivers{0, 3, 2, 1};
const std::vector<float> kFeatures{10, 11, 20, 21, 30, 31, 40, 41};  // [4 edges, 2]

GraphBatch batch_of_four(Runtime& runtime) {
  GraphBatch batch;
  batch.nodes = 4;
  batch.node_features = Tensor::zeros(runtime, {4, 3}, DType::f32, Tag::data);
  batch.edge_sets.push_back(make_edge_set<float>(runtime, "mesh", 4, kSenders, kReceivers, kFeatures, 2));
  return batch;
}

Model small_model() {
  return make_mesh_graph_net(
      {.width = 8, .blocks = 1},
      {.node_inputs = 3, .edge_inputs = {2}, .edge_set_names = {"mesh"}, .outputs = 2});
}

/// What forward says about a batch that `change` spoiled.
std::string refusal(const std::function<void(Runtime&, GraphBatch&)>& change, bool allocated = true) {
  Runtime runtime = make_runtime();
  Model model = small_model();
  if (allocated) model.parameters.allocate(runtime, DType::f32, 1);
  GraphBatch batch = batch_of_four(runtime);
  change(runtime, batch);
  Tape tape(runtime);
  return message_of([&] { forward(model, tape, batch); });
}

TEST_CASE("edges and their features are sorted together") {
  Runtime runtime = make_runtime();
  const EdgeSet set = make_edge_set<float>(runtime, "mesh", 4, kSenders, kReceivers, kFeatures, 2);
  const auto features = set.features.values<float>();
  CHECK(std::vector<float>(features.begin(), features.end()) ==
        std::vector<float>{10, 11, 40, 41, 30, 31, 20, 21});
  CHECK(set.graph.senders.values<int32_t>()[1] == 3);
  CHECK(set.features.shape() == Shape{4, 2});
  CHECK(make_edge_set<double>(runtime, "none", 4, {}, {}, {}, 3).features.shape() == Shape{0, 3});
  CHECK(contains(
      message_of([&] { make_edge_set<float>(runtime, "mesh", 4, kSenders, kReceivers, kFeatures, 3); }),
      "[make_edge_set: features of mesh] needed 4 edges times 3 values, got 8"));
}

TEST_CASE("forward before allocate says so") {
  CHECK(contains(refusal([](Runtime&, GraphBatch&) {}, false),
                 "[forward: model.parameters] needed allocated parameters, got none; fix: call "
                 "model.parameters.allocate"));
  CHECK(refusal([](Runtime&, GraphBatch&) {}).empty());
}

TEST_CASE("sizes of a batch that disagree are refused by name") {
  const auto says = [](const std::string& text, const std::function<void(Runtime&, GraphBatch&)>& change) {
    const std::string message = refusal(change);
    CHECK_MESSAGE(contains(message, text), message);
  };
  says("[batch: node_features] needed 5 rows, one for each of batch.nodes, got 4",
       [](Runtime&, GraphBatch& batch) { batch.nodes = 5; });
  says("[batch: graph of edge set mesh] needed 4 nodes (batch.nodes), got 6 nodes",
       [](Runtime& runtime, GraphBatch& batch) {
         batch.edge_sets.front().graph = build_graph(runtime, 6, kSenders, kReceivers);
       });
  says("[batch: features of edge set mesh] needed 4 rows, one for each edge, got 3",
       [](Runtime& runtime, GraphBatch& batch) {
         batch.edge_sets.front().features = Tensor::zeros(runtime, {3, 2}, DType::f32, Tag::data);
       });
  says("[batch: node_count] needed 1 rows, one for each batch, got 2",
       [](Runtime& runtime, GraphBatch& batch) {
         batch.node_count = Tensor::zeros(runtime, {2}, DType::i64, Tag::data);
       });
  says("[batch: graph_starts] needed i32 [graphs + 1], got i64 [2]", [](Runtime& runtime, GraphBatch& batch) {
    batch.graph_starts = Tensor::zeros(runtime, {2}, DType::i64, Tag::data);
  });
  says("[batch: graph_starts] needed i32 [graphs + 1], got i32 [0]", [](Runtime& runtime, GraphBatch& batch) {
    batch.graph_starts = Tensor::zeros(runtime, {0}, DType::i32, Tag::data);
  });
}

TEST_CASE("graph starts are sums of sizes") {
  Runtime runtime = make_runtime();
  const auto starts_of = [&](const std::vector<int64_t>& nodes) {
    const Tensor starts = make_graph_starts(runtime, nodes);
    const auto values = starts.values<int32_t>();
    return std::vector<int32_t>(values.begin(), values.end());
  };
  CHECK(starts_of({}) == std::vector<int32_t>{0});
  CHECK(starts_of({3, 0, 1}) == std::vector<int32_t>{0, 3, 3, 4});
  CHECK(refusal([&](Runtime& own, GraphBatch& batch) {
          batch.graph_starts = make_graph_starts(own, std::vector<int64_t>{1, 3});
        }).empty());
  CHECK(contains(message_of([&] { starts_of({2, -1}); }), "[graph_starts: nodes of graph 1] needed 0 to"));
  CHECK(contains(message_of([&] {
                   starts_of({2, INT32_MAX - 1});
                 }),
                 "needed 0 to 2147483645, got 2147483646"));
}

TEST_CASE("edge sets are found by name, in the model's order") {
  Runtime runtime = make_runtime();
  GraphBatch batch = batch_of_four(runtime);
  CHECK(batch.has_edges(kMeshEdges));
  CHECK_FALSE(batch.has_edges(kWorldEdges));
  CHECK(contains(message_of([&] { batch.edges(kWorldEdges); }),
                 "[batch: edge sets] needed one of the name world, got mesh"));
  batch.edge_sets.push_back(make_edge_set<float>(runtime, "world", 4, kSenders, kReceivers, kFeatures, 2));
  CHECK(&batch.edges(kWorldEdges) == &batch.edge_sets[1]);
  const auto run = [&](const std::vector<std::string>& names) {
    Model model =
        make_mesh_graph_net({.width = 8, .blocks = 1},
                            {.node_inputs = 3, .edge_inputs = {2, 2}, .edge_set_names = names, .outputs = 2});
    model.parameters.allocate(runtime, DType::f32, 1);
    Tape tape(runtime);
    return message_of([&] { forward(model, tape, batch); });
  };
  CHECK(run({"mesh", "world"}).empty());
  CHECK(contains(run({"world", "mesh"}), "[MeshGraphNet: edge set 0] needed world, got mesh"));
}

TEST_CASE("edges to nodes outside the batch must be declared") {
  const std::vector<int32_t> senders{0, 1, 2, 3}, receivers{0, 0, 1, 1};
  const auto with = [&](bool from_batch, bool to_batch, int64_t nodes, int64_t owned) {
    return refusal([&](Runtime& runtime, GraphBatch& batch) {
      EdgeSet& set = batch.edge_sets.front();
      set.graph = build_bipartite_graph(runtime, nodes, owned, senders, receivers);
      set.from_batch = from_batch;
      set.to_batch = to_batch;
    });
  };
  CHECK(contains(with(true, true, 4, 2),
                 "[batch: graph of edge set mesh] needed 4 nodes (batch.nodes), got 2"));
  CHECK(contains(with(true, false, 5, 2), "needed 4 nodes that send (batch.nodes), got 5"));
  CHECK(contains(with(false, true, 7, 2), "needed 4 nodes that receive (batch.nodes), got 2"));
  // What the batch may hold, a MeshGraphNet need not take.
  for (const auto& [from, to] : {std::pair(true, false), {false, true}, {false, false}}) {
    CHECK(contains(with(from, to, from ? 4 : 9, to ? 4 : 2),
                   "[MeshGraphNet: edge set 0] needed edges between nodes of the batch, got mesh, which "));
  }
}

TEST_CASE("a loss without a target is refused") {
  Runtime runtime = make_runtime();
  Tape tape(runtime);
  const Variable prediction = tape.input(Tensor::zeros(runtime, {4, 2}, DType::f32, Tag::data), Rows{4});
  const Tensor mask = Tensor::zeros(runtime, {4}, DType::u8, Tag::data);
  CHECK(contains(message_of([&] { ops::masked_loss(tape, prediction, Tensor(), mask); }),
                 "[masked_loss: target] needed a tensor [rows, width], got none"));
}

}  // namespace
