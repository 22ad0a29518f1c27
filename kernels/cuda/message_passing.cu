// SPDX-License-Identifier: Apache-2.0
// The edge update by the fused kernels where these support the call, otherwise by the general path: one
// launch per operation, any width, activation and storage type. Formulas in message_passing.h.
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/cuda/split_edges.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

#include <utility>

namespace meshgrad::cuda {
namespace {

template <class T>
struct SumRowsArgs {
  Rows rows;
  const T* own;  // row i itself; or null
  const T *first, *second;
  const int32_t *first_index, *second_index;  // second may be null, and its index
  const float* bias;                          // or null
  T* out;
  int width, lanes;
};

/// out[i] = own[i] + first[first_index[i]] + second[second_index[i]] + bias, added in f32 in this order.
template <class T, int kElements>
__global__ void sum_rows_kernel(SumRowsArgs<T> args) {
  const int64_t rows = real_rows(args.rows);
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kRowThreads / args.lanes;
  for (int64_t row = int64_t{blockIdx.x} * groups + group; row < rows; row += int64_t{gridDim.x} * groups) {
    for (int column = lane * kElements; column < args.width; column += args.lanes * kElements) {
      float sum[kElements] = {};
      const auto add = [&](const T* x, int64_t from) {
        float v[kElements];
        load_floats(x + from * args.width + column, v);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += v[e];
      };
      if (args.own != nullptr) add(args.own, row);
      add(args.first, args.first_index[row]);
      if (args.second != nullptr) add(args.second, args.second_index[row]);
      if (args.bias != nullptr) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += args.bias[column + e];
      }
      store_floats(args.out + row * args.width + column, sum);
    }
  }
}

/// Rows of x by index, on the host.
struct IndexedRows {
  const Tensor& x;
  const Tensor& index;
};

void sum_rows(const char* name, const Rows& rows, const Tensor& own, const IndexedRows& first,
              const IndexedRows& second, const Tensor& bias, const Tensor& out, const Stream& stream) {
  const int64_t width = out.width();
  if (width == 0) return;
  dispatch_gpu_storage(out.dtype(), [&]<class T>() {
    const auto data = [](const Tensor& x) { return x.data_or_null<T>(); };
    const auto run = [&]<int kElements>() {
      const int lanes = lanes_of(width, kElements);
      launch(name, sum_rows_kernel<T, kElements>,
             {persistent_blocks(stream, rows.capacity, kRowThreads / lanes, 16), kRowThreads, 0}, stream,
             SumRowsArgs<T>{rows, data(own), data(first.x), data(second.x), first.index.data<int32_t>(),
                            second.x.defined() ? second.index.data<int32_t>() : nullptr,
                            bias.data_or_null<float>(), data(out), static_cast<int>(width), lanes});
    };
    if (vectors_fit<T>(width, {data(own), data(first.x), data(second.x), out.raw()})) {
      run.template operator()<Vector<T>::kSize>();
    } else {
      run.template operator()<1>();
    }
  });
}

/// The rows of owned nodes, which are the first ones; halo nodes are behind them.
Tensor owned_rows_of(const Graph& graph, const Tensor& nodes) {
  return nodes.defined() ? nodes.row_range(0, graph.owned_nodes) : Tensor();
}

/// S of the senders in a part of the nodes, and R of those among them that are owned.
void compute_terms(const NodeTerms& terms, int64_t begin, const Graph& nodes, const NodeTermTensors& to,
                   Runtime& runtime, const Stream& stream) {
  const auto rows = [&](const Tensor& of) { return of.row_range(begin, begin + nodes.nodes); };
  linear_kernels.forward({.rows = nodes.node_rows(),
                          .x = rows(terms.nodes),
                          .weight = terms.sender_weight,
                          .bias = {},
                          .y = rows(to.sender)},
                         runtime, stream);
  if (nodes.owned_nodes == 0) return;
  linear_kernels.forward({.rows = nodes.owned_rows(),
                          .x = owned_rows_of(nodes, terms.nodes),
                          .weight = terms.receiver_weight,
                          .bias = {},
                          .y = to.receiver},
                         runtime, stream);
}

/// z_1 = S[sender] + R[receiver] + b_1 + e W_e.
void first_layer(const Graph& graph, const NodeTermTensors& terms, const MlpInput& edges,
                 const Layers& layers, const Tensor& z) {
  sum_rows("first_layer_terms", graph.edge_rows(), Tensor(), {terms.sender, graph.senders},
           {terms.receiver, graph.receivers}, layers.weights.first_bias, z, layers.stream);
  add_input(layers, edges, Tensor(), z, true);
}

/// out[r] = sum of x over the edges of receiver r: edges are in receiver order, so they are segments of x.
void sum_over_receivers(const Graph& graph, const Tensor& x, const Tensor& out, const Stream& stream) {
  segment_sum_kernels.segment_sum(
      {.segments = graph.owned_rows(), .offsets = graph.receiver_offsets, .order = {}, .x = x, .out = out},
      stream);
}

/// Once the node terms are there, whose memory is free behind the first layer.
void edges_forward(const EdgeUpdateForward& args, NodeTermTensors terms, Runtime& runtime,
                   const Stream& stream) {
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.aggregate.dtype(), args.weights, runtime, stream};
  const std::vector<Tensor> z = preactivation_buffers(layers, args.edges.weight.width(), args.saved);
  first_layer(graph, terms, args.edges, layers, z[0]);
  terms = {};
  run_layers(layers, z);

