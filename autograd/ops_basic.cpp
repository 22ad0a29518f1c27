// SPDX-License-Identifier: Apache-2.0
// The op-by-op path: one kernel per op, saving for backward what a general framework would save.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/segment_sum.h>

namespace meshgrad::ops {

Variable linear(Tape& tape, const Variable& x, const Weight& weight, const Weight& bias) {
  const Rows rows = x.rows();
  Variable y = tape.output(rows, weight.value.width(), x.value().dtype(), true, "linear");
  if (tape.runs()) {
    kernels::linear_forward(
        {.rows = rows, .x = x.value(), .weight = weight.value, .bias = bias.value, .y = y.value()},
        tape.runtime(), tape.stream());
  }
  tape.record({.op = "linear", .inputs = {&x, 1}, .backward_reads_inputs = true, .matmul = true},
              [x, y = y.slot(), weight, bias](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined()) return;
                const GradientTarget d_x = back.gradient_for(x.slot());
                kernels::linear_backward({.rows = y.rows(),
                                          .d_y = d_y,
                                          .x = x.value(),
                                          .weight = weight.value,
                                          .d_x = d_x.tensor,
                                          .accumulate_d_x = d_x.accumulate,
                                          .d_weight = weight.gradient,
                                          .d_bias = bias.gradient},
                                         back.runtime(), back.stream());
              });
  return y;
}

Variable activation(Tape& tape, const Variable& x, Activation kind) {
  Variable y = tape.output(x.rows(), x.value().width(), x.value().dtype(), x.needs_gradient(), "activation");
  if (tape.runs()) {
    kernels::activation_forward({.activation = kind, .x = x.value(), .y = y.value()}, tape.stream());
  }
  // relu's derivative follows from y, which the next op saves anyway, so x need not be saved.
  const bool by_output = kind == Activation::relu;
  tape.record({.op = "activation",
               .inputs = {&x, 1},
               .backward_reads_inputs = !by_output,
               .backward_reads_outputs = by_output},
              [read = by_output ? y : x, x = x.slot(), y = y.slot(), kind](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined() || !x.needs_gradient()) return;
                const bool fresh = !x.gradient().defined();
                const Tensor d_x = fresh ? d_y : back.gradient_for(x).tensor;
                kernels::activation_backward(
                    {.activation = kind, .x = read.value(), .d_y = d_y, .d_x = d_x, .accumulate = !fresh},
                    back.stream());
                if (fresh) back.add_gradient(x, d_x);
              });
  return y;
}

Variable add_bias(Tape& tape, const Variable& x, const Weight& bias) {
  Variable y = tape.output(x.rows(), x.value().width(), x.value().dtype(), true, "add_bias");
  if (tape.runs())
    kernels::add_bias_forward({.x = x.value(), .bias = bias.value, .y = y.value()}, tape.stream());
  tape.record({.op = "add_bias", .inputs = {&x, 1}}, [x = x.slot(), y = y.slot(), bias](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined()) return;
    if (bias.gradient.defined())
      kernels::add_bias_backward({.rows = y.rows(), .d_y = d_y, .d_bias = bias.gradient}, back.runtime(),
                                 back.stream());
    if (x.needs_gradient()) back.add_gradient(x, d_y);
  });
  return y;
}

Variable dropout(Tape& tape, const Variable& x, const DropoutKey& key) {
  if (key.rate == 0.0) return x;
  const Rows rows = x.rows();
  Variable y = tape.output(rows, x.value().width(), x.value().dtype(), x.needs_gradient(), "dropout");
  if (tape.runs())
    kernels::dropout({.rows = rows, .key = key, .x = x.value(), .y = y.value()}, tape.stream());
  tape.record({.op = "dropout", .inputs = {&x, 1}}, [x = x.slot(), y = y.slot(), key](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined() || !x.needs_gradient()) return;
    const GradientTarget d_x = back.gradient_for(x);
    kernels::dropout({.rows = y.rows(), .key = key, .x = d_y, .y = d_x.tensor, .accumulate = d_x.accumulate},
                     back.stream());
  });
  return y;
}

