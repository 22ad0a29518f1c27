// SPDX-License-Identifier: Apache-2.0
// Variational graph autoencoders of PyTorch Geometric's GCNConv and GATConv, computed in FP64:
// tests/data/oracles/make_vgae.py.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/vgae.h>
#include <meshgrad/train/learn/task/graph_inputs.h>

#include "oracle_file.h"

namespace meshgrad {
namespace {

using test::Matrix;

struct VgaeOracle {
  VgaeOracle(const char* name, VgaeEncoder encoder) : file(name) {
    const bool convolves = encoder == VgaeEncoder::convolution;
    const VgaeOptions options{
        .encoder = encoder, .heads = 2, .width = 6, .blocks = 1, .features = true, .hidden_layers = 1};
    model = make_vgae(options, {.node_inputs = 5,
                                .edge_inputs = {0},
                                .edge_set_names = {"mesh"},
                                .outputs = 3,
                                .graph_starts = true,
                                .edge_weights = convolves});
    file.set_parameters(runtime, model);
    nodes = file.at("in.nodes").shape.at(0);
    batch.nodes = nodes;
    batch.node_features = file.tensor(runtime, "in.nodes");
    batch.graph_starts = test::to_index(runtime, file.indices("in.starts"));
    batch.node_keys =
        Tensor::from<int64_t>(runtime, file.integers("in.keys"), Shape{nodes}, Tag::data, "keys");
    std::vector<int32_t> senders = file.indices("in.senders"), receivers = file.indices("in.receivers");
    for (int32_t i = 0; i < nodes; ++i) senders.push_back(i), receivers.push_back(i);
    EdgeSet edges{"mesh", build_graph(runtime, nodes, senders, receivers), {}};
    if (convolves) {
      edges.weights = Tensor::empty(runtime, Shape{edges.graph.edges}, DType::f32, Tag::data, "weights");
      write_convolution_weights(edges);
    }
    edges.features = test::to_tensor(runtime, Matrix(edges.graph.edges, 0), DType::f64);
    batch.edge_sets.push_back(std::move(edges));
  }

  Runtime runtime = test::make_runtime();
  test::OracleFile file;
  Model model;
  GraphBatch batch;
  int64_t nodes = 0;
};

void check_oracle(const char* name, VgaeEncoder encoder) {
  VgaeOracle oracle(name, encoder);
  Tape tape(oracle.runtime, Tape::Mode::train);
  const Variable inputs(oracle.batch.node_features, true);
  const Values out =
      forward(oracle.model, tape, oracle.batch, {inputs, tape.input(oracle.batch.edge_sets[0].features, {})});
  const double kTolerance = 1e-9;
  CHECK(oracle.file.difference("out.latent", out[0].value()) < kTolerance);
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
  // Of 12 + 7 and 4 + 4 linked entries; of 49 and 16 in all.
  const Matrix weights(2, 2, {0.5 / 19.0, 0.5 / 30.0, 0.5 / 8.0, 0.5 / 8.0});
  const NodePairs pairs{.graph_starts = oracle.batch.graph_starts,
                        .offsets = graph.receiver_offsets,
                        .others = graph.senders,
                        .weights = test::to_tensor(oracle.runtime, weights, DType::f32),
                        .all_pairs = true};
  sum = ops::pair_loss(tape, sum, out[0], pairs);
  CHECK(oracle.file.difference("out.loss", sum.value()) < kTolerance);
  tape.backward(sum, test::to_vector(oracle.runtime, Matrix(1, 1, {1.0}), DType::f64));
  CHECK(oracle.file.difference("grad.in.nodes", inputs.gradient()) < kTolerance);
  oracle.file.check_gradients(oracle.model, kTolerance);
}

TEST_CASE("vgae has the values and gradients of PyTorch Geometric") {
  check_oracle("vgae_small.safetensors", VgaeEncoder::convolution);
  check_oracle("vgae_attention.safetensors", VgaeEncoder::attention);
}

}  // namespace
}  // namespace meshgrad