  // Receivers sum y or e'. e' is written only when it is needed as the sum's operand or as an output.
  const bool sums_edges = args.aggregate_after_residual || !args.residual;
  const Tensor residual = args.residual ? args.edges.x : Tensor();
  Tensor message = sums_edges ? args.edges_out : Tensor();
  if (!message.defined()) message = layers.scratch(args.aggregate.width(), "messages");
  norm_and_residual(layers, z.back(), sums_edges ? residual : Tensor(), message);
  if (args.edges_out.defined() && !sums_edges) norm_and_residual(layers, z.back(), residual, args.edges_out);
  sum_over_receivers(graph, message, args.aggregate, stream);
}

void edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  if (fused_supports(args, "edge update forward", args.aggregate.dtype(), runtime))
    return fused_edge_forward(args, runtime, stream);
  const Graph& graph = *args.graph;
  NodeTermTensors terms(graph, args.edges.weight.width(), args.aggregate.dtype(), runtime);
  if (args.ghosts == nullptr) {
    compute_terms(args.terms, 0, graph, terms, runtime, stream);
    return edges_forward(args, std::move(terms), runtime, stream);
  }
  const EdgePart interior = interior_edges(graph, *args.ghosts), border = border_edges(graph, *args.ghosts);
  compute_terms(args.terms, 0, sender_part(graph, 0, graph.owned_nodes, graph.edges), terms, runtime, stream);
  edges_forward(part_of(args, interior), part_of(terms, interior), runtime, stream);
  args.ghosts->call();
  compute_terms(args.terms, graph.owned_nodes,
                sender_part(graph, graph.owned_nodes, graph.nodes, border.graph.edges), terms, runtime,
                stream);
  edges_forward(part_of(args, border), part_of(std::move(terms), border), runtime, stream);
}

/// d_e = d_z_1 W_e^T and, with a residual, the gradient of e'. That gradient is d_y when receivers sum e',
/// else d_edges_out, which may be the same memory as d_edges: then it is in place already.
void edge_gradient(const EdgeUpdateBackward& args, const Tensor& d_z, const Tensor& d_y, Runtime& runtime,
                   const Stream& stream) {
  const Rows rows = args.graph->edge_rows();
  const Tensor share = !args.residual ? Tensor() : args.aggregate_after_residual ? d_y : args.d_edges_out;
  if (args.d_edges.defined() && share.defined() && share.raw() != args.d_edges.raw())
    segment_sum_kernels.gather({.rows = rows, .index = {}, .x = share, .out = args.d_edges}, stream);
  linear_kernels.backward({.rows = rows,
                           .d_y = d_z,
                           .x = args.edges.x,
                           .weight = args.edges.weight,
                           .d_x = args.d_edges,
                           .accumulate_d_x = share.defined(),
                           .d_weight = args.d_edge_weight,
                           .d_bias = args.d_weights.first_bias},
                          runtime, stream);
}

/// Backward of the sender terms of some nodes: the gradients of W_s and of h. dS is the sum of d_z_1 over the
/// edges that a node sends, so that the GEMMs run over nodes instead of edges.
void sender_gradients(const EdgeUpdateBackward& args, const NodeTermTensors& d_terms, int64_t begin,
                      const Graph& nodes, const Tensor& d_z, Runtime& runtime, const Stream& stream) {
  const auto rows = [&](const Tensor& of) { return rows_or_none(of, begin, begin + nodes.nodes); };
  segment_sum_kernels.segment_sum({.segments = nodes.node_rows(),
                                   .offsets = nodes.sender_offsets,
                                   .order = nodes.sender_order,
                                   .x = d_z,
                                   .out = rows(d_terms.sender)},
                                  stream);
  linear_kernels.backward({.rows = nodes.node_rows(),
                           .d_y = rows(d_terms.sender),
                           .x = rows(args.terms.nodes),
                           .weight = args.terms.sender_weight,
                           .d_x = rows(args.d_nodes),
                           .accumulate_d_x = args.accumulate_d_nodes,
                           .d_weight = args.d_sender_weight,
                           .d_bias = {}},
                          runtime, stream);
}