Variable norm(Tape& tape, const Variable& x, Norm kind, const Weight& gain, const Weight& bias,
              double epsilon) {
  const Rows rows = x.rows();
  Variable y = tape.output(rows, x.value().width(), x.value().dtype(), true, "norm");
  if (tape.runs()) {
    kernels::norm_forward({.norm = kind,
                           .rows = rows,
                           .x = x.value(),
                           .gain = gain.value,
                           .bias = bias.value,
                           .epsilon = epsilon,
                           .y = y.value()},
                          tape.runtime(), tape.stream());
  }
  tape.record({.op = "norm", .inputs = {&x, 1}, .backward_reads_inputs = true},
              [x, y = y.slot(), kind, gain, bias, epsilon](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined()) return;
                const GradientTarget slot = back.gradient_for(x.slot());
                const auto or_scratch = [&](const Tensor& wanted, const Tensor& like) {
                  return wanted.defined() || !like.defined()
                             ? wanted
                             : back.scratch(like.shape(), like.dtype(), "unwanted gradient");
                };
                kernels::norm_backward({.norm = kind,
                                        .rows = y.rows(),
                                        .x = x.value(),
                                        .gain = gain.value,
                                        .d_y = d_y,
                                        .epsilon = epsilon,
                                        .d_x = or_scratch(slot.tensor, x.value()),
                                        .accumulate = slot.accumulate,
                                        .d_gain = or_scratch(gain.gradient, gain.value),
                                        .d_bias = or_scratch(bias.gradient, bias.value)},
                                       back.runtime(), back.stream());
              });
  return y;
}

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  Variable y = tape.output(a.rows(), a.value().width(), a.value().dtype(),
                           a.needs_gradient() || b.needs_gradient(), "add");
  if (tape.runs()) {
    copy(a.value(), y.value(), tape.stream());
    kernels::axpby({.a = 1.0, .x = b.value(), .b = 1.0, .y = y.value()}, tape.stream());
  }
  const Variable inputs[] = {a, b};
  tape.record({.op = "add", .inputs = inputs}, [a = a.slot(), b = b.slot(), y = y.slot()](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined()) return;
    // One of the two may take the tensor itself; the other then needs a copy.
    if (a.needs_gradient() && b.needs_gradient() && !b.gradient().defined()) {
      copy(d_y, back.gradient_for(b).tensor, back.stream());
    } else {
      back.add_gradient(b, d_y);
    }
    if (a.needs_gradient()) back.add_gradient(a, d_y);
  });
  return y;
}

Variable maximum(Tape& tape, const Variable& a, const Variable& b) {
  Variable y = tape.output(a.rows(), a.value().width(), a.value().dtype(),
                           a.needs_gradient() || b.needs_gradient(), "maximum");
  if (tape.runs()) kernels::maximum_forward({.a = a.value(), .b = b.value(), .y = y.value()}, tape.stream());
  const Variable inputs[] = {a, b};
  tape.record({.op = "maximum", .inputs = inputs, .backward_reads_inputs = true},
              [a, b, y = y.slot()](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined()) return;
                const GradientTarget d_a = back.gradient_for(a.slot()), d_b = back.gradient_for(b.slot());
                kernels::maximum_backward({.a = a.value(),
                                           .b = b.value(),
                                           .d_y = d_y,
                                           .d_a = d_a.tensor,
                                           .d_b = d_b.tensor,
                                           .accumulate_d_a = d_a.accumulate,
                                           .accumulate_d_b = d_b.accumulate},
                                          back.stream());
              });
  return y;
}

