// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/slice_attention.h>

#include <fmt/format.h>

#include <string>

namespace meshgrad {
namespace {

void check_sizes(std::string_view op, int64_t columns, int64_t slices) {
  if (slices_fit(slices, columns)) return;
  throw invalid_argument(std::string(op), slices_that_fit(),
                         fmt::format("{} slices of {} columns", slices, columns));
}

void check_weights(std::string_view op, const SliceWeights& a) {
  check_defined(op, "keys", a.keys);
  check_defined(op, "weight", a.weight);
  check_defined(op, "starts", a.starts);
  const DType dtype = a.keys.dtype(), sums = accumulator_of(dtype);
  const int64_t width = a.width();
  if (a.heads < 1 || a.heads > kMaxHeads || width % a.heads != 0)
    throw invalid_argument(fmt::format("{}: heads", op),
                           fmt::format("1 to {} heads that divide the width", kMaxHeads),
                           fmt::format("{} heads, width {}", a.heads, width));
  check_sizes(op, width / a.heads, a.slices());
  check_tensor(op, "keys", a.keys, dtype, {a.nodes.capacity, width});
  check_tensor(op, "starts", a.starts, DType::i32, {a.graphs() + 1});
  check_tensor(op, "weight", a.weight, dtype, {width / a.heads, a.slices()});
  check_tensor(op, "bias", a.bias, sums, {a.slices()});
  check_tensor(op, "temperatures", a.temperatures, sums, {a.heads});
}

void check_gradients(std::string_view op, const SliceWeights& a, const SliceWeightGradients& d) {
  const DType sums = accumulator_of(a.keys.dtype());
  check_optional(op, "d_keys", d.d_keys, a.keys.dtype(), a.keys.shape());
  check_optional(op, "d_weight", d.d_weight, sums, a.weight.shape());
  check_optional(op, "d_bias", d.d_bias, sums, a.bias.shape());
  check_optional(op, "d_temperatures", d.d_temperatures, sums, a.temperatures.shape());
}

void check_tokens(std::string_view op, int64_t slices, const Tensor& queries, const Tensor& keys,
                  const Tensor& values) {
  check_defined(op, "queries", queries);
  check_sizes(op, queries.width(), slices);
  if (queries.rows() % slices != 0)
    throw invalid_argument(fmt::format("{}: queries", op), fmt::format("rows in groups of {}", slices),
                           fmt::format("{} rows", queries.rows()));
  check_tensor(op, "keys", keys, queries.dtype(), queries.shape());
  check_tensor(op, "values", values, queries.dtype(), queries.shape());
}

Shape token_shape(const SliceWeights& a) { return {a.tokens(), a.columns()}; }

/// Multiply-adds of one of the products of a pass: of each node and slice with all columns.
double pass_flops(const SliceWeights& a, double products) {
  return 2.0 * products * static_cast<double>(a.keys.elements()) * static_cast<double>(a.slices());
}
double weight_bytes(const SliceWeights& a) {
  return bytes_of(a.starts, a.keys, a.weight, a.bias, a.temperatures);
}
/// The products with W and keys that the gradients of these are, and their bytes.
Work gradient_work(const SliceWeights& a, const SliceWeightGradients& d) {
  const double products = 1.0 + (d.d_keys.defined() ? 1.0 : 0.0) + (d.d_weight.defined() ? 1.0 : 0.0);
  return {.flops = pass_flops(a, products),
          .bytes = bytes_added(d.d_keys, d.accumulate_d_keys) + bytes_added(d.d_weight) +
                   bytes_added(d.d_bias) + bytes_added(d.d_temperatures)};
}

double attention_flops(const Tensor& queries, int64_t slices, double products) {
  return 2.0 * products * static_cast<double>(queries.elements()) * static_cast<double>(slices);
}

}  // namespace

void kernels::slice_tokens_forward(const SliceTokensForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "slice_tokens.forward";
  const SliceWeights& a = args.weights;
  check_weights(kOp, a);
  check_tensor(kOp, "values", args.values, a.keys.dtype(), a.keys.shape());
  check_tensor(kOp, "tokens", args.tokens, a.keys.dtype(), token_shape(a));
  check_tensor(kOp, "sizes", args.sizes, accumulator_of(a.keys.dtype()), {a.tokens()});
  kernels::tables(a.keys.device()).slice_attention.slice_tokens_forward(args, runtime, stream);
  note_work("slice_tokens_forward", args);
}

void kernels::slice_tokens_backward(const SliceTokensBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "slice_tokens.backward";
  const SliceWeights& a = args.weights;
  check_weights(kOp, a);
  check_tensor(kOp, "values", args.values, a.keys.dtype(), a.keys.shape());
  check_tensor(kOp, "tokens", args.tokens, a.keys.dtype(), token_shape(a));
  check_tensor(kOp, "sizes", args.sizes, accumulator_of(a.keys.dtype()), {a.tokens()});
  check_tensor(kOp, "d_tokens", args.d_tokens, a.keys.dtype(), token_shape(a));
  check_optional(kOp, "d_values", args.d_values, a.keys.dtype(), a.keys.shape());
  check_gradients(kOp, a, args.gradients);
  kernels::tables(a.keys.device()).slice_attention.slice_tokens_backward(args, runtime, stream);
  note_work("slice_tokens_backward", args);
}

void kernels::slice_spread_forward(const SliceSpreadForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "slice_spread.forward";
  const SliceWeights& a = args.weights;
  check_weights(kOp, a);
  check_tensor(kOp, "tokens", args.tokens, a.keys.dtype(), token_shape(a));
  check_tensor(kOp, "out", args.out, a.keys.dtype(), a.keys.shape());
  kernels::tables(a.keys.device()).slice_attention.slice_spread_forward(args, runtime, stream);
  note_work("slice_spread_forward", args);
}

void kernels::slice_spread_backward(const SliceSpreadBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "slice_spread.backward";
  const SliceWeights& a = args.weights;
  check_weights(kOp, a);
  check_tensor(kOp, "tokens", args.tokens, a.keys.dtype(), token_shape(a));
  check_tensor(kOp, "d_out", args.d_out, a.keys.dtype(), a.keys.shape());
  check_optional(kOp, "d_tokens", args.d_tokens, a.keys.dtype(), token_shape(a));
  check_gradients(kOp, a, args.gradients);
  kernels::tables(a.keys.device()).slice_attention.slice_spread_backward(args, runtime, stream);
  note_work("slice_spread_backward", args);
}

void kernels::token_attention_forward(const TokenAttentionForward& args, Runtime& runtime,
                                      const Stream& stream) {
  constexpr std::string_view kOp = "token_attention.forward";
  check_tokens(kOp, args.slices, args.queries, args.keys, args.values);
  check_tensor(kOp, "out", args.out, args.queries.dtype(), args.queries.shape());
  kernels::tables(args.queries.device()).slice_attention.token_attention_forward(args, runtime, stream);
  note_work("token_attention_forward", args);
}

void kernels::token_attention_backward(const TokenAttentionBackward& args, Runtime& runtime,
                                       const Stream& stream) {
  constexpr std::string_view kOp = "token_attention.backward";
  check_tokens(kOp, args.slices, args.queries, args.keys, args.values);
  const Tensor& like = args.queries;
  check_tensor(kOp, "d_out", args.d_out, like.dtype(), like.shape());
  check_optional(kOp, "d_queries", args.d_queries, like.dtype(), like.shape());
  check_optional(kOp, "d_keys", args.d_keys, like.dtype(), like.shape());
  check_optional(kOp, "d_values", args.d_values, like.dtype(), like.shape());
  kernels::tables(like.device()).slice_attention.token_attention_backward(args, runtime, stream);
  note_work("token_attention_backward", args);
}

/// Two products of each node and slice with a head's columns: for the weights and with them.
Work work_of(const SliceTokensForward& args) {
  return {.flops = pass_flops(args.weights, 2.0),
          .bytes = weight_bytes(args.weights) + bytes_of(args.values, args.tokens, args.sizes)};
}
Work work_of(const SliceTokensBackward& args) {
  Work work = gradient_work(args.weights, args.gradients);
  work.flops += pass_flops(args.weights, 1.0 + (args.d_values.defined() ? 1.0 : 0.0));
  work.bytes += weight_bytes(args.weights) + bytes_of(args.values, args.tokens, args.sizes, args.d_tokens) +
                bytes_added(args.d_values, args.accumulate_d_values);
  return work;
}
Work work_of(const SliceSpreadForward& args) {
  return {.flops = pass_flops(args.weights, 2.0),
          .bytes = weight_bytes(args.weights) + bytes_of(args.tokens, args.out)};
}
Work work_of(const SliceSpreadBackward& args) {
  Work work = gradient_work(args.weights, args.gradients);
  work.flops += pass_flops(args.weights, 1.0 + (args.d_tokens.defined() ? 1.0 : 0.0));
  work.bytes += weight_bytes(args.weights) + bytes_of(args.tokens, args.d_out) +
                bytes_added(args.d_tokens, args.accumulate_d_tokens);
  return work;
}
Work work_of(const TokenAttentionForward& args) {
  return {.flops = attention_flops(args.queries, args.slices, 2.0),
          .bytes = bytes_of(args.queries, args.keys, args.values, args.out)};
}
Work work_of(const TokenAttentionBackward& args) {
  return {.flops = attention_flops(args.queries, args.slices, 5.0),
          .bytes = bytes_of(args.queries, args.keys, args.values, args.d_out) +
                   bytes_added(args.d_queries, args.accumulate_d_queries) +
                   bytes_added(args.d_keys, args.accumulate_d_keys) +
                   bytes_added(args.d_values, args.accumulate_d_values)};
}

}  // namespace meshgrad
