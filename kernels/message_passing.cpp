// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad {
namespace {

/// Checks what both directions have in common; returns the width of the output.
template <class Args>
int64_t check_common(std::string_view op, const Args& args, DType dtype, bool forward) {
  if (args.graph == nullptr) throw invalid_argument(op, "a graph", "none");
  const Graph& graph = *args.graph;
  check_defined(op, "edges' weight", args.edges.weight);
  const int64_t in = args.edges.weight.rows();
  const int64_t hidden = args.edges.weight.width();
  check_tensor(op, "edges' weight", args.edges.weight, dtype, {in, hidden});
  check_tensor(op, "edges", args.edges.x, dtype, {graph.edges, in});
  const bool terms_needed = forward || !saved_is_complete(args.weights, args.saved);
  const auto check_terms = terms_needed ? check_tensor : check_optional;
  check_terms(op, "sender_terms", args.sender_terms, dtype, {graph.nodes, hidden});
  check_terms(op, "receiver_terms", args.receiver_terms, dtype, {graph.owned_nodes, hidden});
  const int64_t out = check_mlp_weights(op, args.weights, args.saved, graph.edges, hidden, dtype);
  if (args.residual && in != out) {
    throw invalid_argument(op, "edges as wide as the output for a residual",
                           std::to_string(in) + " and " + std::to_string(out));
  }
  return out;
}

}  // namespace

void edge_update_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "edge_update.forward";
  check_defined(kOp, "aggregate", args.aggregate);
  const DType dtype = args.aggregate.dtype();
  const int64_t out = check_common(kOp, args, dtype, true);
  check_tensor(kOp, "aggregate", args.aggregate, dtype, {args.graph->owned_nodes, out});
  check_optional(kOp, "edges_out", args.edges_out, dtype, {args.graph->edges, out});
  pick_table(args.aggregate.device(), cpu::message_passing_kernels).edge_forward(args, runtime, stream);
}

void edge_update_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "edge_update.backward";
  check_defined(kOp, "d_aggregate", args.d_aggregate);
  const DType dtype = args.d_aggregate.dtype();
  const int64_t out = check_common(kOp, args, dtype, false);
  const Graph& graph = *args.graph;
  const int64_t hidden = args.edges.weight.width();
  check_tensor(kOp, "d_aggregate", args.d_aggregate, dtype, {graph.owned_nodes, out});
  check_optional(kOp, "d_edges_out", args.d_edges_out, dtype, {graph.edges, out});
  check_optional(kOp, "d_edges", args.d_edges, dtype, args.edges.x.shape());
  check_tensor(kOp, "d_sender_terms", args.d_sender_terms, dtype, {graph.nodes, hidden});
  check_tensor(kOp, "d_receiver_terms", args.d_receiver_terms, dtype, {graph.owned_nodes, hidden});
  check_optional(kOp, "d_edge_weight", args.d_edge_weight, dtype, args.edges.weight.shape());
  check_mlp_gradients(kOp, args.weights, args.d_weights);
  pick_table(args.d_aggregate.device(), cpu::message_passing_kernels).edge_backward(args, runtime, stream);
}

}  // namespace meshgrad
