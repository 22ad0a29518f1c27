// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/work.h>

#include <fmt/format.h>

namespace meshgrad {
namespace {

void check_inputs(std::string_view op, const PerInput<MlpInput>& inputs, int64_t rows, int64_t hidden,
                  DType dtype) {
  if (inputs.empty()) throw invalid_argument(op, fmt::format("1 to {} inputs", kMaxMlpInputs), "none");
  for (const MlpInput& input : inputs) {
    check_defined(op, "an input's weight", input.weight);
    check_tensor(op, "an input's weight", input.weight, dtype, {input.weight.rows(), hidden});
    check_tensor(op, "an input", input.x, dtype, {rows, input.weight.rows()});
  }
}

}  // namespace

bool saved_is_complete(const MlpWeights& weights, const MlpSaved& saved) {
  bool complete = saved.pre_activations.size() == weights.weights.size();
  for (const Tensor& z : saved.pre_activations) complete = complete && z.defined();
  return complete && (weights.norm == Norm::none || saved.pre_norm.defined());
}

int64_t check_mlp_weights(std::string_view op, const MlpWeights& weights, const MlpSaved& saved, int64_t rows,
                          int64_t hidden, DType dtype) {
  if (weights.layers() > kMaxMlpLayers || weights.weights.size() != weights.biases.size()) {
    throw invalid_argument(op, fmt::format("at most {} layers, each with a bias", kMaxMlpLayers),
                           fmt::format("{} weights and {} biases after the first", weights.weights.size(),
                                       weights.biases.size()));
  }
  int64_t width = hidden;
  check_optional(op, "first_bias", weights.first_bias, accumulator_of(dtype), {width});
  for (size_t layer = 0; layer < weights.weights.size(); ++layer) {
    if (layer < saved.pre_activations.size()) {
      check_optional(op, "a saved pre-activation", saved.pre_activations[layer], dtype, {rows, width});
    }
    check_defined(op, "a weight", weights.weights[layer]);
    check_tensor(op, "a weight", weights.weights[layer], dtype, {width, weights.weights[layer].width()});
    width = weights.weights[layer].width();
    check_optional(op, "a bias", weights.biases[layer], accumulator_of(dtype), {width});
  }
  if (weights.norm != Norm::none) {
    check_tensor(op, "gain", weights.gain, accumulator_of(dtype), {width});
    check_optional(op, "norm_bias", weights.norm_bias, accumulator_of(dtype), {width});
    check_optional(op, "saved pre_norm", saved.pre_norm, dtype, {rows, width});
  }
  return width;
}

void check_mlp_gradients(std::string_view op, const MlpWeights& weights,
                         const MlpWeightGradients& gradients) {
  if (gradients.weights.size() != weights.weights.size() ||
      gradients.biases.size() != weights.biases.size()) {
    throw invalid_argument(op, "as many weight gradients as weights",
                           fmt::format("{}", gradients.weights.size()));
  }
  const auto check = [&](std::string_view name, const Tensor& gradient, const Tensor& weight) {
    if (weight.defined()) check_optional(op, name, gradient, accumulator_of(weight.dtype()), weight.shape());
  };
  check("d_first_bias", gradients.first_bias, weights.first_bias);
  for (size_t layer = 0; layer < weights.weights.size(); ++layer) {
    check("a weight's gradient", gradients.weights[layer], weights.weights[layer]);
    check("a bias's gradient", gradients.biases[layer], weights.biases[layer]);
  }
  check("d_gain", gradients.gain, weights.gain);
  check("d_norm_bias", gradients.norm_bias, weights.norm_bias);
}

bool kernels::saves_hidden(const MlpForward& args) {
  check_defined("mlp.forward", "out", args.out);
  return kernels::tables(args.out.device()).mlp.saves_hidden(args);
}

void kernels::mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "mlp.forward";
  check_defined(kOp, "out", args.out);
  const DType dtype = args.out.dtype();
  const int64_t rows = args.rows.capacity;
  const int64_t hidden =
      args.inputs.empty() || !args.inputs.front().weight.defined() ? 0 : args.inputs.front().weight.width();
  check_inputs(kOp, args.inputs, rows, hidden, dtype);
  const int64_t out = check_mlp_weights(kOp, args.weights, args.saved, rows, hidden, dtype);
  check_optional(kOp, "residual", args.residual, dtype, {rows, out});
  check_tensor(kOp, "out", args.out, dtype, {rows, out});
  if (args.node_terms != nullptr) {
    const Tensor& sender_weight = args.node_terms->sender_weight;
    check_defined(kOp, "node terms' sender weight", sender_weight);
    const Shape shape{out, sender_weight.width()};
    check_tensor(kOp, "node terms' sender weight", sender_weight, dtype, shape);
    check_tensor(kOp, "node terms' receiver weight", args.node_terms->receiver_weight, dtype, shape);
  }
  kernels::tables(args.out.device()).mlp.forward(args, runtime, stream);
  note_work("mlp_forward", args);
}

