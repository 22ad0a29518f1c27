// SPDX-License-Identifier: Apache-2.0
// Attention over tasks of a fixed number of nodes; attention_rows.cpp has the sums of one node.
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cpu/attention_rows.h>
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/cpu/row_ops.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kNodesPerTask = 256;  // enough to outweigh starting a task

/// Calls body(begin, end) for all nodes, kNodesPerTask to a task.
template <class Body>
void over_nodes(const Stream& stream, int64_t nodes, Body&& body) {
  stream.parallel_for((nodes + kNodesPerTask - 1) / kNodesPerTask, [&](int64_t task) {
    body(task * kNodesPerTask, std::min(nodes, (task + 1) * kNodesPerTask));
  });
}

/// Sums over rows that are added to a gradient: body(begin, end, sums) adds the part of some rows to [width]
/// zeros. Slabs are cut by the number of rows, and their sums are added in order.
template <class T, class Body>
void add_slab_sums(int64_t rows, const Tensor& gradient, Runtime& runtime, const Stream& stream,
                   const Body& body) {
  const int64_t width = gradient.elements(), slabs = gradient_slabs(rows);
  const int64_t slab_rows = (rows + slabs - 1) / slabs;
  const Tensor sums =
      Tensor::zeros(runtime, Shape{slabs, width}, dtype_of<T>(), Tag::workspace, "gradient slabs");
  stream.parallel_for(slabs, [&](int64_t slab) {
    const int64_t begin = std::min(rows, slab * slab_rows);
    body(begin, std::min(rows, begin + slab_rows), sums.data<T>() + slab * width);
  });
  stream.run([&] {
    row_ops<T>().sum_rows({.accumulate = true}, 0, slabs, width, sums.data<T>(), width, gradient.data<T>());
  });
}

template <class S>
AttentionPointers<S> pointers_of(const EdgeAttention& a, const Tensor& out, const Tensor& log_sums) {
  using T = Accumulator<S>;
  const Graph& graph = *a.graph;
  const int64_t width = a.values.width(), dim = width / a.heads;
  return {.score = a.score,
          .heads = a.heads,
          .dim = dim,
          .width = width,
          .sender_count = graph.node_rows().value(),
          .receiver_count = graph.owned_rows().value(),
          .self_edges = a.self_edges,
          .slope = static_cast<T>(a.slope),
          .scale = T(1) / std::sqrt(static_cast<T>(dim)),
          .senders = graph.senders.data<int32_t>(),
          .receivers = graph.receivers.data<int32_t>(),
          .receiver_offsets = graph.receiver_offsets.data<int32_t>(),
          .sender_offsets = graph.sender_offsets.data<int32_t>(),
          .sender_order = graph.sender_order.data<int32_t>(),
          .values = a.values.data<S>(),
          .keys = (a.keys.defined() ? a.keys : a.values).data<S>(),
          .queries = a.queries.data_or_null<S>(),
          .edge_scores = a.edge_scores.data_or_null<S>(),
          .sender_scores = a.sender_scores.data_or_null<T>(),
          .receiver_scores = a.receiver_scores.data_or_null<T>(),
          .weight = a.weight.data_or_null<T>(),
          .dropout = mask_of(a.dropout),
          .out = out.data<S>(),
          .log_sums = log_sums.data_or_null<T>()};
}

template <class S>
void forward_of(const EdgeAttentionForward& args, const Stream& stream) {
  const AttentionPointers<S> a = pointers_of<S>(args.inputs, args.out, args.log_sums);
  const AttentionRows<S>& rows = attention_rows<S>();
  over_nodes(stream, a.receiver_count, [&](int64_t begin, int64_t end) { rows.forward(a, begin, end); });
}

