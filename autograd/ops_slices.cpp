// SPDX-License-Identifier: Apache-2.0
// Slice attention: from nodes to tokens, among the tokens, and back.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/slice_attention.h>

namespace meshgrad::ops {
namespace {

SliceWeights kernel_weights(const SliceInputs& in) {
  return {.heads = in.heads,
          .nodes = in.keys.rows(),
          .starts = in.graph_starts,
          .keys = in.keys.value(),
          .weight = in.weight.value,
          .bias = in.bias.value,
          .temperatures = in.temperatures.value};
}
SliceWeightGradients gradients_of_weights(const Tape& back, const SliceInputs& in) {
  const GradientTarget keys = back.gradient_for(in.keys.slot());
  return {.d_keys = keys.tensor,
          .accumulate_d_keys = keys.accumulate,
          .d_weight = in.weight.gradient,
          .d_bias = in.bias.gradient,
          .d_temperatures = in.temperatures.gradient};
}
bool needs_gradient(const SliceInputs& in, const Variable& other) {
  return other.needs_gradient() || in.keys.needs_gradient() || in.weight.gradient.defined();
}

}  // namespace

Variable slice_tokens(Tape& tape, const SliceInputs& in, const Variable& values) {
  const DType dtype = values.value().dtype();
  const int64_t rows = (in.graph_starts.rows() - 1) * in.heads * in.weight.value.width();
  Variable tokens =
      tape.output(rows, in.weight.value.rows(), dtype, needs_gradient(in, values), "slice tokens");
  // An output, since recomputation runs an op for its outputs alone.
  const Variable sizes = tape.output(Shape{rows}, rows, accumulator_of(dtype), false, "slice sizes");
  if (tape.runs()) {
    kernels::slice_tokens_forward({.weights = kernel_weights(in),
                                   .values = values.value(),
                                   .tokens = tokens.value(),
                                   .sizes = sizes.value()},
                                  tape.runtime(), tape.stream());
  }
  const Variable inputs[] = {in.keys, values};
  tape.record(
      {.op = "slice_tokens", .inputs = inputs, .backward_reads_inputs = true, .backward_reads_outputs = true},
      [in, values, tokens, sizes](Tape& back) {
        const Tensor d_tokens = back.take_gradient(tokens.slot());
        if (!d_tokens.defined()) return;
        // First, as the keys may be the values: then they add to what these have written.
        const GradientTarget d_values = back.gradient_for(values.slot());
        kernels::slice_tokens_backward({.weights = kernel_weights(in),
                                        .values = values.value(),
                                        .tokens = tokens.value(),
                                        .sizes = sizes.value(),
                                        .d_tokens = d_tokens,
                                        .d_values = d_values.tensor,
                                        .accumulate_d_values = d_values.accumulate,
                                        .gradients = gradients_of_weights(back, in)},
                                       back.runtime(), back.stream());
      });
  return tokens;
}

Variable slice_spread(Tape& tape, const SliceInputs& in, const Variable& tokens) {
  Variable out = tape.output(in.keys.rows(), in.keys.value().width(), tokens.value().dtype(),
                             needs_gradient(in, tokens), "slice_spread");
  if (tape.runs()) {
    kernels::slice_spread_forward(
        {.weights = kernel_weights(in), .tokens = tokens.value(), .out = out.value()}, tape.runtime(),
        tape.stream());
  }
  const Variable inputs[] = {in.keys, tokens};
  tape.record({.op = "slice_spread", .inputs = inputs, .backward_reads_inputs = true},
              [in, tokens, out = out.slot()](Tape& back) {
                const Tensor d_out = back.take_gradient(out);
                if (!d_out.defined()) return;
                const GradientTarget d_tokens = back.gradient_for(tokens.slot());
                kernels::slice_spread_backward({.weights = kernel_weights(in),
                                                .tokens = tokens.value(),
                                                .d_out = d_out,
                                                .d_tokens = d_tokens.tensor,
                                                .accumulate_d_tokens = d_tokens.accumulate,
                                                .gradients = gradients_of_weights(back, in)},
                                               back.runtime(), back.stream());
              });
  return out;
}

Variable token_attention(Tape& tape, int64_t slices, const Variable& queries, const Variable& keys,
                         const Variable& values) {
  const Variable inputs[] = {queries, keys, values};
  bool any = false;
  for (const Variable& input : inputs) any = any || input.needs_gradient();
  Variable out =
      tape.output(queries.rows(), queries.value().width(), queries.value().dtype(), any, "token_attention");
  if (tape.runs()) {
    kernels::token_attention_forward({.slices = slices,
                                      .queries = queries.value(),
                                      .keys = keys.value(),
                                      .values = values.value(),
                                      .out = out.value()},
                                     tape.runtime(), tape.stream());
  }
  tape.record({.op = "token_attention", .inputs = inputs, .backward_reads_inputs = true},
              [slices, queries, keys, values, out = out.slot()](Tape& back) {
                const Tensor d_out = back.take_gradient(out);
                if (!d_out.defined()) return;
                const GradientTarget d_queries = back.gradient_for(queries.slot());
                const GradientTarget d_keys = back.gradient_for(keys.slot());
                const GradientTarget d_values = back.gradient_for(values.slot());
                kernels::token_attention_backward({.slices = slices,
                                                   .queries = queries.value(),
                                                   .keys = keys.value(),
                                                   .values = values.value(),
                                                   .d_out = d_out,
                                                   .d_queries = d_queries.tensor,
                                                   .d_keys = d_keys.tensor,
                                                   .d_values = d_values.tensor,
                                                   .accumulate_d_queries = d_queries.accumulate,
                                                   .accumulate_d_keys = d_keys.accumulate,
                                                   .accumulate_d_values = d_values.accumulate},
                                                  back.runtime(), back.stream());
              });
  return out;
}

}  // namespace meshgrad::ops
