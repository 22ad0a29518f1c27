// SPDX-License-Identifier: Apache-2.0
// The fused edge update. One pass over the edges, by tiles of consecutive edges; edges are sorted by
// receiver, so a thread owns whole receivers and sums them without atomics.
//
//   forward   per node:  S = h W_s, R = h W_r
//             per tile:  z_1 = S[sender] + R[receiver] + b_1 + e W_e, the other layers, norm, residual,
//                        aggregate[receiver] += y
//   backward  per tile:  d_y = d_e' + d_aggregate[receiver], back through the layers to d_z_1,
//                        d_R[receiver] += d_z_1, d_e = d_z_1 W_e^T + residual; d_z_1 is stored
//             after all: d_S[sender] = sum of d_z_1 in the order of senders, then d_W_s, d_W_r and d_h per
//             node
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

template <class S>
constexpr int64_t kForwardEdges = 2 * kTileRows<S>;  // edges of a task, approximately

/// First receiver of a slab of edges. Edges are cut into equal parts, and each cut moves up to the first edge
/// of a receiver: every receiver's sum then belongs to one slab and runs in edge order.
int64_t first_receiver(const Graph& graph, int64_t slab, int64_t slabs) {
  if (slab == slabs) return graph.owned_nodes;
  if (slab == 0) return 0;
  const auto offsets = graph.receiver_offsets.values<int32_t>();
  const auto target = static_cast<int32_t>(graph.edges * slab / slabs);
  return std::lower_bound(offsets.begin(), offsets.end() - 1, target) - offsets.begin();
}

/// The first slab with a receiver that may have an edge from a ghost. Without an exchange, none has. A dry
/// run has no offsets.
int64_t first_border_slab(const Graph& graph, const GhostExchange* ghosts, int64_t slabs, bool dry) {
  if (dry) return slabs;
  int64_t slab = ghosts != nullptr ? 0 : slabs;
  while (slab < slabs && first_receiver(graph, slab + 1, slabs) <= ghosts->interior) ++slab;
  return slab;
}

/// Sums rows by receiver. Receivers arrive in ascending order, so one row of accumulators is enough; each sum
/// is rounded to storage once, when its last edge has arrived.
template <class S>
class ReceiverSums {
  using T = Accumulator<S>;

 public:
  /// Writes rows [begin, end) of `target`; those without an edge become 0. `sum` is workspace of one row.
  ReceiverSums(const Tensor& target, int64_t begin, int64_t end, T* sum)
      : to_(target.data<S>()), width_(target.width()), sum_(sum) {
    std::fill_n(to_ + begin * width_, (end - begin) * width_, S());
  }
  /// Adds row i of y to receiver receivers[i].
  void add(int64_t rows, const T* y, int64_t y_row, const int32_t* receivers) {
    for (int64_t row = 0, next = 0; row < rows; row = next) {
      if (receivers[row] != receiver_) start(receivers[row]);
      while (next < rows && receivers[next] == receiver_) ++next;
      accumulator_ops_.sum_rows({.accumulate = true}, row, next, width_, y, y_row, sum_);
    }
  }
  void finish() { start(-1); }  ///< stores the last sum

 private:
  void start(int32_t receiver) {
    if (receiver_ >= 0) ops_.store(1, width_, sum_, 0, to_ + receiver_ * width_, 0);
    std::fill_n(sum_, width_, T(0));
    receiver_ = receiver;
  }
  const RowOps<S>& ops_ = row_ops<S>();
  const RowOps<T>& accumulator_ops_ = row_ops<T>();
  S* to_;
  int64_t width_;
  int32_t receiver_ = -1;
  T* sum_;
};