template <class S>
void backward_of(const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  AttentionPointers<S> a = pointers_of<S>(args.inputs, args.out, args.log_sums);
  const Graph& graph = *args.inputs.graph;
  const auto workspace = [&](int64_t rows, std::string_view name) {
    return Tensor::empty(runtime, Shape{rows, a.heads}, dtype_of<T>(), Tag::workspace, name);
  };
  const Tensor dots = workspace(graph.owned_nodes, "attention dots");
  const Tensor d_scores = workspace(graph.edges, "gradient of scores");
  Tensor d_self_scores;
  if (a.self_edges) d_self_scores = workspace(graph.owned_nodes, "gradient of self edges");
  a.d_out = args.d_out.data<S>();
  a.dots = dots.data<T>();
  a.d_scores = d_scores.data<T>();
  a.d_self_scores = d_self_scores.data_or_null<T>();
  a.d_values = args.d_values.data_or_null<S>();
  a.d_keys = args.d_keys.data_or_null<S>();
  a.d_queries = args.d_queries.data_or_null<S>();
  a.d_edge_scores = args.d_edge_scores.data_or_null<S>();
  a.d_sender_scores = args.d_sender_scores.data_or_null<T>();
  a.d_receiver_scores = args.d_receiver_scores.data_or_null<T>();
  a.add_values = args.accumulate_d_values;
  a.add_keys = args.accumulate_d_keys;
  a.add_queries = args.accumulate_d_queries;
  a.add_edge_scores = args.accumulate_d_edge_scores;
  a.add_sender_scores = args.accumulate_d_sender_scores;
  a.add_receiver_scores = args.accumulate_d_receiver_scores;
  a.values_are_keys = !args.inputs.keys.defined();
  const AttentionRows<S>& rows = attention_rows<S>();
  over_nodes(stream, a.receiver_count, [&](int64_t begin, int64_t end) { rows.dots(a, begin, end); });
  over_nodes(stream, a.sender_count, [&](int64_t begin, int64_t end) { rows.senders(a, begin, end); });
  if (args.d_weight.defined()) {
    add_slab_sums<T>(
        a.receiver_count, args.d_weight, runtime, stream,
        [&](int64_t begin, int64_t end, T* d_weight) { rows.receivers(a, begin, end, d_weight); });
  } else if (a.d_queries != nullptr || a.d_receiver_scores != nullptr) {
    over_nodes(stream, a.receiver_count,
               [&](int64_t begin, int64_t end) { rows.receivers(a, begin, end, nullptr); });
  }
}

template <class S>
void head_scores_forward_of(const HeadScoresForward& args, const Stream& stream) {
  const int64_t heads = args.heads, width = args.x.width();
  over_nodes(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
    attention_rows<S>().head_scores(end - begin, heads, width / heads, args.x.data<S>() + begin * width,
                                    args.weight.data<Accumulator<S>>(),
                                    args.scores.data<Accumulator<S>>() + begin * heads);
  });
}

template <class S>
void head_scores_backward_of(const HeadScoresBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const int64_t heads = args.heads, width = args.x.width();
  const auto of_rows = [&](int64_t begin, int64_t end, T* d_weight) {
    S* const d_x = args.d_x.data_or_null<S>();
    attention_rows<S>().head_scores_backward(end - begin, heads, width / heads,
                                             args.x.data<S>() + begin * width, args.weight.data<T>(),
                                             args.d_scores.data<T>() + begin * heads, args.accumulate_d_x,
                                             d_x != nullptr ? d_x + begin * width : nullptr, d_weight);
  };
  if (args.d_weight.defined()) {
    add_slab_sums<T>(args.rows.value(), args.d_weight, runtime, stream, of_rows);
  } else {
    over_nodes(stream, args.rows.value(), [&](int64_t begin, int64_t end) { of_rows(begin, end, nullptr); });
  }
}

}  // namespace

const AttentionKernels attention_kernels{
    .edge_attention_forward =
        [](const EdgeAttentionForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(), [&]<class S>() { forward_of<S>(args, stream); });
        },
    .edge_attention_backward =
        [](const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(), [&]<class S>() { backward_of<S>(args, runtime, stream); });
        },
    .head_scores_forward =
        [](const HeadScoresForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.x.dtype(), [&]<class S>() { head_scores_forward_of<S>(args, stream); });
        },
    .head_scores_backward =
        [](const HeadScoresBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.x.dtype(),
                               [&]<class S>() { head_scores_backward_of<S>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
