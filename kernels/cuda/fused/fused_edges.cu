// SPDX-License-Identifier: Apache-2.0
// The edge update, forward and backward, each in one pass over the edges. A warp owns a contiguous range of
// receivers with all their edges and takes tiles of 32 edges (16 at width 256) through gather, MLP, norm,
// residual and receiver sum, all in registers. Per edge, forward reads e, S[sender] and R[receiver] and
// writes e'.
//
// S[sender] is a gather of W 16-bit values per edge, whose locality is that of the mesh numbering;
// R[receiver] is read in order. One block of 8 warps per multiprocessor (two at width 64), so that a thread
// has 255 registers for its share of the tile. Shared memory of a block at width 128 with three layers, in
// bytes:
//
//   vectors   6 x 128 floats                        3 072
//   weights   W_e and two hidden ones              98 304
//   staging   8 warps x 8 x 130 floats             33 280   forward: 134 656
//   sums      8 warps x 6 x 128 floats             24 576
//   masks     8 warps x 3 x 128 words              12 288   backward: 171 520, more than an A100's 166 912
#include <meshgrad/kernels/cuda/fused/fused_layers.h>
#include <meshgrad/kernels/cuda/fused/node_terms.h>
#include <meshgrad/kernels/cuda/fused/tile_receivers.h>

namespace meshgrad::cuda {
namespace {

/// The arguments that forward and backward share.
template <class T>
struct EdgeInputs {
  FusedLayers<T> layers;
  int matrix_words;
  EdgeList list;
  const T* edges;
  const T* sender_terms;    ///< S: [nodes, W]
  const T* receiver_terms;  ///< R: [owned_nodes, W]
  bool residual, aggregate_after_residual;
};

/// The tile of a warp's edges in one round; behind the warp's last edge it is empty (count() <= 0), which
/// happens only where streamed weights make all warps run equally many rounds.
template <int W>
struct EdgeTile {
  static constexpr int kRows = TileShape<W>::kRows;
  static constexpr int kBands = TileShape<W>::kBands;
  TileRows<kBands> edges;
  /// Of edge `lane` of the tile, of the last one behind it: one coalesced load of 32 indices. 0 in an empty
  /// tile.
  int sender, receiver;
  __device__ EdgeTile(const EdgeList& list, const EdgeRange& range, int round)
      : edges{range.edge_begin + round * kRows, range.edge_end} {
    sender = edges.empty() ? 0 : list.senders[edge()];
    receiver = edges.empty() ? 0 : list.receivers[edge()];
  }
  __device__ int count() const { return edges.end - edges.first; }
  /// Of a tile that is not empty.
  __device__ int edge() const { return min(edges.first + min(lane_index(), kRows - 1), edges.end - 1); }
  __device__ LaneRows<kBands> receivers() const { return gathered_rows<kBands>(receiver); }
  __device__ LaneRows<kBands> senders() const { return gathered_rows<kBands>(sender); }
};

/// All widths of an edge update are equal, so the kernels are not compiled for narrow inputs or outputs.
template <class T, int W>
using EdgeMlp = TileMlp<T, W, false>;
template <class T, int W>
using EdgeMlpBackward = TileMlpBackward<T, W, false>;

/// z = b_1 + S[sender] + R[receiver], and the operand e of z_1 = z + e W_e. All rows of the tile are in
/// flight together: the gathered ones take the registers of z until they are added.
template <class T, int W>
__device__ void gather(EdgeMlp<T, W>& mlp, const EdgeInputs<T>& args, const EdgeTile<W>& tile,
                       typename EdgeMlp<T, W>::Wide& z, typename EdgeMlp<T, W>::WideOperand& e) {
  constexpr int kBands = TileShape<W>::kBands;
  const auto senders = tile.senders();
  const auto receivers = tile.receivers();
  start(z, mlp.vector(0));
  if constexpr (kFusedBlocks < W >> 1) {  // fewer registers, more warps: band by band
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      LoadedRows<TileShape<W>::kGroups> s, r;
      s.load(args.sender_terms, senders.band(band));
      r.load(args.receiver_terms, receivers.band(band));
      add_loaded<T>(z, band, s);
      add_loaded<T>(z, band, r);
    }
    load_operand(e, args.edges, tile.edges.rows());
  } else {
    LoadedRows<TileShape<W>::kGroups> s[kBands], r[kBands];
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      s[band].load(args.sender_terms, senders.band(band));
      r[band].load(args.receiver_terms, receivers.band(band));
    }
    load_operand(e, args.edges, tile.edges.rows());
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      add_loaded<T>(z, band, s[band]);
      add_loaded<T>(z, band, r[band]);
    }
  }
}
/// The layers from there, where the only input has been loaded and is as wide as the rest.
template <class T, int W, class OnHidden>
__device__ void forward_layers(EdgeMlp<T, W>& mlp, const EdgeTile<W>& tile, typename EdgeMlp<T, W>::Wide& z,
                               typename EdgeMlp<T, W>::WideOperand& h, const OnHidden& on_hidden) {
  mlp.forward(
      z, h, tile.edges, [](int, auto&) {}, [](int) -> const T* { return nullptr; }, on_hidden);
}
/// Asks for the rows of the next tile while this one is multiplied.
template <class T, int W>
__device__ void prefetch_rows(const EdgeInputs<T>& args, const EdgeTile<W>& next) {
  if (next.edges.empty()) return;
  prefetch_row<W>(args.edges, next.edge());
  prefetch_row<W>(args.sender_terms, next.sender);
  prefetch_row<W>(args.receiver_terms, next.receiver);
}

