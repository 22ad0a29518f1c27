// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

template <class S>
constexpr int64_t kForwardEdges = 2 * kTileRows<S>;  // edges of a task, about

/// First receiver of a slab: the edges are cut into equal parts, each moved to the next receiver's first
/// edge, so that every receiver's sum belongs to one slab and runs in edge order.
int64_t first_receiver(const Graph& graph, int64_t slab, int64_t slabs) {
  if (slab == slabs) return graph.owned_nodes;
  if (slab == 0) return 0;
  const auto offsets = graph.receiver_offsets.values<int32_t>();
  const auto target = static_cast<int32_t>(graph.edges * slab / slabs);
  return std::lower_bound(offsets.begin(), offsets.end() - 1, target) - offsets.begin();
}

/// Sums rows into those of their receivers, which come in order; a sum is rounded to storage once.
template <class S>
class ReceiverSums {
  using T = Accumulator<S>;

 public:
  /// Rows [begin, end) of `target` become sums; those without an edge 0. `sum` is a row of scratch.
  ReceiverSums(const Tensor& target, int64_t begin, int64_t end, T* sum)
      : to_(target.data<S>()), width_(target.width()), sum_(sum) {
    std::fill_n(to_ + begin * width_, (end - begin) * width_, S());
  }
  void add(int64_t rows, const T* y, int64_t y_row, const int32_t* receivers) {
    for (int64_t row = 0, next = 0; row < rows; row = next) {
      if (receivers[row] != receiver_) start(receivers[row]);
      while (next < rows && receivers[next] == receiver_) ++next;
      in_tiles_.sum_rows(next - row, nullptr, width_, y + row * y_row, y_row, true, sum_);
    }
  }
  void finish() { start(-1); }

 private:
  void start(int32_t receiver) {
    if (receiver_ >= 0) ops_.store(1, width_, sum_, 0, to_ + receiver_ * width_, 0);
    std::fill_n(sum_, width_, T(0));
    receiver_ = receiver;
  }
  const TileOps<S>& ops_ = tile_ops<S>();
  const TileOps<T>& in_tiles_ = tile_ops<T>();
  S* to_;
  int64_t width_;
  int32_t receiver_ = -1;
  T* sum_;
};

/// S = h W_s for every node and R = h W_r for those that receive.
struct Terms {
  Tensor sender, receiver;
  Terms() = default;
  Terms(const Graph& graph, const NodeTerms& args, Runtime& runtime, const Stream& stream) {
    const int64_t hidden = args.sender_weight.width();
    const DType dtype = args.nodes.dtype();
    sender = Tensor::empty(runtime, {graph.nodes, hidden}, dtype, Tag::workspace, "sender terms");
    receiver = Tensor::empty(runtime, {graph.owned_nodes, hidden}, dtype, Tag::workspace, "receiver terms");
    linear_kernels.forward(
        {.rows = graph.nodes, .x = args.nodes, .weight = args.sender_weight, .bias = {}, .y = sender},
        runtime, stream);
    linear_kernels.forward({.rows = graph.owned_nodes,
                            .x = args.nodes.row_range(0, graph.owned_nodes),
                            .weight = args.receiver_weight,
                            .bias = {},
                            .y = receiver},
                           runtime, stream);
  }
};

