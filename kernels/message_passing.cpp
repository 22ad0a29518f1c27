// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad {
namespace {

/// Checks what both directions have in common; returns the width of the output.
template <class Args>
int64_t check_common(std::string_view op, const Args& args, DType dtype) {
  if (args.graph == nullptr) throw invalid_argument(op, "a graph", "none");
  const Graph& graph = *args.graph;
  if (graph.owned_nodes > graph.nodes) {
    throw invalid_argument(op, "a graph of one set of nodes",
                           std::to_string(graph.nodes) + " nodes that send and " +
                               std::to_string(graph.owned_nodes) + " that receive");
  }
  check_defined(op, "edges' weight", args.edges.weight);
  const int64_t in = args.edges.weight.rows();
  const int64_t hidden = args.edges.weight.width();
  check_tensor(op, "edges' weight", args.edges.weight, dtype, {in, hidden});
  check_tensor(op, "edges", args.edges.x, dtype, {graph.edges, in});
  const NodeTerms& terms = args.terms;
  check_defined(op, "nodes", terms.nodes);
  const int64_t node_width = terms.nodes.width();
  check_tensor(op, "nodes", terms.nodes, dtype, {graph.nodes, node_width});
  check_tensor(op, "sender_weight", terms.sender_weight, dtype, {node_width, hidden});
  check_tensor(op, "receiver_weight", terms.receiver_weight, dtype, {node_width, hidden});
  const int64_t out = check_mlp_weights(op, args.weights, args.saved, graph.edges, hidden, dtype);
  if (args.ghosts != nullptr && args.terms.nodes.device().kind == DeviceKind::cuda) {
    const GhostExchange& ghosts = *args.ghosts;
    check_tensor(op, "receivers of border edges", ghosts.border_receivers, DType::i32,
                 {graph.edges - ghosts.interior_edges});
    check_tensor(op, "offsets of border receivers", ghosts.border_offsets, DType::i32,
                 {graph.owned_nodes - ghosts.interior + 1});
    check_internal(!graph.counts.defined(), "an edge update with real counts overlaps no exchange");
  }
  if (args.residual && in != out) {
    throw invalid_argument(op, "edges as wide as the output for a residual",
                           std::to_string(in) + " and " + std::to_string(out));
  }
  return out;
}

/// S of all nodes, R of those that receive.
Work node_terms_work(const Graph& graph, const NodeTerms& terms) {
  return {.flops = product_flops(graph.nodes, terms.sender_weight) +
                   product_flops(graph.owned_nodes, terms.receiver_weight),
          .bytes = bytes_of(terms.nodes, terms.sender_weight, terms.receiver_weight)};
}

}  // namespace

bool kernels::saves_hidden(const EdgeUpdateForward& args) {
  check_defined("edge_update.forward", "aggregate", args.aggregate);
  return kernels::tables(args.aggregate.device()).message_passing.saves_hidden(args);
}

void kernels::edge_update_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "edge_update.forward";
  check_defined(kOp, "aggregate", args.aggregate);
  const DType dtype = args.aggregate.dtype();
  const int64_t out = check_common(kOp, args, dtype);
  check_tensor(kOp, "aggregate", args.aggregate, dtype, {args.graph->owned_nodes, out});
  check_optional(kOp, "edges_out", args.edges_out, dtype, {args.graph->edges, out});
  if (args.node_terms != nullptr) {
    const int64_t hidden = args.edges.weight.width();
    check_optional(kOp, "sender terms", args.node_terms->sender, dtype, {args.graph->nodes, hidden});
    check_optional(kOp, "receiver terms", args.node_terms->receiver, dtype,
                   {args.graph->owned_nodes, hidden});
  }
  kernels::tables(args.aggregate.device()).message_passing.edge_forward(args, runtime, stream);
  note_work("edge_update_forward", args);
}

void kernels::edge_update_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "edge_update.backward";
  check_defined(kOp, "d_aggregate", args.d_aggregate);
  const DType dtype = args.d_aggregate.dtype();
  const int64_t out = check_common(kOp, args, dtype);
  const Graph& graph = *args.graph;
  check_tensor(kOp, "d_aggregate", args.d_aggregate, dtype, {graph.owned_nodes, out});
  check_optional(kOp, "d_edges_out", args.d_edges_out, dtype, {graph.edges, out});
  check_optional(kOp, "d_edges", args.d_edges, dtype, args.edges.x.shape());
  check_optional(kOp, "d_nodes", args.d_nodes, dtype, args.terms.nodes.shape());
  check_optional(kOp, "d_sender_weight", args.d_sender_weight, accumulator_of(dtype),
                 args.terms.sender_weight.shape());
  check_optional(kOp, "d_receiver_weight", args.d_receiver_weight, accumulator_of(dtype),
                 args.terms.receiver_weight.shape());
  check_optional(kOp, "d_edge_weight", args.d_edge_weight, accumulator_of(dtype), args.edges.weight.shape());
  check_mlp_gradients(kOp, args.weights, args.d_weights);
  kernels::tables(args.d_aggregate.device()).message_passing.edge_backward(args, runtime, stream);
  note_work("edge_update_backward", args);
}

Work work_of(const EdgeUpdateForward& args) {
  const Graph& graph = *args.graph;
  Work work = layers_forward_work(graph.edges, args.weights, args.saved);
  work.flops += product_flops(graph.edges, args.edges.weight);
  work.bytes += bytes_of(args.edges.x, args.edges.weight, graph.senders, graph.receivers, args.edges_out,
                         args.aggregate);
  if (args.node_terms != nullptr && args.node_terms->sender.defined()) {
    work.bytes += bytes_of(args.node_terms->sender, args.node_terms->receiver);
  } else {
    work += node_terms_work(graph, args.terms);
  }
  return work;
}

Work work_of(const EdgeUpdateBackward& args) {
  const Graph& graph = *args.graph;
  const NodeTerms& terms = args.terms;
  Work work = layers_backward_work(graph.edges, args.weights, args.saved, args.d_weights);
  const double edge_product = product_flops(graph.edges, args.edges.weight);
  const Work again = node_terms_work(graph, terms);
  if (!saved_is_complete(args.weights, args.saved)) work.flops += edge_product + again.flops;
  if (args.d_edges.defined()) work.flops += edge_product;
  if (args.d_edge_weight.defined()) work.flops += edge_product;
  if (args.d_nodes.defined()) work.flops += again.flops;
  if (args.d_sender_weight.defined()) work.flops += product_flops(graph.nodes, terms.sender_weight);
  if (args.d_receiver_weight.defined()) work.flops += product_flops(graph.owned_nodes, terms.receiver_weight);
  work.bytes += again.bytes + bytes_of(args.edges.x, args.edges.weight, graph.senders, graph.receivers,
                                       args.d_edges_out, args.d_aggregate, args.d_edges);
  work.bytes += bytes_added(args.d_nodes, args.accumulate_d_nodes) + bytes_added(args.d_sender_weight) +
                bytes_added(args.d_receiver_weight) + bytes_added(args.d_edge_weight);
  return work;
}

}  // namespace meshgrad