/// S = h W_s of every node and R = h W_r of the owned nodes; in backward, their gradients.
struct Terms {
  Tensor sender, receiver;
  Terms() = default;
  /// `ghosts_missing`: without the ghosts' rows of S, which compute_ghosts() adds.
  Terms(const Graph& graph, const NodeTerms& args, bool ghosts_missing, Runtime& runtime,
        const Stream& stream) {
    const int64_t hidden = args.sender_weight.width();
    const DType dtype = args.nodes.dtype();
    sender = Tensor::empty(runtime, {graph.nodes, hidden}, dtype, Tag::workspace, "sender terms");
    receiver = Tensor::empty(runtime, {graph.owned_nodes, hidden}, dtype, Tag::workspace, "receiver terms");
    compute_senders(args, 0, ghosts_missing ? graph.owned_nodes : graph.nodes, runtime, stream);
    linear_kernels.forward({.rows = graph.owned_nodes,
                            .x = args.nodes.row_range(0, graph.owned_nodes),
                            .weight = args.receiver_weight,
                            .bias = {},
                            .y = receiver},
                           runtime, stream);
  }
  void compute_ghosts(const Graph& graph, const NodeTerms& args, Runtime& runtime, const Stream& stream) {
    compute_senders(args, graph.owned_nodes, graph.nodes, runtime, stream);
  }

 private:
  void compute_senders(const NodeTerms& args, int64_t begin, int64_t end, Runtime& runtime,
                       const Stream& stream) {
    linear_kernels.forward({.rows = end - begin,
                            .x = args.nodes.row_range(begin, end),
                            .weight = args.sender_weight,
                            .bias = {},
                            .y = sender.row_range(begin, end)},
                           runtime, stream);
  }
};

/// d_S of the nodes [begin, end): senders are scattered over the tiles, so their sums are a pass of their
/// own, in edge order.
void sum_by_sender(const Graph& graph, const Tensor& d_first, const Terms& gradients, int64_t begin,
                   int64_t end, const Stream& stream) {
  segment_sum_kernels.segment_sum({.segments = end - begin,
                                   .offsets = graph.sender_offsets.row_range(begin, end + 1),
                                   .order = graph.sender_order,
                                   .x = d_first,
                                   .out = gradients.sender.row_range(begin, end)},
                                  stream);
}

/// d_h = d_S W_s^T of the nodes [begin, end).
void sender_gradients(const EdgeUpdateBackward& args, const Terms& gradients, int64_t begin, int64_t end,
                      Runtime& runtime, const Stream& stream) {
  linear_kernels.backward({.rows = end - begin,
                           .d_y = gradients.sender.row_range(begin, end),
                           .x = {},
                           .weight = args.terms.sender_weight,
                           .d_x = args.d_nodes.row_range(begin, end),
                           .accumulate_d_x = args.accumulate_d_nodes,
                           .d_weight = {},
                           .d_bias = {}},
                          runtime, stream);
}

/// The backward pass of Terms: d_W_s += h^T d_S, d_W_r += h^T d_R, and d_h = d_S W_s^T + d_R W_r^T, of which
/// the second term reaches the owned nodes only. Where ghosts were exchanged, their d_h is already written.
void terms_backward(const EdgeUpdateBackward& args, const Terms& gradients, Runtime& runtime,
                    const Stream& stream) {
  const Graph& graph = *args.graph;
  const bool ghosts_done = args.ghosts != nullptr;
  if (ghosts_done) sender_gradients(args, gradients, 0, graph.owned_nodes, runtime, stream);
  linear_kernels.backward({.rows = graph.nodes,
                           .d_y = gradients.sender,
                           .x = args.terms.nodes,
                           .weight = args.terms.sender_weight,
                           .d_x = ghosts_done ? Tensor() : args.d_nodes,
                           .accumulate_d_x = args.accumulate_d_nodes,
                           .d_weight = args.d_sender_weight,
                           .d_bias = {}},
                          runtime, stream);
  linear_kernels.backward(
      {.rows = graph.owned_nodes,
       .d_y = gradients.receiver,
       .x = args.terms.nodes.row_range(0, graph.owned_nodes),
       .weight = args.terms.receiver_weight,
       .d_x = args.d_nodes.defined() ? args.d_nodes.row_range(0, graph.owned_nodes) : Tensor(),
       .accumulate_d_x = true,
       .d_weight = args.d_receiver_weight,
       .d_bias = {}},
      runtime, stream);
}

