// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_layers.h>
#include <meshgrad/kernels/cuda/fused/node_terms.h>
#include <meshgrad/kernels/cuda/fused/tile_receivers.h>

namespace meshgrad::cuda {
namespace {

/// What both directions read.
template <class T>
struct EdgeInputs {
  FusedLayers<T> layers;
  int matrix_words;
  EdgeList list;
  const T* edges;
  const T* sender_terms;
  const T* receiver_terms;
  bool residual, aggregate_after_residual;
};

/// A warp's next tile of edges.
template <int W>
struct EdgeTile {
  static constexpr int kRows = TileShape<W>::kRows;
  static constexpr int kBands = TileShape<W>::kBands;
  TileRows<kBands> edges;
  int sender, receiver;  ///< of the tile's edge `lane`; -1: none
  __device__ EdgeTile(const EdgeList& list, const EdgeRange& range, int round)
      : edges{range.edge_begin + round * kRows, range.edge_end} {
    const int mine = edges.first + lane_index();
    const bool real = mine < edges.end && lane_index() < kRows;
    sender = real ? list.senders[mine] : -1;
    receiver = real ? list.receivers[mine] : -1;
  }
  __device__ int count() const { return edges.end - edges.first; }
  __device__ LaneRows<kBands> rows() const { return edges.rows(); }
  __device__ LaneRows<kBands> receivers() const { return gathered_rows<kBands>(receiver); }
  __device__ LaneRows<kBands> senders() const { return gathered_rows<kBands>(sender); }
};

/// All widths of an edge update are alike.
template <class T, int W>
using EdgeMlp = TileMlp<T, W, false>;
template <class T, int W>
using EdgeMlpBackward = TileMlpBackward<T, W, false>;

/// z_1 = b_1 + S[sender] + R[receiver] + e W_e. Group by group, so that sums come to be as the gathered rows
/// arrive: all of them at once would not leave registers to load into.
template <class T, int W>
__device__ void first_layer(EdgeMlp<T, W>& mlp, const EdgeInputs<T>& args, const EdgeTile<W>& tile,
                            typename EdgeMlp<T, W>::Wide& z, typename EdgeMlp<T, W>::WideOperand& e) {
  load_operand(e, args.edges, tile.rows());
  const auto senders = tile.senders();
  const auto receivers = tile.receivers();
#pragma unroll
  for (int group = 0; group < TileShape<W>::kGroups; ++group) {
    const Eight bias = lane_values(mlp.vector(0), group);
    const int column = 32 * group + lane_column();
#pragma unroll
    for (int band = 0; band < TileShape<W>::kBands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Eight s = unpack<T>(load_pairs(args.sender_terms, W, senders.v[band][half], column));
        const Eight r = unpack<T>(load_pairs(args.receiver_terms, W, receivers.v[band][half], column));
#pragma unroll
        for (int i = 0; i < 8; ++i) z.at(band, half, group, i) = bias.v[i] + s.v[i] + r.v[i];
      }
  }
  multiply<T>(z, e, mlp.weights, 0);
}

template <class T>
struct EdgeForwardArgs {
  EdgeInputs<T> inputs;
  T* edges_out;  ///< null: not wanted
  T* aggregate;
};

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, 1) edge_forward_kernel(EdgeForwardArgs<T> args) {
  const EdgeInputs<T>& in = args.inputs;
  const FusedShared<W> shared(in.matrix_words, ReceiverSums<T, W>::kStageFloats);
  EdgeMlp<T, W> mlp(in.layers, shared);
  const int part = static_cast<int>(blockIdx.x) * kFusedWarps + warp_index();
  const EdgeRange range = edge_range(in.list, part, static_cast<int>(gridDim.x) * kFusedWarps);
  const int rounds =
      rounds_of<W>((range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows);
  ReceiverSums<T, W> sums(shared.warp, args.aggregate, range);
  for (int round = 0; round < rounds; ++round) {
    const EdgeTile<W> tile(in.list, range, round);
    typename EdgeMlp<T, W>::Wide z;
    typename EdgeMlp<T, W>::WideOperand h;
    first_layer(mlp, in, tile, z, h);
    mlp.hidden_layers(
        z, h, [](int, auto&) {}, [](int, auto&) {});
    mlp.finish(z);
    if (in.residual && in.aggregate_after_residual) add_rows(z, in.edges, tile.rows());
    sums.add(z, tile.receiver, tile.count());
    if (args.edges_out == nullptr) continue;
    if (in.residual && !in.aggregate_after_residual) add_rows(z, in.edges, tile.rows());
    store_rows(z, args.edges_out, tile.rows());
  }
  sums.finish();
}

template <class T>
struct EdgeBackwardArgs {
  EdgeInputs<T> inputs;
  const T* d_edges_out;  ///< null: zero
  const T* d_aggregate;
  T* d_edges;           ///< null: not wanted
  T* d_receiver_terms;  ///< [owned_nodes, W]
  FusedLeavings<T> leavings;
};

/// d_e = d_z_1 W_e^T and, with a residual, the gradient of e'. Reads d_edges_out where it writes d_edges, in
/// the same lanes: the two may be one.
template <class T, int W>
__device__ void store_edge_gradient(EdgeMlp<T, W>& mlp, const EdgeBackwardArgs<T>& args,
                                    const EdgeTile<W>& tile, typename EdgeMlp<T, W>::Wide& z,
                                    const typename EdgeMlp<T, W>::WideOperand& d_z) {
  z.clear();
  multiply_transposed<T>(z, d_z, mlp.weights, 0);
  if (args.inputs.residual) {
    if (args.d_edges_out != nullptr) add_rows(z, args.d_edges_out, tile.rows());
    if (args.inputs.aggregate_after_residual) add_rows(z, args.d_aggregate, tile.receivers());
  }
  store_rows(z, args.d_edges, tile.rows());
}

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, 1) edge_backward_kernel(EdgeBackwardArgs<T> args) {
  using Backward = EdgeMlpBackward<T, W>;
  constexpr int kWarpWords = Backward::kWarpWords + ReceiverSums<T, W>::kStageFloats;
  const EdgeInputs<T>& in = args.inputs;
  const FusedShared<W> shared(in.matrix_words, kWarpWords);
  EdgeMlp<T, W> mlp(in.layers, shared);
  Backward backward(mlp, args.leavings, shared.warp);
  const int part = static_cast<int>(blockIdx.x) * kFusedWarps + warp_index();
  const EdgeRange range = edge_range(in.list, part, static_cast<int>(gridDim.x) * kFusedWarps);
  const int rounds =
      rounds_of<W>((range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows);
  ReceiverSums<T, W> sums(shared.warp + Backward::kWarpWords, args.d_receiver_terms, range);
  for (int round = 0; round < rounds; ++round) {
    const EdgeTile<W> tile(in.list, range, round);
    typename Backward::Wide z;
    typename Backward::WideOperand h;
    first_layer(mlp, in, tile, z, h);
    backward.recompute(z, h, tile.edges);
    {
      const auto rows = tile.rows();
      const auto receivers = tile.receivers();
      backward.last_gradient(z, [&](int band, int half, int group) {
        const int column = 32 * group + lane_column();
        Eight d_y = unpack<T>(load_pairs(args.d_aggregate, W, receivers.v[band][half], column));
        if (args.d_edges_out != nullptr) {
          const Eight own = unpack<T>(load_pairs(args.d_edges_out, W, rows.v[band][half], column));
#pragma unroll
          for (int i = 0; i < 8; ++i) d_y.v[i] += own.v[i];
        }
        return d_y;
      });
    }
    backward.layers_before(z, h, in.layers.layers - 1, tile.edges);
    sums.add(z, tile.receiver, tile.count());
    if (args.d_edges != nullptr) store_edge_gradient(mlp, args, tile, z, h);
  }
  sums.finish();
  backward.write_column_sums(kWarpWords);
}

int forward_warp_words(int64_t width) { return 8 * (static_cast<int>(width) + 2); }
int backward_warp_words(int64_t width) {
  const int stage = forward_warp_words(width);
  if (width == 64) return EdgeMlpBackward<half, 64>::kWarpWords + stage;
  return stage +
         (width == 128 ? EdgeMlpBackward<half, 128>::kWarpWords : EdgeMlpBackward<half, 256>::kWarpWords);
}

template <class Args>
bool edges_covered(const Args& args, int (*warp_words)(int64_t width)) {
  const std::span<const MlpInput> inputs(&args.edges, 1);
  const int64_t width = args.edges.weight.width();
  return args.edges.weight.rows() == width && args.terms.nodes.width() == width &&
         (args.weights.weights.empty() || args.weights.weights.back().width() == width) &&
         layers_covered(inputs, args.weights, args.saved, warp_words) &&
         node_terms_cover(args.edges.x.dtype(), width, width) && aligned(args.terms.nodes) &&
         aligned(args.terms.sender_weight) && aligned(args.terms.receiver_weight) &&
         few_enough(args.graph->edges) && few_enough(args.graph->nodes);
}

/// S and R, which both directions need.
struct Terms {
  Tensor sender, receiver;
  Terms(const Graph& graph, int64_t width, DType dtype, Runtime& runtime)
      : sender(Tensor::empty(runtime, {graph.nodes, width}, dtype, Tag::workspace, "sender terms")),
        receiver(
            Tensor::empty(runtime, {graph.owned_nodes, width}, dtype, Tag::workspace, "receiver terms")) {}
};

template <class T, class Args>
EdgeInputs<T> edge_inputs(const Args& args, const Terms& terms) {
  const Graph& graph = *args.graph;
  const std::span<const MlpInput> inputs(&args.edges, 1);
  return {.layers = fused_layers<T>(inputs, args.weights),
          .matrix_words = matrix_words(inputs, args.weights),
          .list = {.senders = graph.senders.data<int32_t>(),
                   .receivers = graph.receivers.data<int32_t>(),
                   .receiver_offsets = graph.receiver_offsets.data<int32_t>(),
                   .edge_count = graph.edge_rows().count,
                   .owned_count = graph.owned_rows().count,
                   .edge_capacity = graph.edges,
                   .owned_capacity = graph.owned_nodes},
          .edges = args.edges.x.template data<T>(),
          .sender_terms = terms.sender.data<T>(),
          .receiver_terms = terms.receiver.data<T>(),
          .residual = args.residual,
          .aggregate_after_residual = args.aggregate_after_residual};
}

/// All weights' gradients and the nodes', in one launch.
void other_gradients(const EdgeUpdateBackward& args, const BackwardLeavings& leavings, const Terms& d_terms,
                     Runtime& runtime, const Stream& stream) {
  const Graph& graph = *args.graph;
  const Tensor& d_first = leavings.d_z.front();
  std::vector<WeightGradientJob> jobs;
  if (args.d_edge_weight.defined())
    jobs.push_back({args.edges.x, d_first, args.d_edge_weight, graph.edge_rows()});
  leavings.add_jobs(jobs, args.d_weights, graph.edge_rows());
  if (args.d_receiver_weight.defined()) {
    jobs.push_back({args.terms.nodes.row_range(0, graph.owned_nodes), d_terms.receiver,
                    args.d_receiver_weight, graph.owned_rows()});
  }
  const std::vector<ColumnSumJob> sums = leavings.column_sums(args.d_weights);
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

bool fused_covers(const EdgeUpdateForward& args) {
  return edges_covered(args, forward_warp_words) && aligned(args.edges_out) && aligned(args.aggregate);
}

bool fused_covers(const EdgeUpdateBackward& args) {
  return edges_covered(args, backward_warp_words) && aligned(args.d_edges_out) && aligned(args.d_aggregate) &&
         aligned(args.d_edges) && aligned(args.d_nodes);
}

void fused_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  const DType dtype = args.aggregate.dtype();
  const int64_t width = args.edges.weight.width();
  const Terms terms(*args.graph, width, dtype, runtime);
  node_terms_forward(args.terms, *args.graph, terms.sender, terms.receiver, runtime, stream);
  dispatch_fused(dtype, width, [&]<class T, int W>() {
    const EdgeForwardArgs<T> kernel_args{.inputs = edge_inputs<T>(args, terms),
                                         .edges_out = args.edges_out.data_or_null<T>(),
                                         .aggregate = args.aggregate.data<T>()};
    launch("edge_forward", edge_forward_kernel<T, W>,
           {.blocks = gpu::multiprocessors(stream.device().index),
            .threads = kFusedThreads,
            .shared_bytes = shared_bytes(W, kernel_args.inputs.matrix_words, forward_warp_words(W))},
           stream, kernel_args);
  });
}

void fused_edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  const DType dtype = args.d_aggregate.dtype();
  const Graph& graph = *args.graph;
  const int64_t width = args.edges.weight.width();
  const int64_t blocks = gpu::multiprocessors(stream.device().index);
  const Terms d_terms(graph, width, dtype, runtime);
  const BackwardLeavings leavings(graph.edges, width, dtype, args.weights, args.d_weights, blocks, runtime);
  {
    const Terms terms(graph, width, dtype, runtime);
    node_terms_forward(args.terms, graph, terms.sender, terms.receiver, runtime, stream);
    dispatch_fused(dtype, width, [&]<class T, int W>() {
      const EdgeBackwardArgs<T> kernel_args{.inputs = edge_inputs<T>(args, terms),
                                            .d_edges_out = args.d_edges_out.data_or_null<T>(),
                                            .d_aggregate = args.d_aggregate.data<T>(),
                                            .d_edges = args.d_edges.data_or_null<T>(),
                                            .d_receiver_terms = d_terms.receiver.data<T>(),
                                            .leavings = leavings.pointers<T>()};
      launch("edge_backward", edge_backward_kernel<T, W>,
             {.blocks = blocks,
              .threads = kFusedThreads,
              .shared_bytes = shared_bytes(W, kernel_args.inputs.matrix_words, backward_warp_words(W))},
             stream, kernel_args);
    });
  }
  other_gradients(args, leavings, d_terms, runtime, stream);
}

}  // namespace meshgrad::cuda
