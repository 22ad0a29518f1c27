// SPDX-License-Identifier: Apache-2.0
// The edge update, forward and backward, each in one pass over the edges. A warp owns a contiguous range of
// receivers with all their edges and takes tiles of 16 edges (32 at width 64) through gather, MLP, norm,
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
//   sums      8 warps x 5 x 128 floats             20 480
//   masks     8 warps x 2 x 64 words                4 096
//   waiting   8 warps x 128 floats                  4 096   backward: 163 328, of an A100's 166 912
//
// Streamed, the weights take two slices of 8 192 bytes instead: forward 52 736 and backward 81 408 bytes, of
// the 101 376 of compute capability 8.6, 8.9 and 12.0.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused_layers.h>
#include <meshgrad/kernels/cuda/fused/node_terms.h>
#include <meshgrad/kernels/cuda/fused/tile_receivers.h>
#include <meshgrad/kernels/cuda/node_term_tensors.h>

namespace meshgrad::cuda {

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
/// happens only where all warps run equally many rounds.
template <int W>
struct EdgeTile {
  static constexpr int kRows = TileShape<W>::kRows;
  static constexpr int kBands = TileShape<W>::kBands;
  TileRows<kBands> edges;
  /// Of edge `lane` of the tile, of the last one behind it: one coalesced load. 0 in an empty
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

/// Forward's receiver sums wait in shared memory only where a thread has half of the registers.
template <class T, int W>
using ForwardSums = ReceiverSums<T, W, (kFusedBlocks<W> > 1)>;
template <class T, int W>
using BackwardSums = ReceiverSums<T, W, true>;

/// All widths of an edge update are equal, so the kernels are not compiled for narrow inputs or outputs.
template <class T, int W, bool smooth, bool streamed>
using EdgeMlp = TileMlp<T, W, false, smooth, streamed>;
template <class T, int W, bool smooth, bool streamed>
using EdgeMlpBackward = TileMlpBackward<T, W, false, smooth, streamed, true>;

/// z = b_1 + S[sender] + R[receiver], and the operand e of z_1 = z + e W_e. All rows of the tile are in
/// flight together: the gathered ones take the registers of z until they are added.
template <class T, int W, class Mlp>
__device__ void gather(const Mlp& mlp, const EdgeInputs<T>& args, const EdgeTile<W>& tile, WideSums<W>& z,
                       WideOperand<W>& e) {
  constexpr int kBands = TileShape<W>::kBands;
  const auto senders = tile.senders();
  const auto receivers = tile.receivers();
  start(z, mlp.vector(0));
  if constexpr (kFusedBlocks<W> == 2) {  // fewer registers, more warps: band by band
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
template <class T, int W, class Mlp, class Activate>
__device__ void forward_layers(Mlp& mlp, const EdgeTile<W>& tile, WideSums<W>& z, WideOperand<W>& h,
                               const Activate& activate_hidden) {
  mlp.forward(
      z, h, tile.edges, [](int, auto&) {}, [](int) -> const T* { return nullptr; }, activate_hidden);
}
/// Asks for the rows of the next tile while this one is multiplied.
template <class T, int W>
__device__ void prefetch_rows(const EdgeInputs<T>& args, const EdgeTile<W>& next) {
  if (next.edges.empty()) return;
  prefetch_row<W>(args.edges, next.edge());
  prefetch_row<W>(args.sender_terms, next.sender);
  prefetch_row<W>(args.receiver_terms, next.receiver);
}

/// Shared memory per warp, in words: the receiver sums', and in backward also that of the layers. The storage
/// type does not matter.
template <template <class, int> class OfReceivers>
int receiver_words(int64_t width) {
  return width == 64    ? OfReceivers<half, 64>::kStageFloats
         : width == 128 ? OfReceivers<half, 128>::kStageFloats
                        : OfReceivers<half, 256>::kStageFloats;
}
inline int edge_forward_warp_words(int64_t width) { return receiver_words<ForwardSums>(width); }
inline int edge_backward_warp_words(int64_t width, int layers, bool smooth) {
  return layers_warp_words(width, layers, smooth) + receiver_words<BackwardSums>(width);
}

/// Memory for the receivers that are divided among warps: 0.7 MB on an H200 at width 128.
struct DividedSumTensors {
  Tensor partials, tickets;
  DividedSumTensors(int64_t blocks, int64_t width, Runtime& runtime)
      : DividedSumTensors(blocks, width, divided_tickets(blocks, runtime), runtime) {}
  DividedSumTensors(int64_t blocks, int64_t width, const Tensor& zeroed, Runtime& runtime)
      : partials(Tensor::empty(runtime, {blocks * kFusedWarps, width}, DType::f32, Tag::workspace,
                               "sums of divided receivers")),
        tickets(zeroed) {}
};

template <class T, class Args>
EdgeInputs<T> edge_inputs(const Args& args, const NodeTermTensors& terms, const DividedSumTensors& divided,
                          const FusedShape& shape) {
  const Graph& graph = *args.graph;
  const std::span<const MlpInput> inputs(&args.edges, 1);
  EdgeInputs<T> result{};  // and no initialisers: see simt::Call
  result.layers = fused_layers<T>(inputs, args.weights);
  result.matrix_words = shape.matrix_words;
  result.list = {.senders = graph.senders.data<int32_t>(),
                 .receivers = graph.receivers.data<int32_t>(),
                 .receiver_offsets = graph.receiver_offsets.data<int32_t>(),
                 .edge_count = graph.edge_rows().count,
                 .owned_count = graph.owned_rows().count,
                 .edge_capacity = graph.edges,
                 .owned_capacity = graph.owned_nodes,
                 .partials = divided.partials.data<float>(),
                 .tickets = static_cast<unsigned*>(divided.tickets.raw())};
  result.edges = args.edges.x.template data<T>();
  result.sender_terms = terms.sender.data<T>();
  result.receiver_terms = terms.receiver.data<T>();
  result.residual = args.residual;
  result.aggregate_after_residual = args.aggregate_after_residual;
  return result;
}

/// The launches, in one source file each so that they compile in parallel.
template <bool smooth>
void launch_edge_forward(const EdgeUpdateForward& args, const NodeTermTensors& terms,
                         const DividedSumTensors& divided, const FusedShape& shape, const Stream& stream);
template <bool smooth>
void launch_edge_backward(const EdgeUpdateBackward& args, const NodeTermTensors& terms,
                          const DividedSumTensors& divided, const NodeTermTensors& d_terms,
                          const BackwardWorkspace& workspace, const FusedShape& shape, const Stream& stream);

}  // namespace meshgrad::cuda
