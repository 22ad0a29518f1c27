// SPDX-License-Identifier: Apache-2.0
// Weights of NVIDIA PhysicsNeMo under its conventions: a file of values that its own code computed.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/data/safetensors.h>

#include <algorithm>
#include <cmath>

#include "model_case.h"
#include "paths.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

/// "processor.3.edge_mlp.linear_1.weight" -> "state.processor.processor_layers.6.edge_mlp.model.2.weight".
std::string their_name(const std::string& ours) {
  const size_t dot = ours.rfind('.');
  const size_t layer_dot = ours.rfind('.', dot - 1);
  const std::string kind = ours.substr(dot + 1);
  const std::string layer = ours.substr(layer_dot + 1, dot - layer_dot - 1);
  std::string prefix = ours.substr(0, layer_dot);
  if (prefix.starts_with("processor.")) {
    const int block = std::stoi(prefix.substr(10));
    const bool edge = prefix.ends_with("edge_mlp");
    prefix = "processor.processor_layers." + std::to_string(2 * block + (edge ? 0 : 1)) +
             (edge ? ".edge_mlp" : ".node_mlp");
  }
  const int index = layer == "norm" ? 5 : 2 * std::stoi(layer.substr(7));
  return prefix + ".model." + std::to_string(index) + "." + kind;
}

Tensor load(Runtime& runtime, const SafetensorsTensor& tensor) {
  return Tensor::from<double>(runtime, to_f64(tensor), Shape(std::span<const int64_t>(tensor.shape)),
                              Tag::data, tensor.name);
}

double largest_error(const Tensor& ours, const std::vector<double>& theirs) {
  double largest = 0.0;
  double scale = 0.0;
  REQUIRE(ours.elements() == static_cast<int64_t>(theirs.size()));
  for (size_t i = 0; i < theirs.size(); ++i) {
    largest = std::max(largest, std::abs(ours.data<double>()[i] - theirs[i]));
    scale = std::max(scale, std::abs(theirs[i]));
  }
  return largest / scale;
}

}  // namespace

TEST_CASE("PhysicsNeMo's weights give its prediction") {
  Runtime runtime = make_runtime();
  const SafetensorsFile file(test::data_file("oracles/physicsnemo_small.safetensors"));
  ModelCase options;
  options.node_inputs = 11;
  options.edge_inputs = {3};
  options.edge_set_names = {"mesh"};
  options.outputs = 2;
  options.width = 24;
  options.blocks = 3;
  options.concat_order = ConcatOrder::edge_sender_receiver;
  options.aggregate = AggregateOrder::after_residual;
  const Model model = make_model(options, runtime, DType::f64, 0);
  const ParameterSet& set = model.parameters;
  for (size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterInfo& info = set.parameters()[i];
    from_file_order(info, load(runtime, file.at("state." + their_name(info.name))), set.value(i));
  }
  LossBatch batch;
  batch.graph.node_features = load(runtime, file.at("in.node_features"));
  batch.graph.nodes = batch.graph.node_features.rows();
  batch.target = load(runtime, file.at("in.target"));
  batch.mask = Tensor::empty(runtime, {batch.graph.nodes}, DType::u8, Tag::data);
  for (uint8_t& m : batch.mask.values<uint8_t>()) m = 1;
  const std::vector<int64_t> senders = to_i64(file.at("in.senders"));
  const std::vector<int64_t> receivers = to_i64(file.at("in.receivers"));
  std::vector<int32_t> order;
  EdgeSet edges{"mesh",
                build_graph(runtime, batch.graph.nodes, std::vector<int32_t>(senders.begin(), senders.end()),
                            std::vector<int32_t>(receivers.begin(), receivers.end()), &order),
                {}};
  const std::vector<double> features = to_f64(file.at("in.edge_features"));
  std::vector<double> sorted;
  for (const int32_t e : order)
    sorted.insert(sorted.end(), features.begin() + e * 3, features.begin() + e * 3 + 3);
  edges.features = Tensor::from<double>(runtime, sorted, {edges.graph.edges, 3}, Tag::data);
  batch.graph.edge_sets.push_back(std::move(edges));

  Tape tape(runtime);
  const Variable prediction = predict(model, tape, batch.graph);
  CHECK(largest_error(prediction.value(), to_f64(file.at("out.prediction"))) < 1e-12);
  const LossSum loss = ops::masked_loss(tape, prediction, batch.target, batch.mask);
  // Their loss is a mean over nodes and components.
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 1.0 / static_cast<double>(batch.target.elements());
  CHECK(*loss.sum.value().data<double>() * *seed.data<double>() ==
        doctest::Approx(to_f64(file.at("out.loss_mean"))[0]).epsilon(1e-12));
  tape.backward(loss.sum, seed);
  for (size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterInfo& info = set.parameters()[i];
    CAPTURE(info.name);
    CHECK(largest_error(to_file_order(info, set.gradient(i)),
                        to_f64(file.at("grad." + their_name(info.name)))) < 1e-9);
  }
}
