// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/message_passing.h>
#include <meshgrad/kernels/segment_sum.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kForwardEdges = 4 * kTileRows;  // edges of a task, about

/// First receiver of a slab: the edges are cut into equal parts, each moved to the next receiver's first
/// edge, so that every receiver's sum belongs to one slab and runs in edge order.
int64_t first_receiver(const Graph& graph, int64_t slab, int64_t slabs) {
  if (slab == slabs) return graph.owned_nodes;
  if (slab == 0) return 0;
  const auto offsets = graph.receiver_offsets.values<int32_t>();
  const auto target = static_cast<int32_t>(graph.edges * slab / slabs);
  return std::lower_bound(offsets.begin(), offsets.end() - 1, target) - offsets.begin();
}

template <class T>
void zero_rows(const Tensor& tensor, int64_t begin, int64_t end) {
  std::fill_n(tensor.data<T>() + begin * tensor.width(), (end - begin) * tensor.width(), T(0));
}

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

template <class T>
void first_layer_terms(const MlpTile<T>& mlp, const Graph& graph, const Terms& terms, int64_t edge,
                       int64_t count, T* z) {
  const TileOps<T>& ops = tile_ops<T>();
  const int64_t width = mlp.first_width();
  mlp.start(count, z);
  ops.gather_add(count, width, terms.sender.data<T>(), width, graph.senders.data<int32_t>() + edge, z,
                 mlp.tile_row());
  ops.gather_add(count, width, terms.receiver.data<T>(), width, graph.receivers.data<int32_t>() + edge, z,
                 mlp.tile_row());
}

template <class T>
void edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  const std::vector<MlpInput> inputs{args.edges};
  const MlpTile<T> mlp(inputs, args.weights, args.saved, MlpTile<T>::Direction::forward, runtime);
  const TileOps<T>& ops = tile_ops<T>();
  const Graph& graph = *args.graph;
  const Terms terms(graph, args.terms, runtime, stream);
  const int64_t out = mlp.out_width();
  const int64_t slabs = std::max<int64_t>(1, graph.edges / kForwardEdges);
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  stream.parallel_for(slabs, [&](int64_t slab) {
    TileScratch<T> s = mlp.scratch();
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    zero_rows<T>(args.aggregate, begin, end);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows) {
      const int64_t count = std::min<int64_t>(kTileRows, offsets[end] - edge);
      first_layer_terms(mlp, graph, terms, edge, count, s.a);
      mlp.add_inputs(edge, count, s.a);
      T* y = mlp.finish_forward(edge, count, s);
      T* aggregate = args.aggregate.data<T>();
      if (!args.aggregate_after_residual)
        ops.scatter_add(count, out, y, mlp.tile_row(), receivers + edge, aggregate, out);
      if (args.residual) ops.add(count, out, args.edges.x.data<T>() + edge * out, out, y, mlp.tile_row());
      if (args.aggregate_after_residual)
        ops.scatter_add(count, out, y, mlp.tile_row(), receivers + edge, aggregate, out);
      if (args.edges_out.defined())
        ops.copy(count, out, y, mlp.tile_row(), args.edges_out.data<T>() + edge * out, out);
    }
  });
}

/// The gradient of e' and y in a tile: what came from e' plus, where y or e' was summed, the aggregate's.
template <class T>
void start_gradient(const EdgeUpdateBackward& args, int64_t edge, int64_t count, int64_t out, T* d_y,
                    int64_t row) {
  const TileOps<T>& ops = tile_ops<T>();
  if (args.d_edges_out.defined()) {
    ops.copy(count, out, args.d_edges_out.data<T>() + edge * out, out, d_y, row);
  } else {
    ops.broadcast(count, out, nullptr, d_y, row);
  }
  ops.gather_add(count, out, args.d_aggregate.data<T>(), out, args.graph->receivers.data<int32_t>() + edge,
                 d_y, row);
}

