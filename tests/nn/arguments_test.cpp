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
  GraphBatch batch{.nodes = 4, .graph_offsets = {0, 4}};
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
  for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 3}, {1, 4}, {0, 5}, {0, 3, 2, 4}}) {
    says("[batch: graph_offsets] needed ascending offsets from 0 to 4",
         [&](Runtime&, GraphBatch& batch) { batch.graph_offsets = offsets; });
  }
  CHECK(refusal([](Runtime&, GraphBatch& batch) { batch.graph_offsets = {0, 1, 4}; }).empty());
  CHECK(refusal([](Runtime&, GraphBatch& batch) { batch.graph_offsets = {}; }).empty());
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
