// SPDX-License-Identifier: Apache-2.0
// Graph attention networks of PyTorch Geometric, computed in FP64: tests/data/oracles/make_gat.py.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/gat.h>
#include <meshgrad/train/data/safetensors.h>

#include <algorithm>
#include <cmath>

#include "paths.h"
#include "support.h"

namespace meshgrad {
namespace {

using test::Matrix;

/// A case of the file, with the model that its parameters belong to.
class GatOracle {
 public:
  GatOracle(std::string name, const GatOptions& options, ModelSizes sizes)
      : file_(test::source_file("tests/data/oracles/gat_small.safetensors")), name_(std::move(name)) {
    sizes.node_inputs = at("in.nodes").shape.at(1);
    sizes.outputs = at("out.prediction").shape.at(1);
    sizes.edge_set_names = {"mesh"};
    sizes.graph_starts = sizes.pool.has_value();
    sizes.edge_inputs = {has("in.edges") ? at("in.edges").shape.at(1) : 0};
    model_ = make_gat(options, sizes);
    model_.parameters.allocate(runtime_, DType::f64, 1);
    for (size_t i = 0; i < model_.parameters.parameters().size(); ++i) {
      const ParameterInfo& info = model_.parameters.parameters()[i];
      from_file_order(info, matrix("param." + info.name, info.is_matrix()), model_.parameters.value(i));
    }
    const auto indices = [&](const std::string& key) {
      const std::vector<double> values = to_f64(at(key));
      return std::vector<int32_t>(values.begin(), values.end());
    };
    batch_.nodes = at("in.nodes").shape.at(0);
    std::vector<int32_t> order;
    EdgeSet edges{"mesh",
                  build_graph(runtime_, batch_.nodes, indices("in.senders"), indices("in.receivers"), &order),
                  {}};
    Matrix features(edges.graph.edges, sizes.edge_inputs[0]);
    const std::vector<double> given = has("in.edges") ? to_f64(at("in.edges")) : std::vector<double>();
    for (int64_t e = 0; e < features.rows; ++e)
      for (int64_t c = 0; c < features.cols; ++c)
        features.at(e, c) = given[static_cast<size_t>(order[static_cast<size_t>(e)] * features.cols + c)];
    edges.features = test::to_tensor(runtime_, features, DType::f64);
    batch_.edge_sets.push_back(std::move(edges));
    if (sizes.pool) batch_.graph_starts = test::to_index(runtime_, indices("in.starts"));
    batch_.node_features = matrix("in.nodes", true);
  }

  /// The largest difference of the prediction and of all gradients.
  double difference() {
    Tape tape(runtime_);
    const Variable nodes(batch_.node_features, true);
    const Values out = forward(model_, tape, batch_, {nodes, tape.input(batch_.edge_sets[0].features, {})});
    double largest = difference_of("out.prediction", out.front().value());
    const Variable prediction = out.front();
    tape.backward({&prediction, 1}, {matrix("in.factors", true)});
    largest = std::max(largest, difference_of("grad.in.nodes", nodes.gradient()));
    for (size_t i = 0; i < model_.parameters.parameters().size(); ++i) {
      const ParameterInfo& info = model_.parameters.parameters()[i];
      const Tensor gradient = to_file_order(info, model_.parameters.gradient(i));
      largest = std::max(largest, difference_of("grad." + info.name, gradient));
    }
    return largest;
  }
  /// Tensors of parameters in the file that no parameter of the model has.
  size_t unread() const {
    size_t count = 0;
    for (const SafetensorsTensor& tensor : file_.view().tensors)
      count += tensor.name.starts_with(name_ + ".param.") ? 1 : 0;
    return count - model_.parameters.parameters().size();
  }

 private:
  bool has(const std::string& key) const { return file_.view().contains(name_ + "." + key); }
  const SafetensorsTensor& at(const std::string& key) const { return file_.at(name_ + "." + key); }
  Tensor matrix(const std::string& key, bool is_matrix) {
    const SafetensorsTensor& stored = at(key);
    Matrix values(is_matrix ? stored.shape.at(0) : 1, stored.shape.back());
    values.v = to_f64(stored);
    return is_matrix ? test::to_tensor(runtime_, values, DType::f64)
                     : test::to_vector(runtime_, values, DType::f64);
  }
  double difference_of(const std::string& key, const Tensor& actual) const {
    const std::vector<double> expected = to_f64(at(key));
    const Matrix values = test::to_matrix(actual);
    REQUIRE(values.v.size() == expected.size());
    double largest = 0.0;
    for (size_t i = 0; i < expected.size(); ++i)
      largest = std::max(largest, std::abs(values.v[i] - expected[i]));
    CAPTURE(key);
    CHECK(largest < 1e-12);
    return largest;
  }

  Runtime runtime_ = test::make_runtime();
  SafetensorsFile file_;
  std::string name_;
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
  for (GatOracle& oracle : cases) {
    CHECK(oracle.difference() < 1e-12);
    CHECK(oracle.unread() == 0);
  }
}

}  // namespace
}  // namespace meshgrad
