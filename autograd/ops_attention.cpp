// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/attention.h>

namespace meshgrad::ops {
namespace {

Tensor value_of(const Variable& variable) { return variable ? variable.value() : Tensor(); }

EdgeAttention kernel_inputs(const Graph& graph, const AttentionInputs& in) {
  return {.graph = &graph,
          .score = in.score,
          .heads = in.heads,
          .self_edges = in.self_edges,
          .slope = in.slope,
          .values = in.values.value(),
          .sender_scores = value_of(in.sender_scores),
          .receiver_scores = value_of(in.receiver_scores),
          .keys = value_of(in.keys),
          .queries = value_of(in.queries),
          .weight = in.weight.value,
          .edge_scores = value_of(in.edge_scores),
          .dropout = in.dropout};
}

Tensor empty_log_sums(const Tape& tape, const Graph& graph, const AttentionInputs& in) {
  const DType dtype = accumulator_of(in.values.value().dtype());
  return Tensor::empty(tape.runtime(), {graph.owned_nodes, in.heads}, dtype, tape.tag(), "attention sums");
}
/// Of a recomputed segment that kept the op's output, so that forward did not run again.
Tensor log_sums_again(const Tape& back, const Graph& graph, const AttentionInputs& in, const Tensor& like) {
  const Tensor log_sums = empty_log_sums(back, graph, in);
  const Tensor out = back.scratch(like.shape(), like.dtype(), "attention again");
  kernels::edge_attention_forward({.inputs = kernel_inputs(graph, in), .out = out, .log_sums = log_sums},
                                  back.stream());
  return log_sums;
}

}  // namespace

Variable edge_attention(Tape& tape, const Graph& graph, const AttentionInputs& in) {
  const Variable inputs[] = {in.values, in.sender_scores, in.receiver_scores,
                             in.keys,   in.queries,       in.edge_scores};
  bool needs_gradient = in.weight.gradient.defined();
  for (const Variable& input : inputs) needs_gradient = needs_gradient || input.needs_gradient();
  const DType dtype = in.values.value().dtype();
  Variable out =
      tape.output(graph.owned_rows(), in.values.value().width(), dtype, needs_gradient, "attention");
  Tensor saved_sums;
  if (tape.runs()) {
    if (tape.recording() && needs_gradient) saved_sums = empty_log_sums(tape, graph, in);
    kernels::edge_attention_forward(
        {.inputs = kernel_inputs(graph, in), .out = out.value(), .log_sums = saved_sums}, tape.stream());
  }
  tape.record({.op = "edge_attention",
               .inputs = inputs,
               .backward_reads_inputs = true,
               .backward_reads_outputs = true},
              [in, out, saved = saved_sums, graph = &graph](Tape& back) {
                const Tensor d_out = back.take_gradient(out.slot());
                if (!d_out.defined()) return;
                const Tensor log_sums = saved.defined() ? saved : log_sums_again(back, *graph, in, d_out);
                const GradientTarget values = back.gradient_for(in.values.slot());
                const GradientTarget senders = back.gradient_for(in.sender_scores.slot());
                const GradientTarget receivers = back.gradient_for(in.receiver_scores.slot());
                const GradientTarget keys = back.gradient_for(in.keys.slot());
                const GradientTarget queries = back.gradient_for(in.queries.slot());
                const GradientTarget edges = back.gradient_for(in.edge_scores.slot());
                kernels::edge_attention_backward({.inputs = kernel_inputs(*graph, in),
                                                  .out = out.value(),
                                                  .log_sums = log_sums,
                                                  .d_out = d_out,
                                                  .d_values = values.tensor,
                                                  .accumulate_d_values = values.accumulate,
                                                  .d_sender_scores = senders.tensor,
                                                  .d_receiver_scores = receivers.tensor,
                                                  .accumulate_d_sender_scores = senders.accumulate,
                                                  .accumulate_d_receiver_scores = receivers.accumulate,
                                                  .d_keys = keys.tensor,
                                                  .d_queries = queries.tensor,
                                                  .accumulate_d_keys = keys.accumulate,
                                                  .accumulate_d_queries = queries.accumulate,
                                                  .d_weight = in.weight.gradient,
                                                  .d_edge_scores = edges.tensor,
                                                  .accumulate_d_edge_scores = edges.accumulate},
                                                 back.runtime(), back.stream());
              });
  return out;
}

Variable head_scores(Tape& tape, const Variable& x, const Weight& weight, int64_t heads) {
  const DType sums = accumulator_of(x.value().dtype());
  Variable scores =
      tape.output(x.rows(), heads, sums, x.needs_gradient() || weight.gradient.defined(), "head scores");
  if (tape.runs()) {
    kernels::head_scores_forward(
        {.rows = x.rows(), .heads = heads, .x = x.value(), .weight = weight.value, .scores = scores.value()},
        tape.stream());
  }
  tape.record({.op = "head_scores", .inputs = {&x, 1}, .backward_reads_inputs = true},
              [x, scores = scores.slot(), weight, heads](Tape& back) {
                const Tensor d_scores = back.take_gradient(scores);
                if (!d_scores.defined()) return;
                const GradientTarget d_x = back.gradient_for(x.slot());
                kernels::head_scores_backward({.rows = scores.rows(),
                                               .heads = heads,
                                               .x = x.value(),
                                               .weight = weight.value,
                                               .d_scores = d_scores,
                                               .d_x = d_x.tensor,
                                               .accumulate_d_x = d_x.accumulate,
                                               .d_weight = weight.gradient},
                                              back.runtime(), back.stream());
              });
  return scores;
}

}  // namespace meshgrad::ops
