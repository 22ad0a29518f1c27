// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/attention.h>
#include <meshgrad/kernels/check.h>

#include <fmt/format.h>

#include <string>

namespace meshgrad {
namespace {

void check_heads(std::string_view op, int64_t heads, int64_t width) {
  if (heads >= 1 && heads <= kMaxHeads && width >= heads && width % heads == 0 &&
      width <= kMaxAttentionWidth && width / heads <= kMaxHeadColumns)
    return;
  throw invalid_argument(
      fmt::format("{}: heads", op),
      fmt::format("1 to {} heads that divide the width, of at most {} columns each and {} together",
                  kMaxHeads, kMaxHeadColumns, kMaxAttentionWidth),
      fmt::format("{} heads, width {}", heads, width));
}

void check_undefined(std::string_view op, std::string_view argument, const Tensor& tensor) {
  if (!tensor.defined()) return;
  throw invalid_argument(fmt::format("{}: {}", op, argument), "no tensor, with this score",
                         tensor.shape().text());
}

void check_inputs(std::string_view op, const EdgeAttention& a) {
  if (a.graph == nullptr) throw invalid_argument(op, "a graph", "none");
  check_defined(op, "values", a.values);
  const Graph& graph = *a.graph;
  const int64_t width = a.values.width();
  const DType dtype = a.values.dtype(), sums = accumulator_of(dtype);
  check_heads(op, a.heads, width);
  if (!(a.slope > 0.0)) {
    throw invalid_argument(fmt::format("{}: slope", op), "a number above 0", fmt::format("{}", a.slope));
  }
  if (a.self_edges && graph.owned_nodes > graph.nodes) {
    throw invalid_argument(fmt::format("{}: self_edges", op), "a sender of each receiver's number",
                           fmt::format("{} senders, {} receivers", graph.nodes, graph.owned_nodes));
  }
  const Shape senders{graph.nodes, width}, receivers{graph.owned_nodes, width};
  check_tensor(op, "values", a.values, dtype, senders);
  if (a.score == AttentionScore::gat) {
    check_tensor(op, "sender_scores", a.sender_scores, sums, {graph.nodes, a.heads});
    check_tensor(op, "receiver_scores", a.receiver_scores, sums, {graph.owned_nodes, a.heads});
    check_undefined(op, "keys", a.keys);
    check_undefined(op, "queries", a.queries);
  } else {
    check_undefined(op, "sender_scores", a.sender_scores);
    check_undefined(op, "receiver_scores", a.receiver_scores);
    check_optional(op, "keys", a.keys, dtype, senders);
    check_tensor(op, "queries", a.queries, dtype, receivers);
  }
  if (a.score == AttentionScore::gatv2) {
    check_tensor(op, "weight", a.weight, sums, {width});
    check_undefined(op, "edge_scores", a.edge_scores);
  } else {
    check_undefined(op, "weight", a.weight);
    check_optional(op, "edge_scores", a.edge_scores, dtype, {graph.edges, a.heads});
  }
  check_dropout(op, a.dropout, graph.owned_nodes);
}

/// Sums and products of an edge's scores.
double score_flops(const EdgeAttention& a) {
  const auto width = static_cast<double>(a.values.width());
  switch (a.score) {
    case AttentionScore::gat:
      return 2.0 * static_cast<double>(a.heads);
    case AttentionScore::gatv2:
      return 4.0 * width;
    case AttentionScore::dot:
      return 2.0 * width;
  }
  return 0.0;
}
double edges_of(const EdgeAttention& a) {
  return static_cast<double>(a.graph->edges + (a.self_edges ? a.graph->owned_nodes : 0));
}
double input_bytes(const EdgeAttention& a) {
  return bytes_of(a.values, a.sender_scores, a.receiver_scores, a.keys, a.queries, a.weight, a.edge_scores);
}

}  // namespace

void kernels::edge_attention_forward(const EdgeAttentionForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "edge_attention.forward";
  check_inputs(kOp, args.inputs);
  const Tensor& values = args.inputs.values;
  const int64_t receivers = args.inputs.graph->owned_nodes;
  check_tensor(kOp, "out", args.out, values.dtype(), {receivers, values.width()});
  check_optional(kOp, "log_sums", args.log_sums, accumulator_of(values.dtype()),
                 {receivers, args.inputs.heads});
  kernels::tables(args.out.device()).attention.edge_attention_forward(args, stream);
  note_work("edge_attention_forward", args);
}

void kernels::edge_attention_backward(const EdgeAttentionBackward& args, Runtime& runtime,
                                      const Stream& stream) {
  constexpr std::string_view kOp = "edge_attention.backward";
  check_inputs(kOp, args.inputs);
  const EdgeAttention& a = args.inputs;
  const DType dtype = a.values.dtype(), sums = accumulator_of(dtype);
  const Shape receivers{a.graph->owned_nodes, a.values.width()};
  check_tensor(kOp, "out", args.out, dtype, receivers);
  check_tensor(kOp, "log_sums", args.log_sums, sums, {a.graph->owned_nodes, a.heads});
  check_tensor(kOp, "d_out", args.d_out, dtype, receivers);
  check_optional(kOp, "d_values", args.d_values, dtype, a.values.shape());
  const auto check_like = [&](std::string_view name, const Tensor& gradient, const Tensor& of) {
    if (!of.defined()) return check_undefined(kOp, name, gradient);
    check_optional(kOp, name, gradient, of.dtype(), of.shape());
  };
  check_like("d_sender_scores", args.d_sender_scores, a.sender_scores);
  check_like("d_receiver_scores", args.d_receiver_scores, a.receiver_scores);
  check_like("d_keys", args.d_keys, a.keys);
  check_like("d_queries", args.d_queries, a.queries);
  check_like("d_weight", args.d_weight, a.weight);
  check_like("d_edge_scores", args.d_edge_scores, a.edge_scores);
  kernels::tables(args.d_out.device()).attention.edge_attention_backward(args, runtime, stream);
  note_work("edge_attention_backward", args);
}

void kernels::head_scores_forward(const HeadScoresForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "head_scores.forward";
  check_defined(kOp, "x", args.x);
  const int64_t width = args.x.width();
  const DType sums = accumulator_of(args.x.dtype());
  check_heads(kOp, args.heads, width);
  check_tensor(kOp, "x", args.x, args.x.dtype(), {args.rows.capacity, width});
  check_tensor(kOp, "weight", args.weight, sums, {width});
  check_tensor(kOp, "scores", args.scores, sums, {args.rows.capacity, args.heads});
  kernels::tables(args.x.device()).attention.head_scores_forward(args, stream);
  note_work("head_scores_forward", args);
}

void kernels::head_scores_backward(const HeadScoresBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "head_scores.backward";
  check_defined(kOp, "x", args.x);
  const int64_t width = args.x.width();
  const DType sums = accumulator_of(args.x.dtype());
  check_heads(kOp, args.heads, width);
  check_tensor(kOp, "x", args.x, args.x.dtype(), {args.rows.capacity, width});
  check_tensor(kOp, "weight", args.weight, sums, {width});
  check_tensor(kOp, "d_scores", args.d_scores, sums, {args.rows.capacity, args.heads});
  check_optional(kOp, "d_x", args.d_x, args.x.dtype(), args.x.shape());
  check_optional(kOp, "d_weight", args.d_weight, sums, {width});
  kernels::tables(args.x.device()).attention.head_scores_backward(args, runtime, stream);
  note_work("head_scores_backward", args);
}

/// A row of the values or keys that several receivers have is read once; of the graph one end of an edge, and
/// where each receiver's begin.
Work work_of(const EdgeAttentionForward& args) {
  const EdgeAttention& a = args.inputs;
  return {.flops = edges_of(a) * (score_flops(a) + 2.0 * static_cast<double>(a.values.width())),
          .bytes = input_bytes(a) +
                   bytes_of(a.graph->senders, a.graph->receiver_offsets, args.out, args.log_sums)};
}

/// Scores again, t and the values' gradient; then the gradients of what the scores are made of.
Work work_of(const EdgeAttentionBackward& args) {
  const EdgeAttention& a = args.inputs;
  const Graph& graph = *a.graph;
  const auto width = static_cast<double>(a.values.width());
  const bool scores = a.score != AttentionScore::gat;
  return {.flops = edges_of(a) * ((scores ? 3.0 : 2.0) * score_flops(a) + 4.0 * width),
          .bytes = input_bytes(a) +
                   bytes_of(args.out, args.log_sums, args.d_out, graph.receivers, graph.sender_order,
                            graph.sender_offsets) +
                   (scores ? bytes_of(graph.senders, graph.receiver_offsets) : 0.0) +
                   bytes_added(args.d_values, args.accumulate_d_values) +
                   bytes_added(args.d_sender_scores, args.accumulate_d_sender_scores) +
                   bytes_added(args.d_receiver_scores, args.accumulate_d_receiver_scores) +
                   bytes_added(args.d_keys, args.accumulate_d_keys) +
                   bytes_added(args.d_queries, args.accumulate_d_queries) + bytes_added(args.d_weight) +
                   bytes_added(args.d_edge_scores, args.accumulate_d_edge_scores)};
}

Work work_of(const HeadScoresForward& args) {
  return {.flops = 2.0 * static_cast<double>(args.x.elements()),
          .bytes = bytes_of(args.x, args.weight, args.scores)};
}

/// Without the weight's gradient x is not read.
Work work_of(const HeadScoresBackward& args) {
  const double outputs = (args.d_x.defined() ? 1.0 : 0.0) + (args.d_weight.defined() ? 1.0 : 0.0);
  return {.flops = 2.0 * outputs * static_cast<double>(args.x.elements()),
          .bytes = bytes_of(args.weight, args.d_scores) + (args.d_weight.defined() ? bytes_of(args.x) : 0.0) +
                   bytes_added(args.d_x, args.accumulate_d_x) + bytes_added(args.d_weight)};
}

}  // namespace meshgrad