void kernels::mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "mlp.backward";
  check_defined(kOp, "d_out", args.d_out);
  const DType dtype = args.d_out.dtype();
  const int64_t rows = args.rows.capacity;
  const int64_t hidden =
      args.inputs.empty() || !args.inputs.front().weight.defined() ? 0 : args.inputs.front().weight.width();
  check_inputs(kOp, args.inputs, rows, hidden, dtype);
  const int64_t out = check_mlp_weights(kOp, args.weights, args.saved, rows, hidden, dtype);
  check_tensor(kOp, "d_out", args.d_out, dtype, {rows, out});
  const size_t inputs = args.inputs.size();
  if (args.d_inputs.size() != inputs || args.accumulate.size() != inputs ||
      args.d_first_weights.size() != inputs) {
    throw invalid_argument(kOp, fmt::format("d_inputs, accumulate and d_first_weights for {} inputs", inputs),
                           fmt::format("{}, {} and {}", args.d_inputs.size(), args.accumulate.size(),
                                       args.d_first_weights.size()));
  }
  for (size_t i = 0; i < inputs; ++i) {
    check_optional(kOp, "an input's gradient", args.d_inputs[i], dtype, args.inputs[i].x.shape());
    check_optional(kOp, "a first weight's gradient", args.d_first_weights[i], accumulator_of(dtype),
                   args.inputs[i].weight.shape());
  }
  check_mlp_gradients(kOp, args.weights, args.d_weights);
  kernels::tables(args.d_out.device()).mlp.backward(args, runtime, stream);
  note_work("mlp_backward", args);
}

Work layers_forward_work(int64_t rows, const MlpWeights& weights, const MlpSaved& saved) {
  Work work{.flops = 0.0,
            .bytes = bytes_of(weights.first_bias, weights.gain, weights.norm_bias, saved.pre_norm)};
  for (const Tensor& weight : weights.weights) {
    work.flops += product_flops(rows, weight);
    work.bytes += bytes_of(weight);
  }
  for (const Tensor& bias : weights.biases) work.bytes += bytes_of(bias);
  for (const Tensor& z : saved.pre_activations) work.bytes += bytes_of(z);
  return work;
}

Work layers_backward_work(int64_t rows, const MlpWeights& weights, const MlpSaved& saved,
                          const MlpWeightGradients& gradients) {
  Work work = layers_forward_work(rows, weights, saved);
  const double all = work.flops;
  // Of a last layer without a norm nothing is recomputed.
  if (saved_is_complete(weights, saved)) {
    work.flops = 0.0;
  } else if (weights.norm == Norm::none && !weights.weights.empty()) {
    work.flops -= product_flops(rows, weights.weights.back());
  }
  work.flops += all;  // gradients of the layers' inputs
  for (const Tensor& gradient : gradients.weights) {
    if (gradient.defined()) work.flops += product_flops(rows, gradient);
    work.bytes += bytes_added(gradient);
  }
  for (const Tensor& gradient : gradients.biases) work.bytes += bytes_added(gradient);
  work.bytes += bytes_added(gradients.first_bias) + bytes_added(gradients.gain);
  work.bytes += bytes_added(gradients.norm_bias);
  return work;
}

Work work_of(const MlpForward& args) {
  const int64_t rows = args.rows.capacity;
  Work work = layers_forward_work(rows, args.weights, args.saved);
  bool residual_is_input = !args.residual.defined();
  for (const MlpInput& input : args.inputs) {
    work.flops += product_flops(rows, input.weight);
    work.bytes += bytes_of(input.x, input.weight);
    residual_is_input = residual_is_input || args.residual.raw() == input.x.raw();
  }
  work.bytes += bytes_of(args.out) + (residual_is_input ? 0.0 : bytes_of(args.residual));
  const NodeTermsAhead* const terms = args.node_terms;
  if (terms != nullptr && terms->sender.defined()) {
    work.flops += product_flops(rows, terms->sender_weight) + product_flops(rows, terms->receiver_weight);
    work.bytes += bytes_of(terms->sender_weight, terms->receiver_weight, terms->sender, terms->receiver);
  }
  return work;
}

Work work_of(const MlpBackward& args) {
  const int64_t rows = args.rows.capacity;
  Work work = layers_backward_work(rows, args.weights, args.saved, args.d_weights);
  work.bytes += bytes_of(args.d_out);
  const bool complete = saved_is_complete(args.weights, args.saved);
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const MlpInput& input = args.inputs[i];
    const double product = product_flops(rows, input.weight);
    const Tensor& d_input = args.d_inputs[i];
    if (!complete) work.flops += product;
    if (d_input.defined()) work.flops += product;
    if (args.d_first_weights[i].defined()) work.flops += product;
    work.bytes += bytes_of(input.x, input.weight) + bytes_added(args.d_first_weights[i]);
    // In d_out's memory it has been read already.
    const bool in_place = d_input.defined() && d_input.raw() == args.d_out.raw();
    work.bytes += bytes_added(d_input, args.accumulate[i] && !in_place);
  }
  return work;
}

}  // namespace meshgrad