template <class T>
struct EdgeForwardArgs {
  EdgeInputs<T> inputs;
  T* edges_out;  ///< null: not needed
  T* aggregate;
};

/// The tile stays in `z` from the pre-activation to e'. Receivers sum y (or e') in f32, before rounding. Per
/// round: gather and first layer, hidden layers, norm, receiver sums, residual, store. There is no barrier in
/// the loop below width 256, so while one warp waits for gathered rows the others multiply.
template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    edge_forward_kernel(EdgeForwardArgs<T> args) {
  const EdgeInputs<T>& in = args.inputs;
  const FusedShared<W> shared(in.matrix_words, ReceiverSums<T, W>::kStageFloats);
  EdgeMlp<T, W> mlp(in.layers, shared);
  const int part = static_cast<int>(blockIdx.x) * kFusedWarps + warp_index();
  const EdgeRange range = edge_range(in.list, part, static_cast<int>(gridDim.x) * kFusedWarps);
  const int rounds =
      rounds_of<W>((range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows);
  ReceiverSums<T, W> sums(shared.warp, args.aggregate, range);
  EdgeTile<W> next(in.list, range, 0);
  for (int round = 0; round < rounds; ++round) {
    const EdgeTile<W> tile = next;
    next = EdgeTile<W>(in.list, range, round + 1);
    typename EdgeMlp<T, W>::Wide z;
    typename EdgeMlp<T, W>::WideOperand h;
    gather(mlp, in, tile, z, h);
    prefetch_rows(in, next);
    forward_layers(mlp, tile, z, h, [](int, auto&) {});
    LoadedRows<TileShape<W>::kGroups> own[TileShape<W>::kBands]{};
    if (in.residual && !tile.edges.empty()) {
#pragma unroll
      for (int band = 0; band < TileShape<W>::kBands; ++band)
        own[band].load(in.edges, tile.edges.existing().band(band));
    }
    mlp.apply_norm(z);
    // The sums of the receivers and the residual, in either order: a loop, so that there is one copy of each.
#pragma unroll 1
    for (int step = 0; step < 2; ++step) {
      if ((step == 0) != in.aggregate_after_residual) {
        sums.add(z, tile.receiver, tile.count());
      } else {
#pragma unroll
        for (int band = 0; band < TileShape<W>::kBands; ++band) add_loaded<T>(z, band, own[band]);
      }
    }
    if (args.edges_out == nullptr) continue;
    store_rows(z, args.edges_out, tile.edges.rows());
  }
  sums.finish();
}

template <class T>
struct EdgeBackwardArgs {
  EdgeInputs<T> inputs;
  const T* d_edges_out;  ///< null: zero
  const T* d_aggregate;
  T* d_edges;           ///< null: not needed
  T* d_receiver_terms;  ///< [owned_nodes, W]
  BackwardPointers<T> workspace;
};

/// A band of d_y = d_aggregate[receiver] + d_edges_out, rounded to storage like any sum of gradients.
template <class T, int W>
__device__ LoadedRows<TileShape<W>::kGroups> output_gradient(const EdgeBackwardArgs<T>& args,
                                                             const EdgeTile<W>& tile, int band) {
  LoadedRows<TileShape<W>::kGroups> d_y, own;
  d_y.load(args.d_aggregate, tile.receivers().band(band));
  if (args.d_edges_out == nullptr || tile.edges.empty()) return d_y;
  own.load(args.d_edges_out, tile.edges.existing().band(band));
  d_y.template add<T>(own);
  return d_y;
}
template <class T, int W>
__device__ void prefetch_gradients(const EdgeBackwardArgs<T>& args, const EdgeTile<W>& next) {
  if (next.edges.empty()) return;
  prefetch_row<W>(args.d_aggregate, next.receiver);
  if (args.d_edges_out != nullptr) prefetch_row<W>(args.d_edges_out, next.edge());
}
/// Stores d_e = d_z_1 W_e^T (in z) and, with a residual, the gradient of e'. d_edges may be the same memory
/// as d_edges_out: a lane reads the values that it overwrites, before it does so.
template <class T, int W>
__device__ void store_edge_gradient(const EdgeBackwardArgs<T>& args, const EdgeTile<W>& tile,
                                    typename EdgeMlp<T, W>::Wide& z) {
  if (args.inputs.residual && !tile.edges.empty()) {
    constexpr int kBands = TileShape<W>::kBands;
    LoadedRows<TileShape<W>::kGroups> more[kBands]{};
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (args.d_edges_out != nullptr) more[band].load(args.d_edges_out, tile.edges.existing().band(band));
      if (args.inputs.aggregate_after_residual) {
        LoadedRows<TileShape<W>::kGroups> sum;
        sum.load(args.d_aggregate, tile.receivers().band(band));
        more[band].template add<T>(sum);
      }
    }
    __syncwarp();  // lanes without a row read the last one, too, before its lane stores it
#pragma unroll
    for (int band = 0; band < kBands; ++band) add_loaded<T>(z, band, more[band]);
  }
  store_rows(z, args.d_edges, tile.edges.rows());
}

