// SPDX-License-Identifier: Apache-2.0
#include "edge_case.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

namespace meshgrad::test {

EdgeCase::EdgeCase(Runtime& runtime, RandomMatrices& random, const EdgeShape& shape, reference::Edges edges,
                   DType dtype)
    : connectivity(std::move(edges)),
      graph(to_graph(runtime, connectivity)),
      mlp(runtime, random, shape.mlp, graph.edges, dtype),
      update{mlp.ref, shape.residual, shape.aggregate_after_residual},
      terms{mlp.values(random, graph.nodes, shape.node_width),
            mlp.weight_values(random, shape.node_width, mlp.first_width(), shape.node_width),
            mlp.weight_values(random, shape.node_width, mlp.first_width(), shape.node_width)},
      d_edges_out(mlp.values(random, graph.edges, shape.mlp.out)),
      d_aggregate(mlp.values(random, graph.owned_nodes, shape.mlp.out)) {}

EdgeUpdateForward EdgeCase::forward(Runtime& runtime, bool keep_hidden) const {
  EdgeUpdateForward args;
  args.graph = &graph;
  args.terms = {to_tensor(runtime, terms.nodes, mlp.dtype),
                to_tensor(runtime, terms.sender_weight, mlp.dtype),
                to_tensor(runtime, terms.receiver_weight, mlp.dtype)};
  args.edges = mlp.inputs[0];
  args.weights = mlp.weights;
  args.residual = update.residual;
  args.aggregate_after_residual = update.aggregate_after_residual;
  args.edges_out = unwritten(runtime, {graph.edges, mlp.shape.out}, mlp.dtype);
  args.aggregate = unwritten(runtime, {graph.owned_nodes, mlp.shape.out}, mlp.dtype);
  args.saved = mlp.saved(runtime, keep_hidden);
  return args;
}

EdgeUpdateBackward EdgeCase::backward(Runtime& runtime, const EdgeUpdateForward& done,
                                      const EdgeGradients& gradients) const {
  EdgeUpdateBackward args;
  args.graph = &graph;
  args.terms = done.terms;
  args.edges = done.edges;
  args.weights = done.weights;
  args.residual = done.residual;
  args.aggregate_after_residual = done.aggregate_after_residual;
  args.saved = done.saved;
  args.d_edges_out = to_tensor(runtime, d_edges_out, mlp.dtype);
  args.d_aggregate = to_tensor(runtime, d_aggregate, mlp.dtype);
  args.d_edges = unwritten(runtime, {graph.edges, mlp.shape.inputs[0]}, mlp.dtype);
  args.d_nodes = unwritten(runtime, {graph.nodes, terms.nodes.cols}, mlp.dtype);
  args.d_sender_weight = gradients.sender_weight;
  args.d_receiver_weight = gradients.receiver_weight;
  args.d_edge_weight = gradients.first_weights[0];
  args.d_weights = gradients.weights;
  return args;
}

reference::EdgeUpdateGradients EdgeCase::reference_gradients() const {
  return reference::edge_update_backward(update, connectivity, terms, mlp.input_values[0], d_edges_out,
                                         d_aggregate);
}

EdgeGradients::EdgeGradients(Runtime& runtime, RandomMatrices& random, const EdgeCase& edge)
    : StartedGradients(runtime, random, edge.mlp),
      sender_start(random.normal(edge.terms.sender_weight.rows, edge.terms.sender_weight.cols)),
      receiver_start(random.normal(edge.terms.sender_weight.rows, edge.terms.sender_weight.cols)),
      sender_weight(to_tensor(runtime, sender_start, accumulator_of(edge.mlp.dtype))),
      receiver_weight(to_tensor(runtime, receiver_start, accumulator_of(edge.mlp.dtype))) {}

NamedTensors EdgeGradients::all() const {
  NamedTensors result = named();
  result.emplace_back("d_sender_weight", sender_weight);
  result.emplace_back("d_receiver_weight", receiver_weight);
  return result;
}

void check_backward(const EdgeCase& edge, const EdgeUpdateBackward& args, const EdgeGradients& gradients,
                    const reference::EdgeUpdateGradients& ref) {
  const int64_t terms = 2 * edge.sum_terms();
  if (args.d_edges.defined()) CHECK(difference(args.d_edges, ref.d_edges, terms, edge.flowing()) == "");
  CHECK(difference(args.d_nodes, ref.d_nodes, terms, edge.flowing()) == "");
  CHECK(difference(args.d_sender_weight, sum(gradients.sender_start, ref.d_sender_weight), terms,
                   edge.flowing(), edge.mlp.dtype) == "");
  CHECK(difference(args.d_receiver_weight, sum(gradients.receiver_start, ref.d_receiver_weight), terms,
                   edge.flowing(), edge.mlp.dtype) == "");
  check_gradients(gradients, in_order(edge.mlp, ref.mlp), terms, edge.flowing());
}

}  // namespace meshgrad::test