namespace {

const Tensor& index_of(ConcatPart::Rows rows, const Graph* graph) {
  static const Tensor kNone;
  if (rows == ConcatPart::Rows::own) return kNone;
  return rows == ConcatPart::Rows::sender ? graph->senders : graph->receivers;
}

/// What the backward of a concatenation saves of a part.
struct ConcatSlot {
  GradientSlot x;
  ConcatPart::Rows rows;
};

void concat_backward(Tape& back, const ConcatSlot& part, const Graph* graph, const Tensor& d_y,
                     int64_t column) {
  const GradientTarget slot = back.gradient_for(part.x);
  if (!slot.tensor.defined()) return;
  SegmentSum sum{.segments = part.x.rows(),
                 .offsets = {},
                 .order = {},
                 .x = d_y,
                 .out = slot.tensor,
                 .accumulate = slot.accumulate,
                 .x_column = column};
  if (part.rows == ConcatPart::Rows::sender) {
    sum.offsets = graph->sender_offsets;
    sum.order = graph->sender_order;
  } else if (part.rows == ConcatPart::Rows::receiver) {
    sum.offsets = graph->receiver_offsets;
    sum.segments = graph->owned_rows();
    sum.out = slot.tensor.row_range(0, graph->owned_nodes);
    if (!slot.accumulate) fill_zero(slot.tensor, back.stream());
  }
  meshgrad::kernels::segment_sum(sum, back.stream());
}

}  // namespace

Variable concat(Tape& tape, const PerInput<ConcatPart>& parts, const Graph* graph) {
  int64_t width = 0;
  bool gathers = false;
  for (const ConcatPart& part : parts) {
    width += part.x.value().width();
    gathers = gathers || part.rows != ConcatPart::Rows::own;
  }
  if (parts.empty() || (gathers && graph == nullptr)) {
    throw invalid_argument("concat", "parts, and a graph for parts that gather", "none");
  }
  const Rows rows = gathers ? graph->edge_rows() : parts.front().x.rows();
  Variable y = tape.output(rows, width, parts.front().x.value().dtype(), true, "concat");
  PerInput<Variable> inputs;
  PerInput<ConcatSlot> slots;
  int64_t column = 0;
  for (const ConcatPart& part : parts) {
    inputs.push_back(part.x);
    slots.push_back({part.x.slot(), part.rows});
    if (!tape.runs()) continue;
    kernels::gather({.rows = rows,
                     .index = index_of(part.rows, graph),
                     .x = part.x.value(),
                     .out = y.value(),
                     .out_column = column},
                    tape.stream());
    column += part.x.value().width();
  }
  tape.record({.op = "concat", .inputs = inputs}, [slots, graph, y = y.slot()](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined()) return;
    int64_t from = 0;
    for (const ConcatSlot& part : slots) {
      concat_backward(back, part, graph, d_y, from);
      from += part.x.shape().width();
    }
  });
  return y;
}

Variable segment_sum(Tape& tape, const Variable& x, const Graph& graph) {
  Variable y = tape.output(graph.owned_rows(), x.value().width(), x.value().dtype(), x.needs_gradient(),
                           "segment_sum");
  if (tape.runs()) {
    meshgrad::kernels::segment_sum({.segments = graph.owned_rows(),
                                    .offsets = graph.receiver_offsets,
                                    .order = {},
                                    .x = x.value(),
                                    .out = y.value()},
                                   tape.stream());
  }
  tape.record({.op = "segment_sum", .inputs = {&x, 1}}, [x = x.slot(), y = y.slot(), g = &graph](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined() || !x.needs_gradient()) return;
    const Tensor d_x = back.scratch(x.shape(), d_y.dtype(), "gradient");
    kernels::gather({.rows = g->edge_rows(), .index = g->receivers, .x = d_y, .out = d_x}, back.stream());
    back.add_gradient(x, d_x);
  });
  return y;
}

namespace {

/// x / count, in place.
void divide(const Tensor& x, int64_t count, const Stream& stream) {
  const double half = 0.5 / static_cast<double>(count);
  kernels::axpby({.a = half, .x = x, .b = half, .y = x}, stream);
}

}  // namespace

