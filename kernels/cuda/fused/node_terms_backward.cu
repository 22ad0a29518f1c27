// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/node_terms_backward.h>

namespace meshgrad::cuda {
namespace {

using namespace node_tiles;

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, kBackwardBlocks<W>)
    node_terms_backward_kernel(NodeTermsBackwardArgs<T> args) {
  run_backward_block<T, W>(args);
}

}  // namespace

void node_terms_backward(const NodeTermsBackward& backward, std::span<const WeightGradientJob> jobs,
                         std::span<const ColumnSumJob> sums, Runtime& runtime, const Stream& stream) {
  const Graph& graph = *backward.graph;
  // Job 0 divides the nodes among blocks even if the weight gradient is not needed; its x is not read then.
  const Tensor& x = backward.d_sender_weight.defined() ? backward.nodes : backward.d_sender_terms;
  std::vector<WeightGradientJob> all = {
      {x, backward.d_sender_terms, backward.d_sender_weight, graph.node_rows()}};
  const size_t jobs_now = std::min<size_t>(jobs.size(), kMaxWeightGradientJobs - 1);
  const size_t sums_now = std::min<size_t>(sums.size(), kMaxColumnSumJobs);
  all.insert(all.end(), jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(jobs_now));
  dispatch(backward.d_sender_terms.dtype(), backward.d_sender_terms.width(), [&]<class T, int W>() {
    const Rows edges = graph.edge_rows();
    const int64_t resident_blocks = int64_t{kBackwardBlocks<W>} * gpu::multiprocessors(stream.device().index);
    const gradients::PreparedLaunch prepared(all, sums.first(sums_now), resident_blocks, &edges, runtime);
    NodeTermsBackwardArgs<T> args{};
    args.gradients = prepared.args;
    args.d_first = backward.d_first.data<T>();
    args.d_sender_terms = backward.d_sender_terms.data<T>();
    args.offsets = graph.sender_offsets.data<int32_t>();
    args.order = graph.sender_order.data<int32_t>();
    args.accumulate = backward.accumulate;
    set_rows(args, graph);
    if (backward.d_nodes.defined()) {
      args.weights[0] = backward.sender_weight.data<T>();
      args.weights[1] = backward.receiver_weight.data<T>();
      args.d_receiver_terms = backward.d_receiver_terms.data<T>();
      args.d_nodes = backward.d_nodes.data<T>();
    }
    const int shared_bytes = std::max(Slabs<T, W, RowSlabs<W>>::kBytes, gradients::kSharedBytes);
    launch("node_terms_backward", node_terms_backward_kernel<T, W>,
           {prepared.blocks, kFusedThreads, shared_bytes}, stream, args);
    gradients::start_sum_of_slices(prepared, stream);
  });
  weight_gradients(jobs.subspan(jobs_now), sums.subspan(sums_now), runtime, stream);  // the rest, mostly none
}

}  // namespace meshgrad::cuda
