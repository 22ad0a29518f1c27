// SPDX-License-Identifier: Apache-2.0
// Graph attention networks of PyTorch Geometric, computed in FP64: tests/data/oracles/make_gat.py.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/gat.h>

#include "oracle_file.h"

namespace meshgrad {
namespace {

using test::Matrix;

/// A case of the file, with the model that its parameters belong to.
class GatOracle {
 public:
  GatOracle(const std::string& name, const GatOptions& options, ModelSizes sizes)
      : file_("gat_small.safetensors", name + ".") {
    sizes.node_inputs = file_.at("in.nodes").shape.at(1);
    sizes.outputs = file_.at("out.prediction").shape.at(1);
    sizes.edge_set_names = {"mesh"};
    sizes.graph_starts = sizes.pool.has_value();
    sizes.edge_inputs = {file_.has("in.edges") ? file_.at("in.edges").shape.at(1) : 0};
    model_ = make_gat(options, sizes);
    file_.set_parameters(runtime_, model_);
    batch_.nodes = file_.at("in.nodes").shape.at(0);
    std::vector<int32_t> order;
    EdgeSet edges{"mesh",
                  build_graph(runtime_, batch_.nodes, file_.indices("in.senders"),
                              file_.indices("in.receivers"), &order),
                  {}};
    Matrix features(edges.graph.edges, sizes.edge_inputs[0]);
    const std::vector<double> given =
        file_.has("in.edges") ? to_f64(file_.at("in.edges")) : std::vector<double>();
    for (int64_t e = 0; e < features.rows; ++e)
      for (int64_t c = 0; c < features.cols; ++c)
        features.at(e, c) = given[static_cast<size_t>(order[static_cast<size_t>(e)] * features.cols + c)];
    edges.features = test::to_tensor(runtime_, features, DType::f64);
    batch_.edge_sets.push_back(std::move(edges));
    if (sizes.pool) batch_.graph_starts = test::to_index(runtime_, file_.indices("in.starts"));
    batch_.node_features = file_.tensor(runtime_, "in.nodes");
  }

  /// The prediction and all gradients.
  void check(double tolerance) {
    Tape tape(runtime_);
    const Variable nodes(batch_.node_features, true);
    const Values out = forward(model_, tape, batch_, {nodes, tape.input(batch_.edge_sets[0].features, {})});
    CHECK(file_.difference("out.prediction", out.front().value()) < tolerance);
    const Variable prediction = out.front();
    tape.backward({&prediction, 1}, {file_.tensor(runtime_, "in.factors")});
    CHECK(file_.difference("grad.in.nodes", nodes.gradient()) < tolerance);
    file_.check_gradients(model_, tolerance);
  }

 private:
  Runtime runtime_ = test::make_runtime();
  test::OracleFile file_;
  Model model_;
  GraphBatch batch_;
};

TEST_CASE("gat has the values and gradients of PyTorch Geometric") {
  GatOptions nodes{.width = 4, .heads = 3, .blocks = 1};
  nodes.decoder = GatDecoder::attention;
  nodes.output_heads = 2;
  GatOptions edges{.width = 4, .heads = 2, .blocks = 2, .hidden_layers = 1};
  edges.self_edges = edges.concatenate = false;
  edges.jumping = Jumping::concatenate;
  GatOptions gatv2{.width = 3, .heads = 2, .blocks = 3, .hidden_layers = 0};
  gatv2.score = AttentionScore::gatv2;
  gatv2.jumping = Jumping::max;
  ModelSizes mean, max;
  mean.pool = GraphPool::mean;
  max.pool = GraphPool::max;
  GatOracle cases[] = {{"nodes", nodes, {}}, {"edges", edges, mean}, {"gatv2", gatv2, max}};
  for (GatOracle& oracle : cases) oracle.check(1e-12);
}

}  // namespace
}  // namespace meshgrad
