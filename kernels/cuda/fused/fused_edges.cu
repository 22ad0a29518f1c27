// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_edges.h>
#include <meshgrad/kernels/cuda/split_edges.h>

namespace meshgrad::cuda {
namespace {

/// Why forward or backward does not fit the fused kernels, empty when it does: all widths equal, 16-byte
/// rows, and the shared memory of the table above within the device's.
template <class Args>
std::string edges_reason(const Args& args, int (*warp_words)(int64_t width, int layers, bool smooth)) {
  const std::span<const MlpInput> inputs(&args.edges, 1);
  const int64_t width = args.edges.weight.width();
  std::string reason = why_unsupported(inputs, args.weights, args.saved, warp_words);
  if (!reason.empty()) return reason;
  if (args.edges.weight.rows() != width || args.terms.nodes.width() != width ||
      args.weights.weights.back().width() != width || !node_terms_support(args.edges.x.dtype(), width, width))
    return "widths of nodes, edges and hidden layers that differ";
  const bool fits = aligned(args.terms.nodes) && aligned(args.terms.sender_weight) &&
                    aligned(args.terms.receiver_weight) && fits_int32(args.graph->edges) &&
                    fits_int32(args.graph->nodes);
  return fits ? "" : kUnaligned;
}

template <class Args>
FusedShape edge_shape(const Args& args, int warp_words, const Stream& stream) {
  return fused_shape(stream.device().index, std::span<const MlpInput>(&args.edges, 1), args.weights,
                     warp_words);
}

/// S of senders begin, begin + 1, ... and R of those among them that are owned.
void compute_terms(const NodeTerms& nodes, int64_t begin, const Graph& senders, const NodeTermTensors& terms,
                   const Tensor& tickets, const Stream& stream) {
  NodeTerms rows = nodes;
  rows.nodes = nodes.nodes.row_range(begin, begin + senders.nodes);
  node_terms_forward(rows, senders, terms.sender.row_range(begin, begin + senders.nodes), terms.receiver,
                     tickets, stream);
}

/// Forward with an exchange of ghosts: two launches over the edges.
void split_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  const Graph& graph = *args.graph;
  const int64_t width = args.edges.weight.width();
  const FusedShape shape = edge_shape(args, edge_forward_warp_words(width), stream);
  const auto launch_kernel = is_smooth(args.weights) ? launch_edge_forward<true> : launch_edge_forward<false>;
  const NodeTermTensors terms(graph, width, args.aggregate.dtype(), runtime);
  const Tensor tickets = divided_tickets(2 * shape.blocks, runtime);
  const int64_t half = tickets.elements() / 2;
  const EdgePart interior = interior_edges(graph, *args.ghosts), border = border_edges(graph, *args.ghosts);
  const auto run = [&](const EdgePart& part, const Tensor& zeroed) {
    launch_kernel(part_of(args, part), part_of(terms, part),
                  DividedSumTensors(shape.blocks, width, zeroed, runtime), shape, stream);
  };
  compute_terms(args.terms, 0, sender_part(graph, 0, graph.owned_nodes, graph.edges), terms, tickets, stream);
  run(interior, tickets.row_range(0, half));
  args.ghosts->call();
  if (graph.nodes > graph.owned_nodes) {
    compute_terms(args.terms, graph.owned_nodes,
                  sender_part(graph, graph.owned_nodes, graph.nodes, border.graph.edges), terms, {}, stream);
  }
  run(border, tickets.row_range(half, 2 * half));
}

/// The gradients of the nodes begin, begin + 1, ... that send, and of the sender weight by them, in the
/// launches of what `jobs` and `sums` ask for.
void sender_gradients(const EdgeUpdateBackward& args, int64_t begin, const Graph& senders,
                      const Tensor& d_first, const NodeTermTensors& d_terms,
                      std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                      Runtime& runtime, const Stream& stream) {
  const auto rows = [&](const Tensor& of) { return rows_or_none(of, begin, begin + senders.nodes); };
  node_terms_backward({.graph = &senders,
                       .sender_weight = args.terms.sender_weight,
                       .receiver_weight = args.terms.receiver_weight,
                       .nodes = rows(args.terms.nodes),
                       .d_first = d_first,
                       .d_receiver_terms = d_terms.receiver,
                       .d_sender_terms = rows(d_terms.sender),
                       .d_nodes = rows(args.d_nodes),
                       .accumulate = args.accumulate_d_nodes,
                       .d_sender_weight = args.d_sender_weight},
                      jobs, sums, runtime, stream);
}

/// The gradients of all weights and of the nodes, in one launch and that of the sum of slices; `senders` are
/// the first nodes, of which those behind have theirs.
void node_and_weight_gradients(const EdgeUpdateBackward& args, const Graph& senders,
                               const BackwardWorkspace& workspace, const NodeTermTensors& d_terms,
                               Runtime& runtime, const Stream& stream) {
  const Graph& graph = *args.graph;
  const Tensor& d_first = workspace.d_z.front();
  std::vector<WeightGradientJob> jobs;
  if (args.d_edge_weight.defined())
    jobs.push_back({args.edges.x, d_first, args.d_edge_weight, graph.edge_rows()});
  workspace.add_jobs(jobs, args.d_weights, graph.edge_rows());
  if (args.d_receiver_weight.defined()) {
    jobs.push_back({args.terms.nodes.row_range(0, graph.owned_nodes), d_terms.receiver,
                    args.d_receiver_weight, graph.owned_rows()});
  }
  const std::vector<ColumnSumJob> sums = workspace.column_sums(args.d_weights);
  // dS has two uses, d_h and d_W_s; when neither is needed, it is not computed.
  if (!args.d_nodes.defined() && !args.d_sender_weight.defined()) {
    weight_gradients(jobs, sums, runtime, stream);
    return;
  }
  sender_gradients(args, 0, senders, d_first, d_terms, jobs, sums, runtime, stream);
}

}  // namespace

