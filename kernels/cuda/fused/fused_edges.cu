// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_edges.h>

namespace meshgrad::cuda {
namespace {

/// Why forward or backward does not fit the fused kernels, empty when it does: all widths equal, 16-byte
/// rows, and the shared memory of the table above within the device's.
template <class Args>
std::string edges_reason(const Args& args, int (*warp_words)(int64_t width, bool smooth)) {
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

/// The gradients of all weights and of the nodes, in one launch.
void node_and_weight_gradients(const EdgeUpdateBackward& args, const BackwardWorkspace& workspace,
                               const NodeTermTensors& d_terms, Runtime& runtime, const Stream& stream) {
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
  node_terms_backward({.graph = &graph,
                       .sender_weight = args.terms.sender_weight,
                       .receiver_weight = args.terms.receiver_weight,
                       .nodes = args.terms.nodes,
                       .d_first = d_first,
                       .d_receiver_terms = d_terms.receiver,
                       .d_sender_terms = d_terms.sender,
                       .d_nodes = args.d_nodes,
                       .accumulate = args.accumulate_d_nodes,
                       .d_sender_weight = args.d_sender_weight},
                      jobs, sums, runtime, stream);
}

}  // namespace

std::string why_not_fused(const EdgeUpdateForward& args) {
  std::string reason = edges_reason(args, [](int64_t width, bool) { return edge_forward_warp_words(width); });
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
  const DType dtype = args.aggregate.dtype();
  const int64_t width = args.edges.weight.width();
  const int64_t blocks = fused_blocks(stream, width);
  const auto launch_kernel = is_smooth(args.weights) ? launch_edge_forward<true> : launch_edge_forward<false>;
  if (args.node_terms != nullptr && args.node_terms->sender.defined()) {
    const DividedSumTensors divided(blocks, width, args.node_terms->tickets, runtime);
    return launch_kernel(args, NodeTermTensors(*args.node_terms), divided, stream);
  }
  const NodeTermTensors terms(*args.graph, width, dtype, runtime);
  const DividedSumTensors divided(blocks, width, runtime);
  node_terms_forward(args.terms, *args.graph, terms.sender, terms.receiver, divided.tickets, stream);
  launch_kernel(args, terms, divided, stream);
}

void fused_edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  const DType dtype = args.d_aggregate.dtype();
  const Graph& graph = *args.graph;
  const int64_t width = args.edges.weight.width();
  const int64_t blocks = fused_blocks(stream, width);
  const NodeTermTensors d_terms(graph, width, dtype, runtime);
  const BackwardWorkspace workspace(graph.edges, width, dtype, args.weights, args.d_weights, blocks, runtime);
  {
    // S and R are recomputed: saved, they would be 0.5 KB per node and message-passing block at width 128.
    const NodeTermTensors terms(graph, width, dtype, runtime);
    const DividedSumTensors divided(blocks, width, runtime);
    node_terms_forward(args.terms, graph, terms.sender, terms.receiver, divided.tickets, stream);
    const auto launch_kernel =
        is_smooth(args.weights) ? launch_edge_backward<true> : launch_edge_backward<false>;
    launch_kernel(args, terms, divided, d_terms, workspace, stream);
  }
  node_and_weight_gradients(args, workspace, d_terms, runtime, stream);
}

}  // namespace meshgrad::cuda