Variable mean_of_heads(Tape& tape, const Variable& x, int64_t heads) {
  if (heads == 1) return x;
  const Rows rows = x.rows();
  const int64_t width = x.value().width() / heads;
  Variable y = tape.output(rows, width, x.value().dtype(), x.needs_gradient(), "mean_of_heads");
  if (tape.runs()) {
    // The sum of heads may be too large for 16 bits where their mean is not.
    const DType dtype = y.value().dtype(), wide = accumulator_of(dtype);
    const Tensor sum = wide == dtype ? y.value() : tape.scratch(y.value().shape(), wide, "sum of heads");
    for (int64_t head = 0; head < heads; ++head)
      meshgrad::kernels::segment_sum({.segments = rows,
                                      .offsets = {},
                                      .order = {},
                                      .x = x.value(),
                                      .out = sum,
                                      .accumulate = head > 0,
                                      .x_column = head * width},
                                     tape.stream());
    divide(sum, heads, tape.stream());
    if (wide != dtype) kernels::cast({.from = sum, .to = y.value()}, tape.stream());
  }
  tape.record({.op = "mean_of_heads", .inputs = {&x, 1}}, [x = x.slot(), y = y.slot(), heads](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined() || !x.needs_gradient()) return;
    const Tensor d_x = back.scratch(x.shape(), d_y.dtype(), "gradient");
    divide(d_y, heads, back.stream());
    for (int64_t head = 0; head < heads; ++head)
      kernels::gather({.rows = y.rows(), .index = {}, .x = d_y, .out = d_x, .out_column = head * d_y.width()},
                      back.stream());
    back.add_gradient(x, d_x);
  });
  return y;
}

Variable embedding(Tape& tape, const Weight& table, const Graph& identifiers) {
  const Rows rows = identifiers.edge_rows();
  Variable y = tape.output(rows, table.value.width(), table.value.dtype(), true, "embedding");
  if (tape.runs()) {
    kernels::gather({.rows = rows, .index = identifiers.senders, .x = table.value, .out = y.value()},
                    tape.stream());
  }
  tape.record({.op = "embedding", .inputs = {}}, [table, y = y.slot(), g = &identifiers](Tape& back) {
    const Tensor d_y = back.take_gradient(y);
    if (!d_y.defined() || !table.gradient.defined()) return;
    meshgrad::kernels::segment_sum({.segments = g->node_rows(),
                                    .offsets = g->sender_offsets,
                                    .order = g->sender_order,
                                    .x = d_y,
                                    .out = table.gradient,
                                    .accumulate = true},
                                   back.stream());
  });
  return y;
}

Variable weighted_sum(Tape& tape, const Variable& x, const Graph& graph, const Tensor& weights) {
  Variable y = tape.output(graph.owned_rows(), x.value().width(), x.value().dtype(), x.needs_gradient(),
                           "weighted_sum");
  if (tape.runs()) {
    meshgrad::kernels::segment_sum({.segments = graph.owned_rows(),
                                    .offsets = graph.receiver_offsets,
                                    .order = {},
                                    .x = x.value(),
                                    .out = y.value(),
                                    .index = graph.senders,
                                    .weights = weights},
                                   tape.stream());
  }
  tape.record({.op = "weighted_sum", .inputs = {&x, 1}},
              [x = x.slot(), y = y.slot(), g = &graph, weights](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined()) return;
                const GradientTarget d_x = back.gradient_for(x);
                if (!d_x.tensor.defined()) return;
                meshgrad::kernels::segment_sum({.segments = g->node_rows(),
                                                .offsets = g->sender_offsets,
                                                .order = g->sender_order,
                                                .x = d_y,
                                                .out = d_x.tensor,
                                                .accumulate = d_x.accumulate,
                                                .index = g->receivers,
                                                .weights = weights},
                                               back.stream());
              });
  return y;
}

}  // namespace meshgrad::ops