/// The way back of Terms: weight gradients, and the nodes' gradient.
void terms_backward(const EdgeUpdateBackward& args, const Terms& gradients, Runtime& runtime,
                    const Stream& stream) {
  const Graph& graph = *args.graph;
  linear_kernels.backward({.rows = graph.nodes,
                           .d_y = gradients.sender,
                           .x = args.terms.nodes,
                           .weight = args.terms.sender_weight,
                           .d_x = args.d_nodes,
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

/// What z_1 of a tile's edges is beside W_e e, in the tile s.a.
template <class S>
Start<Accumulator<S>> first_layer_terms(const MlpTile<S>& mlp, const Graph& graph, const Terms& terms,
                                        int64_t edge, int64_t count, TileScratch<S>& s) {
  tile_ops<S>().gather_sum(count, mlp.first_width(), mlp.first_bias(),
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
  const Terms terms(graph, args.terms, runtime, stream);
  const int64_t out = mlp.out_width();
  const int64_t slabs = std::max<int64_t>(1, graph.edges / kForwardEdges<S>);
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  stream.parallel_for(slabs, [&](int64_t slab) {
    TileScratch<S> s = mlp.scratch();
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    ReceiverSums<S> sums(args.aggregate, begin, end, s.row);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows<S>) {
      const int64_t count = std::min(kTileRows<S>, offsets[end] - edge);
      mlp.begin_tile(edge, count, {}, s);
      const auto start = first_layer_terms(mlp, graph, terms, edge, count, s);
      const Product<S> last = mlp.before_last(edge, count, start, s);
      NormResult<S> result{.tile = s.a, .tile_row = mlp.tile_row()};
      if (args.residual) result.residual = args.edges.x.data<S>() + edge * out;
      result.residual_in_tile = args.aggregate_after_residual;
      if (args.edges_out.defined()) result.out = args.edges_out.data<S>() + edge * out;
      mlp.finish(edge, last, result, s);
      sums.add(count, s.a, mlp.tile_row(), receivers + edge);
    }
    sums.finish();
  });
}

/// The gradient of e' and y in a tile: what came from e' plus, where y or e' was summed, the aggregate's.
template <class S>
void start_gradient(const EdgeUpdateBackward& args, int64_t edge, int64_t count, Accumulator<S>* tile,
                    int64_t row) {
  const int64_t out = args.d_aggregate.width();
  const S* from_edges = args.d_edges_out.defined() ? args.d_edges_out.data<S>() + edge * out : nullptr;
  tile_ops<S>().gather_sum(count, out, nullptr, {from_edges},
                           {args.d_aggregate.data<S>(), args.graph->receivers.data<int32_t>() + edge}, tile,
                           row);
}

/// d_e = d_z1 W_e^T and, with a residual, the gradient of e'. Reads d_edges_out before it writes d_edges:
/// they may be the same memory.
template <class S>
void write_edge_gradient(const EdgeUpdateBackward& args, const MlpTile<S>& mlp, int64_t edge, int64_t count,
                         const LayerGradient<S>& d_z1, TileScratch<S>& s) {
  const int64_t in = args.d_edges.width();
  Product<S> product = mlp.input_gradient(0, count, d_z1);
  StoredResult<S> to{args.d_edges.data<S>() + edge * in, in};
  if (args.residual && args.aggregate_after_residual) {
    start_gradient<S>(args, edge, count, s.b, mlp.tile_row());
    product.start = {s.b, mlp.tile_row()};
  } else if (args.residual && args.d_edges_out.defined()) {
    to.added = args.d_edges_out.data<S>() + edge * in;
    to.added_stride = in;
  }
  products<S>().stored(product, to);
}

template <class S>
void edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const PerInput<MlpInput> inputs{args.edges};
  MlpTile<S> mlp(inputs, args.weights, args.saved, MlpTile<S>::Direction::backward, runtime);
  mlp.plan_gradients({args.d_edge_weight.defined()});
  const Graph& graph = *args.graph;
  const Terms terms = mlp.needs_recompute() ? Terms(graph, args.terms, runtime, stream) : Terms();
  const int64_t hidden = mlp.first_width();
  Terms d_terms;
  d_terms.sender =
      Tensor::empty(runtime, {graph.nodes, hidden}, dtype_of<S>(), Tag::workspace, "d_sender_terms");
  d_terms.receiver =
      Tensor::empty(runtime, {graph.owned_nodes, hidden}, dtype_of<S>(), Tag::workspace, "d_receiver_terms");
  const int64_t slabs = gradient_slabs(graph.edges);
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  const Tensor gradients = mlp.slabs_of_gradients(slabs, runtime);
  const Tensor d_first =
      Tensor::empty(runtime, Shape{graph.edges, hidden}, dtype_of<S>(), Tag::workspace, "d_z1");
  stream.parallel_for(slabs, [&](int64_t slab) {
    TileScratch<S> s = mlp.scratch();
    SlabGradients sums = mlp.begin_slab(gradients, slab);
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    ReceiverSums<S> d_receivers(d_terms.receiver, begin, end, s.row);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows<S>) {
      const int64_t count = std::min(kTileRows<S>, offsets[end] - edge);
      mlp.begin_tile(edge, count, args.d_edges_out, s);
      Start<T> start;
      if (mlp.needs_recompute()) start = first_layer_terms(mlp, graph, terms, edge, count, s);
      mlp.find_hidden(edge, count, start, s);
      start_gradient<S>(args, edge, count, s.a, mlp.tile_row());
      const LayerGradient<S> d_z1 = mlp.backward(edge, count, s, sums, d_first.data<S>() + edge * hidden);
      d_receivers.add(count, d_z1.tile, mlp.tile_row(), receivers + edge);
      if (args.d_edges.defined()) write_edge_gradient(args, mlp, edge, count, d_z1, s);
    }
    d_receivers.finish();
    mlp.end_slab(sums);
  });
  mlp.reduce(gradients, {args.d_edge_weight}, args.d_weights, stream);
  segment_sum_kernels.segment_sum({.segments = graph.nodes,
                                   .offsets = graph.sender_offsets,
                                   .order = graph.sender_order,
                                   .x = d_first,
                                   .out = d_terms.sender},
                                  stream);
  terms_backward(args, d_terms, runtime, stream);
}

}  // namespace

const MessagePassingKernels message_passing_kernels{
    .saving_helps = [](const EdgeUpdateForward&) { return true; },
    .edge_forward =
        [](const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_products(args.aggregate.dtype(),
                            [&]<class S>() { edge_forward<S>(args, runtime, stream); });
        },
    .edge_backward =
        [](const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_products(args.d_aggregate.dtype(),
                            [&]<class S>() { edge_backward<S>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
