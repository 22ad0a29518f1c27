// SPDX-License-Identifier: Apache-2.0
// The general path: one launch an op, any width.
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

template <class T>
struct SumOfRows {
  Rows rows;
  const T* own;  // or null: row i itself
  const T *first, *second;
  const int32_t *first_index, *second_index;  // second may be null, and its index
  const float* bias;                          // or null
  T* out;
  int width, lanes;
};

/// out[i] = own[i] + first[first_index[i]] + second[second_index[i]] + bias, summed in f32.
template <class T, int kElements>
__global__ void sum_of_rows(SumOfRows<T> args) {
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

struct IndexedRows {
  const Tensor& x;
  const Tensor& index;
};

void add_rows(const char* name, const Rows& rows, const Tensor& own, const IndexedRows& first,
              const IndexedRows& second, const Tensor& bias, const Tensor& out, const Stream& stream) {
  const int64_t width = out.width();
  if (width == 0) return;
  dispatch_gpu_storage(out.dtype(), [&]<class T>() {
    const auto data = [](const Tensor& x) { return x.data_or_null<T>(); };
    const auto run = [&]<int kElements>() {
      const int lanes = lanes_of(width, kElements);
      launch(name, sum_of_rows<T, kElements>,
             {persistent_blocks(stream, rows.capacity, kRowThreads / lanes, 16), kRowThreads, 0}, stream,
             SumOfRows<T>{rows, data(own), data(first.x), data(second.x), first.index.data<int32_t>(),
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

Tensor owned_rows_of(const Graph& graph, const Tensor& nodes) {
  return nodes.defined() ? nodes.row_range(0, graph.owned_nodes) : Tensor();
}

/// z_1 = h W_s [sender] + h W_r [receiver] + b_1 + e W_e.
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
  add_rows("first_layer_terms", graph.edge_rows(), Tensor(), {sender, graph.senders},
           {receiver, graph.receivers}, layers.weights.first_bias, z, layers.stream);
  add_input(layers, edges, Tensor(), z, true);
}

void sum_over_receivers(const Graph& graph, const Tensor& x, const Tensor& out, const Stream& stream) {
  segment_sum_kernels.segment_sum(
      {.segments = graph.owned_rows(), .offsets = graph.receiver_offsets, .order = {}, .x = x, .out = out},
      stream);
}

void edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream) {
  if (fused_covers(args)) return fused_edge_forward(args, runtime, stream);
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.aggregate.dtype(), args.weights, runtime, stream};
  const std::vector<Tensor> z = places_of_sums(layers, args.edges.weight.width(), args.saved);
  first_layer(graph, args.terms, args.edges, layers, z[0]);
  run_layers(layers, z);

  // What is summed is y or e'; e' is written where somebody reads it.
  const bool sums_edges = args.aggregate_after_residual || !args.residual;
  const Tensor residual = args.residual ? args.edges.x : Tensor();
  Tensor summed = sums_edges ? args.edges_out : Tensor();
  if (!summed.defined()) summed = layers.scratch(args.aggregate.width(), "messages");
  finish(layers, z.back(), sums_edges ? residual : Tensor(), summed);
  if (args.edges_out.defined() && !sums_edges) finish(layers, z.back(), residual, args.edges_out);
  sum_over_receivers(graph, summed, args.aggregate, stream);
}

/// d_e = d_z1 W_e^T and, with a residual, the gradient of e': d_y where e' was summed, else d_edges_out,
/// which may be the same memory.
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

/// The way back of the node terms: weight gradients, and the nodes' gradient.
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
  if (fused_covers(args)) return fused_edge_backward(args, runtime, stream);
  const Graph& graph = *args.graph;
  const Layers layers{graph.edge_rows(), args.d_aggregate.dtype(), args.weights, runtime, stream};
  const bool complete = saved_is_complete(args.weights, args.saved);
  const std::vector<Tensor> z =
      places_of_sums(layers, args.edges.weight.width(), complete ? args.saved : MlpSaved{});
  if (!complete) {
    first_layer(graph, args.terms, args.edges, layers, z[0]);
    run_layers(layers, z, args.weights.norm != Norm::none);
  }
  const Tensor none;
  const Tensor d_y = layers.scratch(args.d_aggregate.width(), "d_y");
  add_rows("edge_gradient", layers.rows, args.d_edges_out, {args.d_aggregate, graph.receivers}, {none, none},
           none, d_y, stream);
  const Tensor d_z = layers_backward(layers, z, d_y, args.d_weights);
  edge_gradient(args, d_z, d_y, runtime, stream);
  node_gradients(args, layers, d_z);
}

}  // namespace

const MessagePassingKernels message_passing_kernels{
    .saving_helps = [](const EdgeUpdateForward& args) { return !fused_covers(args); },
    .edge_forward = edge_forward,
    .edge_backward = edge_backward};

}  // namespace meshgrad::cuda