/// S[sender] + R[receiver] + b_1 of a tile's edges, into the tile s.a: the initial sums of z_1, to which e
/// W_e is added.
template <class S>
InitialSums<Accumulator<S>> first_layer_terms(const MlpTile<S>& mlp, const Graph& graph, const Terms& terms,
                                              int64_t edge, int64_t count, TileScratch<S>& s) {
  row_ops<S>().gather_sum(count, mlp.first_width(), mlp.first_bias(),
                          {terms.sender.data<S>(), graph.senders.data<int32_t>() + edge},
                          {terms.receiver.data<S>(), graph.receivers.data<int32_t>() + edge}, s.a,
                          mlp.tile_row());
  return {s.a, mlp.tile_row()};
}

template <class S>
void edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  const PerInput<MlpInput> inputs{args.edges};
  const MlpTile<S> mlp(inputs, args.weights, args.saved, MlpTile<S>::Direction::forward, runtime);
  const Graph& graph = *args.graph;
  Terms terms(graph, args.terms, args.ghosts != nullptr, runtime, stream);
  const int64_t out = mlp.out_width();
  const int64_t slabs = std::max<int64_t>(1, graph.edges / kForwardEdges<S>);
  const int64_t border = first_border_slab(graph, args.ghosts, slabs, stream.dry());
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  const auto slab_forward = [&](int64_t slab) {
    TileScratch<S> s = mlp.scratch();
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    ReceiverSums<S> sums(args.aggregate, begin, end, s.row);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows<S>) {
      const int64_t count = std::min(kTileRows<S>, offsets[end] - edge);
      mlp.begin_tile(edge, count, {}, s);
      const auto start = first_layer_terms(mlp, graph, terms, edge, count, s);
      const Gemm<S> last = mlp.forward_to_last(edge, count, start, s);
      NormResult<S> result{.tile = s.a, .tile_row = mlp.tile_row()};
      if (args.residual) result.residual = args.edges.x.data<S>() + edge * out;
      result.residual_in_tile = args.aggregate_after_residual;
      if (args.edges_out.defined()) result.out = args.edges_out.data<S>() + edge * out;
      mlp.finish(edge, last, result, s);
      sums.add(count, s.a, mlp.tile_row(), receivers + edge);
    }
    sums.finish();
  };
  stream.parallel_for(border, slab_forward);
  if (args.ghosts == nullptr) return;
  args.ghosts->call();
  terms.compute_ghosts(graph, args.terms, runtime, stream);
  stream.parallel_for(slabs - border, [&](int64_t slab) { slab_forward(border + slab); });
}

/// d_y of a tile: the gradient of e' plus that of the receiver's aggregate.
template <class S>
void start_gradient(const EdgeUpdateBackward& args, int64_t edge, int64_t count, Accumulator<S>* tile,
                    int64_t row) {
  const int64_t out = args.d_aggregate.width();
  const S* from_edges = args.d_edges_out.defined() ? args.d_edges_out.data<S>() + edge * out : nullptr;
  row_ops<S>().gather_sum(count, out, nullptr, {from_edges},
                          {args.d_aggregate.data<S>(), args.graph->receivers.data<int32_t>() + edge}, tile,
                          row);
}

/// d_e = d_z_1 W_e^T and, with a residual, plus the gradient of e' (which includes the aggregate's if e' was
/// aggregated). Reads d_edges_out before it writes d_edges: they may alias.
template <class S>
void write_edge_gradient(const EdgeUpdateBackward& args, const MlpTile<S>& mlp, int64_t edge, int64_t count,
                         const LayerGradient<S>& d_z1, TileScratch<S>& s) {
  const int64_t in = args.d_edges.width();
  Gemm<S> product = mlp.input_gradient(0, count, d_z1);
  StoredResult<S> to{args.d_edges.data<S>() + edge * in, in};
  if (args.residual && args.aggregate_after_residual) {
    start_gradient<S>(args, edge, count, s.b, mlp.tile_row());
    product.start = {s.b, mlp.tile_row()};
  } else if (args.residual && args.d_edges_out.defined()) {
    to.added = args.d_edges_out.data<S>() + edge * in;
    to.added_stride = in;
  }
  gemm_ops<S>().stored(product, to);
}