std::string why_not_fused(const EdgeUpdateForward& args) {
  std::string reason =
      edges_reason(args, [](int64_t width, int, bool) { return edge_forward_warp_words(width); });
  if (!reason.empty()) return reason;
  return aligned(args.edges_out) && aligned(args.aggregate) ? "" : kUnaligned;
}

std::string why_not_fused(const EdgeUpdateBackward& args) {
  std::string reason = edges_reason(args, edge_backward_warp_words);
  if (!reason.empty()) return reason;
  const bool fits = aligned(args.d_edges_out) && aligned(args.d_aggregate) && aligned(args.d_edges) &&
                    aligned(args.d_nodes);
  return fits ? "" : kUnaligned;
}

void fused_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  if (args.ghosts != nullptr) return split_edge_forward(args, runtime, stream);
  const DType dtype = args.aggregate.dtype();
  const int64_t width = args.edges.weight.width();
  const FusedShape shape = edge_shape(args, edge_forward_warp_words(width), stream);
  const auto launch_kernel = is_smooth(args.weights) ? launch_edge_forward<true> : launch_edge_forward<false>;
  if (args.node_terms != nullptr && args.node_terms->sender.defined()) {
    const DividedSumTensors divided(shape.blocks, width, args.node_terms->tickets, runtime);
    return launch_kernel(args, NodeTermTensors(*args.node_terms), divided, shape, stream);
  }
  const NodeTermTensors terms(*args.graph, width, dtype, runtime);
  const DividedSumTensors divided(shape.blocks, width, runtime);
  node_terms_forward(args.terms, *args.graph, terms.sender, terms.receiver, divided.tickets, stream);
  launch_kernel(args, terms, divided, shape, stream);
}

void fused_edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  const DType dtype = args.d_aggregate.dtype();
  const Graph& graph = *args.graph;
  const int64_t width = args.edges.weight.width();
  const FusedShape shape = edge_shape(
      args, edge_backward_warp_words(width, args.weights.layers(), is_smooth(args.weights)), stream);
  const int64_t blocks = shape.blocks;
  const NodeTermTensors d_terms(graph, width, dtype, runtime);
  const int64_t launches = args.ghosts == nullptr ? 1 : 2;
  const BackwardWorkspace workspace(graph.edges, width, dtype, args.weights, args.d_weights,
                                    launches * blocks, runtime);
  const auto launch_kernel =
      is_smooth(args.weights) ? launch_edge_backward<true> : launch_edge_backward<false>;
  if (args.ghosts != nullptr) {
    const NodeTermTensors terms(graph, width, dtype, runtime);
    const Tensor tickets = divided_tickets(2 * blocks, runtime);
    const int64_t half = tickets.elements() / 2;
    compute_terms(args.terms, 0, graph, terms, tickets, stream);
    const auto run = [&](const EdgePart& part, int64_t launch) {
      const DividedSumTensors divided(blocks, width, tickets.row_range(launch * half, (launch + 1) * half),
                                      runtime);
      launch_kernel(part_of(args, part), part_of(terms, part), divided, part_of(d_terms, part),
                    workspace.part(part.first_edge, part.end_edge, launch * blocks, blocks), shape, stream);
    };
    const EdgePart border = border_edges(graph, *args.ghosts);
    run(border, 0);  // the edges that ghosts send, so that their gradients can leave
    if (graph.nodes > graph.owned_nodes) {
      sender_gradients(args, graph.owned_nodes,
                       sender_part(graph, graph.owned_nodes, graph.nodes, border.graph.edges),
                       workspace.d_z.front(), d_terms, {}, {}, runtime, stream);
    }
    args.ghosts->call();
    run(interior_edges(graph, *args.ghosts), 1);
    const Graph owned = sender_part(graph, 0, graph.owned_nodes, graph.edges);
    return node_and_weight_gradients(args, owned, workspace, d_terms, runtime, stream);
  }
  {
    // S and R are recomputed: saved, they would be 0.5 KB per node and message-passing block at width 128.
    const NodeTermTensors terms(graph, width, dtype, runtime);
    const DividedSumTensors divided(blocks, width, runtime);
    node_terms_forward(args.terms, graph, terms.sender, terms.receiver, divided.tickets, stream);
    launch_kernel(args, terms, divided, d_terms, workspace, shape, stream);
  }
  node_and_weight_gradients(args, graph, workspace, d_terms, runtime, stream);
}

}  // namespace meshgrad::cuda
