// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/mlp.h>

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
}

}  // namespace meshgrad