template <class S>
void edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const PerInput<MlpInput> inputs{args.edges};
  MlpTile<S> mlp(inputs, args.weights, args.saved, MlpTile<S>::Direction::backward, runtime);
  mlp.plan_gradients({args.d_edge_weight.defined()});
  const Graph& graph = *args.graph;
  const Terms terms = mlp.needs_recompute() ? Terms(graph, args.terms, false, runtime, stream) : Terms();
  const int64_t hidden = mlp.first_width();
  Terms d_terms;
  d_terms.sender =
      Tensor::empty(runtime, {graph.nodes, hidden}, dtype_of<S>(), Tag::workspace, "d_sender_terms");
  d_terms.receiver =
      Tensor::empty(runtime, {graph.owned_nodes, hidden}, dtype_of<S>(), Tag::workspace, "d_receiver_terms");
  // Weight gradients are summed per slab, which only the number of edges decides: same bits for any threads.
  const int64_t slabs = gradient_slabs(graph.edges);
  const int64_t border = first_border_slab(graph, args.ghosts, slabs, stream.dry());
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  const Tensor gradients = mlp.allocate_gradient_slabs(slabs, runtime);
  const Tensor d_first =
      Tensor::empty(runtime, Shape{graph.edges, hidden}, dtype_of<S>(), Tag::workspace, "d_z1");
  const auto slab_backward = [&](int64_t slab) {
    TileScratch<S> s = mlp.scratch();
    SlabGradients sums = mlp.begin_slab(gradients, slab);
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    ReceiverSums<S> d_receivers(d_terms.receiver, begin, end, s.row);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows<S>) {
      const int64_t count = std::min(kTileRows<S>, offsets[end] - edge);
      mlp.begin_tile(edge, count, args.d_edges_out, s);
      InitialSums<T> start;
      if (mlp.needs_recompute()) start = first_layer_terms(mlp, graph, terms, edge, count, s);
      mlp.load_or_recompute_hidden(edge, count, start, s);
      start_gradient<S>(args, edge, count, s.a, mlp.tile_row());
      const LayerGradient<S> d_z1 = mlp.backward(edge, count, s, sums, d_first.data<S>() + edge * hidden);
      d_receivers.add(count, d_z1.tile, mlp.tile_row(), receivers + edge);
      if (args.d_edges.defined()) write_edge_gradient(args, mlp, edge, count, d_z1, s);
    }
    d_receivers.finish();
    mlp.end_slab(sums);
  };
  int64_t summed = graph.nodes;
  if (args.ghosts != nullptr) {  // the edges that ghosts send come first, so that their gradients can leave
    summed = graph.owned_nodes;
    stream.parallel_for(slabs - border, [&](int64_t slab) { slab_backward(border + slab); });
    sum_by_sender(graph, d_first, d_terms, summed, graph.nodes, stream);
    sender_gradients(args, d_terms, summed, graph.nodes, runtime, stream);
    args.ghosts->call();
  }
  stream.parallel_for(border, slab_backward);
  mlp.reduce(gradients, {args.d_edge_weight}, args.d_weights, stream);
  sum_by_sender(graph, d_first, d_terms, 0, summed, stream);
  terms_backward(args, d_terms, runtime, stream);
}

}  // namespace

const MessagePassingKernels message_passing_kernels{
    .saves_hidden = [](const EdgeUpdateForward&) { return true; },
    .edge_forward =
        [](const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_gemm_storage(args.aggregate.dtype(),
                                [&]<class S>() { edge_forward<S>(args, runtime, stream); });
        },
    .edge_backward =
        [](const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_gemm_storage(args.d_aggregate.dtype(),
                                [&]<class S>() { edge_backward<S>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