/// The same of the receiver terms, behind those of the senders; dR is there.
void receiver_gradients(const EdgeUpdateBackward& args, const NodeTermTensors& d_terms, Runtime& runtime,
                        const Stream& stream) {
  const Graph& graph = *args.graph;
  linear_kernels.backward({.rows = graph.owned_rows(),
                           .d_y = d_terms.receiver,
                           .x = owned_rows_of(graph, args.terms.nodes),
                           .weight = args.terms.receiver_weight,
                           .d_x = owned_rows_of(graph, args.d_nodes),
                           .accumulate_d_x = true,
                           .d_weight = args.d_receiver_weight,
                           .d_bias = {}},
                          runtime, stream);
}

/// d_z_1 of the edges, d_edges and the gradients of the edges' weights. `terms` are there unless all is
/// saved.
Tensor edges_backward(const EdgeUpdateBackward& args, bool saved, NodeTermTensors terms, Runtime& runtime,
                      const Stream& stream) {
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.d_aggregate.dtype(), args.weights, runtime, stream};
  const std::vector<Tensor> z =
      preactivation_buffers(layers, args.edges.weight.width(), saved ? args.saved : MlpSaved{});
  if (!saved) {
    first_layer(graph, terms, args.edges, layers, z[0]);
    terms = {};
    run_layers(layers, z, args.weights.norm != Norm::none);
  }
  // d_y[edge] = d_aggregate[receiver] + d_edges_out[edge]: also right when e' is summed, since e' = e + y.
  const Tensor none;
  const Tensor d_y = layers.scratch(args.d_aggregate.width(), "d_y");
  sum_rows("edge_gradient", layers.rows, args.d_edges_out, {args.d_aggregate, graph.receivers}, {none, none},
           none, d_y, stream);
  const Tensor d_z = layers_backward(layers, z, d_y, args.d_weights);
  edge_gradient(args, d_z, d_y, runtime, stream);
  return d_z;
}

/// The edges that ghosts send come first, so that their gradients can leave.
void split_edge_backward(const EdgeUpdateBackward& args, bool saved, const NodeTermTensors& terms,
                         Runtime& runtime, const Stream& stream) {
  const Graph& graph = *args.graph;
  const NodeTermTensors d_terms(graph, args.edges.weight.width(), args.d_aggregate.dtype(), runtime);
  const Tensor d_first = Tensor::empty(runtime, {graph.edges, args.edges.weight.width()},
                                       args.d_aggregate.dtype(), Tag::workspace, "d_z1");
  const auto run = [&](const EdgePart& part) {
    const Tensor d_z = edges_backward(part_of(args, part), saved,
                                      saved ? NodeTermTensors() : part_of(terms, part), runtime, stream);
    sum_over_receivers(part.graph, d_z, part.receiver_rows(d_terms.receiver), stream);
    segment_sum_kernels.gather(
        {.rows = part.graph.edge_rows(), .index = {}, .x = d_z, .out = part.edge_rows(d_first)}, stream);
  };
  const auto send = [&](int64_t begin, int64_t end) {
    sender_gradients(args, d_terms, begin, sender_part(graph, begin, end, graph.edges), d_first, runtime,
                     stream);
  };
  run(border_edges(graph, *args.ghosts));
  send(graph.owned_nodes, graph.nodes);
  args.ghosts->call();
  run(interior_edges(graph, *args.ghosts));
  send(0, graph.owned_nodes);
  receiver_gradients(args, d_terms, runtime, stream);
}

void edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  if (fused_supports(args, "edge update backward", args.d_aggregate.dtype(), runtime))
    return fused_edge_backward(args, runtime, stream);
  const Graph& graph = *args.graph;
  const int64_t width = args.edges.weight.width();
  const DType dtype = args.d_aggregate.dtype();
  // Saved activations are used if all of them are there; otherwise all are recomputed, to the same bits.
  const bool saved = saved_is_complete(args.weights, args.saved);
  NodeTermTensors terms;
  if (!saved) {
    terms = NodeTermTensors(graph, width, dtype, runtime);
    compute_terms(args.terms, 0, graph, terms, runtime, stream);
  }
  if (args.ghosts != nullptr) return split_edge_backward(args, saved, terms, runtime, stream);
  const Tensor d_z = edges_backward(args, saved, std::move(terms), runtime, stream);
  const NodeTermTensors d_terms(graph, width, dtype, runtime);
  sum_over_receivers(graph, d_z, d_terms.receiver, stream);
  sender_gradients(args, d_terms, 0, graph, d_z, runtime, stream);
  receiver_gradients(args, d_terms, runtime, stream);
}

}  // namespace

const MessagePassingKernels message_passing_kernels{
    .saves_hidden = [](const EdgeUpdateForward& args) { return !fused_supports(args); },
    .edge_forward = edge_forward,
    .edge_backward = edge_backward};

}  // namespace meshgrad::cuda