/// Recomputes forward up to z_last, then goes through d_y = d_aggregate[receiver] + d_edges_out, the norm and
/// the layers to d_z_1. dR is its sum over each receiver's edges, with the ReceiverSums of forward. dS needs
/// sender order: d_z_1 of all edges is stored in the workspace, from which node_terms_backward sums it.
template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    edge_backward_kernel(EdgeBackwardArgs<T> args) {
  using Backward = EdgeMlpBackward<T, W>;
  constexpr int kWarpWords = Backward::kWarpWords + ReceiverSums<T, W>::kStageFloats;
  const EdgeInputs<T>& in = args.inputs;
  const FusedShared<W> shared(in.matrix_words, kWarpWords);
  EdgeMlp<T, W> mlp(in.layers, shared);
  Backward backward(mlp, args.workspace, shared.warp);
  const int part = static_cast<int>(blockIdx.x) * kFusedWarps + warp_index();
  const EdgeRange range = edge_range(in.list, part, static_cast<int>(gridDim.x) * kFusedWarps);
  const int rounds =
      rounds_of<W>((range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows);
  ReceiverSums<T, W> sums(shared.warp + Backward::kWarpWords, args.d_receiver_terms, range);
  EdgeTile<W> next(in.list, range, 0);
  for (int round = 0; round < rounds; ++round) {
    const EdgeTile<W> tile = next;
    next = EdgeTile<W>(in.list, range, round + 1);
    typename Backward::Wide z;
    typename Backward::WideOperand h;
    gather(mlp, in, tile, z, h);
    prefetch_rows(in, next);
    forward_layers(mlp, tile, z, h,
                   [&](int layer, auto& hidden) { backward.keep_hidden(layer, hidden, tile.edges); });
    prefetch_gradients(args, next);
    backward.output_gradient(z, tile.edges, [&](int band) { return output_gradient(args, tile, band); });
    backward.backward(z, h, in.layers.layers - 1, tile.edges, args.d_edges != nullptr,
                      [&](auto& d_z) { sums.add(d_z, tile.receiver, tile.count()); });
    if (args.d_edges != nullptr) store_edge_gradient(args, tile, z);
  }
  sums.finish();
  backward.write_column_sums(kWarpWords);
}

/// Shared memory per warp, in words: ReceiverSums::kStageFloats, and in backward also that of the layers.
int forward_warp_words(int64_t width) { return 8 * (static_cast<int>(width) + 2); }
int backward_warp_words(int64_t width) {
  const int stage = forward_warp_words(width);
  if (width == 64) return EdgeMlpBackward<half, 64>::kWarpWords + stage;
  return stage +
         (width == 128 ? EdgeMlpBackward<half, 128>::kWarpWords : EdgeMlpBackward<half, 256>::kWarpWords);
}

/// Why forward or backward does not fit the fused kernels, empty when it does: all widths equal, 16-byte
/// rows, and the shared memory of the table above within the device's.
template <class Args>
std::string edges_reason(const Args& args, int (*warp_words)(int64_t width)) {
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

/// S and R, or their gradients.
struct NodeTermTensors {
  Tensor sender, receiver;
  NodeTermTensors(const Graph& graph, int64_t width, DType dtype, Runtime& runtime)
      : sender(Tensor::empty(runtime, {graph.nodes, width}, dtype, Tag::workspace, "sender terms")),
        receiver(
            Tensor::empty(runtime, {graph.owned_nodes, width}, dtype, Tag::workspace, "receiver terms")) {}
};

template <class T, class Args>
EdgeInputs<T> edge_inputs(const Args& args, const NodeTermTensors& terms) {
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
  std::string reason = edges_reason(args, forward_warp_words);
  if (!reason.empty()) return reason;
  return aligned(args.edges_out) && aligned(args.aggregate) ? "" : kUnaligned;
}

std::string why_not_fused(const EdgeUpdateBackward& args) {
  std::string reason = edges_reason(args, backward_warp_words);
  if (!reason.empty()) return reason;
  const bool fits = aligned(args.d_edges_out) && aligned(args.d_aggregate) && aligned(args.d_edges) &&
                    aligned(args.d_nodes);
  return fits ? "" : kUnaligned;
}

void fused_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  const DType dtype = args.aggregate.dtype();
  const int64_t width = args.edges.weight.width();
  const NodeTermTensors terms(*args.graph, width, dtype, runtime);
  node_terms_forward(args.terms, *args.graph, terms.sender, terms.receiver, runtime, stream);
  dispatch_fused(dtype, width, [&]<class T, int W>() {
    const EdgeForwardArgs<T> kernel_args{.inputs = edge_inputs<T>(args, terms),
                                         .edges_out = args.edges_out.data_or_null<T>(),
                                         .aggregate = args.aggregate.data<T>()};
    launch("edge_forward", edge_forward_kernel<T, W>,
           {.blocks = fused_blocks(stream, W),
            .threads = kFusedThreads,
            .shared_bytes = shared_bytes(W, kernel_args.inputs.matrix_words, forward_warp_words(W))},
           stream, kernel_args);
  });
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
    node_terms_forward(args.terms, graph, terms.sender, terms.receiver, runtime, stream);
    dispatch_fused(dtype, width, [&]<class T, int W>() {
      const EdgeBackwardArgs<T> kernel_args{.inputs = edge_inputs<T>(args, terms),
                                            .d_edges_out = args.d_edges_out.data_or_null<T>(),
                                            .d_aggregate = args.d_aggregate.data<T>(),
                                            .d_edges = args.d_edges.data_or_null<T>(),
                                            .d_receiver_terms = d_terms.receiver.data<T>(),
                                            .workspace = workspace.pointers<T>()};
      launch("edge_backward", edge_backward_kernel<T, W>,
             {.blocks = blocks,
              .threads = kFusedThreads,
              .shared_bytes = shared_bytes(W, kernel_args.inputs.matrix_words, backward_warp_words(W))},
             stream, kernel_args);
    });
  }
  node_and_weight_gradients(args, workspace, d_terms, runtime, stream);
}

}  // namespace meshgrad::cuda