/// d_e = d_z1 W_e^T and, with a residual, the gradient of e'. Reads d_edges_out before it writes d_edges:
/// they may be the same memory.
template <class T>
void write_edge_gradient(const EdgeUpdateBackward& args, const MlpTile<T>& mlp, int64_t edge, int64_t count,
                         const T* d_z1, TileScratch<T>& s) {
  const TileOps<T>& ops = tile_ops<T>();
  const int64_t in = args.d_edges.width();
  mlp.input_gradient(0, count, d_z1, s.b);
  if (args.residual) {
    if (args.d_edges_out.defined())
      ops.add(count, in, args.d_edges_out.data<T>() + edge * in, in, s.b, mlp.tile_row());
    if (args.aggregate_after_residual) {
      ops.gather_add(count, in, args.d_aggregate.data<T>(), in, args.graph->receivers.data<int32_t>() + edge,
                     s.b, mlp.tile_row());
    }
  }
  ops.copy(count, in, s.b, mlp.tile_row(), args.d_edges.data<T>() + edge * in, in);
}

template <class T>
void edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  const std::vector<MlpInput> inputs{args.edges};
  MlpTile<T> mlp(inputs, args.weights, args.saved, MlpTile<T>::Direction::backward, runtime);
  mlp.plan_gradients({args.d_edge_weight.defined()});
  const TileOps<T>& ops = tile_ops<T>();
  const Graph& graph = *args.graph;
  const Terms terms = mlp.needs_recompute() ? Terms(graph, args.terms, runtime, stream) : Terms();
  const int64_t hidden = mlp.first_width();
  Terms d_terms;
  d_terms.sender =
      Tensor::empty(runtime, {graph.nodes, hidden}, dtype_of<T>(), Tag::workspace, "d_sender_terms");
  d_terms.receiver =
      Tensor::empty(runtime, {graph.owned_nodes, hidden}, dtype_of<T>(), Tag::workspace, "d_receiver_terms");
  const int64_t slabs = gradient_slabs(graph.edges);
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const int32_t* receivers = graph.receivers.data<int32_t>();
  const Tensor gradients = Tensor::empty(runtime, Shape{slabs, mlp.layout().size}, dtype_of<T>(),
                                         Tag::workspace, "gradient slabs");
  const Tensor d_first =
      Tensor::empty(runtime, Shape{graph.edges, hidden}, dtype_of<T>(), Tag::workspace, "d_z1");
  stream.parallel_for(slabs, [&](int64_t slab) {
    TileScratch<T> s = mlp.scratch();
    T* sums = gradients.data<T>() + slab * mlp.layout().size;
    std::fill_n(sums, mlp.layout().size, T(0));
    const int64_t begin = first_receiver(graph, slab, slabs);
    const int64_t end = first_receiver(graph, slab + 1, slabs);
    zero_rows<T>(d_terms.receiver, begin, end);
    for (int64_t edge = offsets[begin]; edge < offsets[end]; edge += kTileRows) {
      const int64_t count = std::min<int64_t>(kTileRows, offsets[end] - edge);
      if (mlp.needs_recompute()) {
        first_layer_terms(mlp, graph, terms, edge, count, s.hidden[0]);
        mlp.recompute(edge, count, s);
      } else {
        mlp.load_saved(edge, count, s);
      }
      start_gradient(args, edge, count, mlp.out_width(), s.a, mlp.tile_row());
      const T* d_z1 = mlp.backward(edge, count, s, sums);
      ops.copy(count, hidden, d_z1, mlp.tile_row(), d_first.data<T>() + edge * hidden, hidden);
      ops.scatter_add(count, hidden, d_z1, mlp.tile_row(), receivers + edge, d_terms.receiver.data<T>(),
                      hidden);
      if (args.d_edges.defined()) write_edge_gradient(args, mlp, edge, count, d_z1, s);
    }
  });
  mlp.reduce(gradients.data<T>(), slabs, {args.d_edge_weight}, args.d_weights, stream);
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
    .edge_forward =
        [](const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_storage(args.aggregate.dtype(),
                           [&]<class T>() { edge_forward<T>(args, runtime, stream); });
        },
    .edge_backward =
        [](const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_storage(args.d_aggregate.dtype(),
                           [&]<class T>() { edge_backward<T>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
