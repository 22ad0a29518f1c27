// SPDX-License-Identifier: Apache-2.0
// The edge update by the fused kernels where these support the call, otherwise by the general path: one
// launch per operation, any width, activation and storage type. Formulas in message_passing.h.
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

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

/// z_1 = S[sender] + R[receiver] + b_1 + e W_e, with S = h W_s and R = h W_r computed per node. Halo nodes
/// never receive, so R has owned nodes only.
void first_layer(const Graph& graph, const NodeTerms& terms, const MlpInput& edges, const Layers& layers,
                 const Tensor& z) {
  const auto scratch = [&](int64_t rows, std::string_view name) {
    return Tensor::empty(layers.runtime, {rows, z.width()}, layers.dtype, Tag::workspace, name);
  };
  const Tensor sender = scratch(graph.nodes, "sender terms");
  const Tensor receiver = scratch(graph.owned_nodes, "receiver terms");
  linear_kernels.forward(
      {.rows = graph.node_rows(), .x = terms.nodes, .weight = terms.sender_weight, .bias = {}, .y = sender},
      layers.runtime, layers.stream);
  linear_kernels.forward({.rows = graph.owned_rows(),
                          .x = owned_rows_of(graph, terms.nodes),
                          .weight = terms.receiver_weight,
                          .bias = {},
                          .y = receiver},
                         layers.runtime, layers.stream);
  sum_rows("first_layer_terms", graph.edge_rows(), Tensor(), {sender, graph.senders},
           {receiver, graph.receivers}, layers.weights.first_bias, z, layers.stream);
  add_input(layers, edges, Tensor(), z, true);
}

/// out[r] = sum of x over the edges of receiver r: edges are in receiver order, so they are segments of x.
void sum_over_receivers(const Graph& graph, const Tensor& x, const Tensor& out, const Stream& stream) {
  segment_sum_kernels.segment_sum(
      {.segments = graph.owned_rows(), .offsets = graph.receiver_offsets, .order = {}, .x = x, .out = out},
      stream);
}

void edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  if (fused_supports(args, "edge update forward", args.aggregate.dtype(), runtime))
    return fused_edge_forward(args, runtime, stream);
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.aggregate.dtype(), args.weights, runtime, stream};
  const std::vector<Tensor> z = preactivation_buffers(layers, args.edges.weight.width(), args.saved);
  first_layer(graph, args.terms, args.edges, layers, z[0]);
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

/// Backward of the node terms S and R: the gradients of W_s, W_r and h. dS and dR are sums of d_z_1 over the
/// edges that a node sends and receives, so that the GEMMs run over nodes instead of edges.
void node_gradients(const EdgeUpdateBackward& args, const Layers& layers, const Tensor& d_z) {
  const Graph& graph = *args.graph;
  const auto scratch = [&](int64_t rows, std::string_view name) {
    return Tensor::empty(layers.runtime, {rows, d_z.width()}, layers.dtype, Tag::workspace, name);
  };
  const Tensor sender = scratch(graph.nodes, "d_sender_terms");
  const Tensor receiver = scratch(graph.owned_nodes, "d_receiver_terms");
  segment_sum_kernels.segment_sum({.segments = graph.node_rows(),
                                   .offsets = graph.sender_offsets,
                                   .order = graph.sender_order,
                                   .x = d_z,
                                   .out = sender},
                                  layers.stream);
  sum_over_receivers(graph, d_z, receiver, layers.stream);
  linear_kernels.backward({.rows = graph.node_rows(),
                           .d_y = sender,
                           .x = args.terms.nodes,
                           .weight = args.terms.sender_weight,
                           .d_x = args.d_nodes,
                           .accumulate_d_x = args.accumulate_d_nodes,
                           .d_weight = args.d_sender_weight,
                           .d_bias = {}},
                          layers.runtime, layers.stream);
  linear_kernels.backward({.rows = graph.owned_rows(),
                           .d_y = receiver,
                           .x = owned_rows_of(graph, args.terms.nodes),
                           .weight = args.terms.receiver_weight,
                           .d_x = owned_rows_of(graph, args.d_nodes),
                           .accumulate_d_x = true,
                           .d_weight = args.d_receiver_weight,
                           .d_bias = {}},
                          layers.runtime, layers.stream);
}

void edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream) {
  if (fused_supports(args, "edge update backward", args.d_aggregate.dtype(), runtime))
    return fused_edge_backward(args, runtime, stream);
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.d_aggregate.dtype(), args.weights, runtime, stream};
  // Saved activations are used if all of them are there; otherwise all are recomputed, to the same bits.
  const bool complete = saved_is_complete(args.weights, args.saved);
  const std::vector<Tensor> z =
      preactivation_buffers(layers, args.edges.weight.width(), complete ? args.saved : MlpSaved{});
  if (!complete) {
    first_layer(graph, args.terms, args.edges, layers, z[0]);
    run_layers(layers, z, args.weights.norm != Norm::none);
  }
  // d_y[edge] = d_aggregate[receiver] + d_edges_out[edge]: also right when e' is summed, since e' = e + y.
  const Tensor none;
  const Tensor d_y = layers.scratch(args.d_aggregate.width(), "d_y");
  sum_rows("edge_gradient", layers.rows, args.d_edges_out, {args.d_aggregate, graph.receivers}, {none, none},
           none, d_y, stream);
  const Tensor d_z = layers_backward(layers, z, d_y, args.d_weights);
  edge_gradient(args, d_z, d_y, runtime, stream);
  node_gradients(args, layers, d_z);
}

}  // namespace

const MessagePassingKernels message_passing_kernels{
    .saves_hidden = [](const EdgeUpdateForward& args) { return !fused_supports(args); },
    .edge_forward = edge_forward,
    .edge_backward = edge_backward};

}  // namespace meshgrad::cuda
