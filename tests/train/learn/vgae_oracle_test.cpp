// SPDX-License-Identifier: Apache-2.0
// A variational graph autoencoder of PyTorch Geometric's GCNConv, computed in FP64:
// tests/data/oracles/make_vgae.py.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/vgae.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/task/graph_inputs.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "paths.h"
#include "support.h"

namespace meshgrad {
namespace {

using test::Matrix;

class VgaeOracle {
 public:
  VgaeOracle() : file_(test::source_file("tests/data/oracles/vgae_small.safetensors")) {
    const VgaeOptions options{.width = 6, .blocks = 1, .features = true, .hidden_layers = 1};
    model = make_vgae(options, {.node_inputs = 5,
                                .edge_inputs = {0},
                                .edge_set_names = {"mesh"},
                                .outputs = 3,
                                .graph_starts = true,
                                .edge_weights = true});
    model.parameters.allocate(runtime, DType::f64, 1);
    for (size_t i = 0; i < model.parameters.parameters().size(); ++i) {
      const ParameterInfo& info = model.parameters.parameters()[i];
      from_file_order(info, tensor("param." + info.name, info.is_matrix()), model.parameters.value(i));
    }
    nodes = file_.at("in.nodes").shape.at(0);
    batch.nodes = nodes;
    batch.node_features = tensor("in.nodes", true);
    batch.graph_starts = test::to_index(runtime, indices("in.starts"));
    std::vector<int64_t> keys;
    for (const int64_t key : to_i64("in.keys")) keys.push_back(key);
    batch.node_keys = Tensor::from<int64_t>(runtime, keys, Shape{nodes}, Tag::data, "keys");
    std::vector<int32_t> senders = indices("in.senders"), receivers = indices("in.receivers");
    links = std::ssize(senders);
    for (int32_t i = 0; i < nodes; ++i) senders.push_back(i), receivers.push_back(i);
    EdgeSet edges{"mesh", build_graph(runtime, nodes, senders, receivers), {}};
    edges.weights = Tensor::empty(runtime, Shape{edges.graph.edges}, DType::f32, Tag::data, "weights");
    write_convolution_weights(edges);
    edges.features = test::to_tensor(runtime, Matrix(edges.graph.edges, 0), DType::f64);
    batch.edge_sets.push_back(std::move(edges));
  }

  std::vector<int32_t> indices(const std::string& key) const {
    const std::vector<int64_t> values = to_i64(key);
    return {values.begin(), values.end()};
  }
  std::vector<int64_t> to_i64(const std::string& key) const {
    const SafetensorsTensor& stored = file_.at(key);
    std::vector<int64_t> values(stored.bytes.size() / sizeof(int64_t));
    std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
    return values;
  }
  Tensor tensor(const std::string& key, bool is_matrix) {
    const SafetensorsTensor& stored = file_.at(key);
    Matrix values(is_matrix ? stored.shape.at(0) : 1, stored.shape.back());
    values.v = to_f64(stored);
    return is_matrix ? test::to_tensor(runtime, values, DType::f64)
                     : test::to_vector(runtime, values, DType::f64);
  }
  double difference(const std::string& key, const Tensor& actual) const {
    const std::vector<double> expected = to_f64(file_.at(key));
    const Matrix values = test::to_matrix(actual);
    REQUIRE(values.v.size() == expected.size());
    double largest = 0.0;
    for (size_t i = 0; i < expected.size(); ++i)
      largest = std::max(largest, std::abs(values.v[i] - expected[i]));
    return largest;
  }

  Runtime runtime = test::make_runtime();
  Model model;
  GraphBatch batch;
  int64_t nodes = 0, links = 0;

 private:
  SafetensorsFile file_;
};

TEST_CASE("vgae has the values and gradients of PyTorch Geometric") {
  VgaeOracle oracle;
  Tape tape(oracle.runtime, Tape::Mode::train);
  const Variable inputs(oracle.batch.node_features, true);
  const Values out =
      forward(oracle.model, tape, oracle.batch, {inputs, tape.input(oracle.batch.edge_sets[0].features, {})});
  const double kTolerance = 1e-9;
  CHECK(oracle.difference("out.latent", out[0].value()) < kTolerance);
  std::vector<float> kl, rows;
  for (int64_t i = 0; i < oracle.nodes; ++i) kl.push_back(i < 7 ? 1.0F / 49.0F : 1.0F / 16.0F);
  const Tensor kl_weights =
      test::to_vector(oracle.runtime, Matrix(1, oracle.nodes, {kl.begin(), kl.end()}), DType::f32);
  Matrix feature_weights(1, oracle.nodes);
  for (int64_t i = 0; i < oracle.nodes; ++i) feature_weights.at(0, i) = 0.5 / (5.0 * (i < 7 ? 7.0 : 4.0));
  const Tensor mask =
      test::mask_tensor(oracle.runtime, std::vector<uint8_t>(static_cast<size_t>(oracle.nodes), 1));
  Variable sum = ops::latent_loss(tape, {}, out[1], kl_weights);
  const Variable error = ops::accumulate_error(tape, {}, out[2], oracle.batch.node_features, mask);
  sum = ops::masked_loss(tape, sum, {error}, mask,
                         {.row_weights = test::to_vector(oracle.runtime, feature_weights, DType::f64)})
            .sum;
  const Graph& graph = oracle.batch.edge_sets[0].graph;
  // Of 6 and 2 linked pairs; of 21 and 6 in all.
  const Matrix weights(2, 2, {0.25 / 6.0, 0.25 / 15.0, 0.25 / 2.0, 0.25 / 4.0});
  const NodePairs pairs{.graph_starts = oracle.batch.graph_starts,
                        .offsets = graph.receiver_offsets,
                        .others = graph.senders,
                        .weights = test::to_tensor(oracle.runtime, weights, DType::f32),
                        .all_pairs = true};
  sum = ops::pair_loss(tape, sum, out[0], pairs);
  CHECK(oracle.difference("out.loss", sum.value()) < kTolerance);
  tape.backward(sum, test::to_vector(oracle.runtime, Matrix(1, 1, {1.0}), DType::f64));
  CHECK(oracle.difference("grad.in.nodes", inputs.gradient()) < kTolerance);
  for (size_t i = 0; i < oracle.model.parameters.parameters().size(); ++i) {
    const ParameterInfo& info = oracle.model.parameters.parameters()[i];
    CAPTURE(info.name);
    CHECK(oracle.difference("grad." + info.name, to_file_order(info, oracle.model.parameters.gradient(i))) <
          kTolerance);
  }
}

}  // namespace
}  // namespace meshgrad
