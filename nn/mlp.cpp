// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/mlp.h>

#include <numeric>

namespace meshgrad {

Mlp::Mlp(ParameterSet& parameters, const std::string& name, const MlpOptions& options) : options_(options) {
  order_ = options.file_order;
  if (order_.empty()) {
    order_.resize(options.inputs.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
  }
  check_internal(order_.size() == options.inputs.size(), "an order of every input");
  first_row_.resize(order_.size());
  int64_t in = 0;
  for (const size_t input : order_) {
    first_row_[input] = in;
    in += options.inputs[input];
  }
  for (int64_t layer = 0; layer <= options.hidden_layers; ++layer) {
    const int64_t out = layer == options.hidden_layers ? options.out : options.hidden;
    const std::string linear = name + ".linear_" + std::to_string(layer);
    weights_.push_back(parameters.add(linear + ".weight", Shape{in, out}, Initial::uniform_fan_in, in));
    biases_.push_back(parameters.add(linear + ".bias", Shape{out}, Initial::uniform_fan_in, in));
    in = out;
  }
  if (options.norm != Norm::none)
    gain_ = parameters.add(name + ".norm.weight", Shape{options.out}, Initial::one, 1);
  if (options.norm == Norm::layer)
    norm_bias_ = parameters.add(name + ".norm.bias", Shape{options.out}, Initial::zero, 1);
}

MlpParameters Mlp::parameters(const ParameterSet& set) const {
  MlpParameters p;
  const Weight first = set.weight(weights_.front());
  for (size_t i = 0; i < options_.inputs.size(); ++i) {
    p.first.push_back(first.row_range(first_row_[i], first_row_[i] + options_.inputs[i]));
  }
  p.first_bias = set.weight(biases_.front());
  for (size_t layer = 1; layer < weights_.size(); ++layer) {
    p.weights.push_back(set.weight(weights_[layer]));
    p.biases.push_back(set.weight(biases_[layer]));
  }
  p.activation = options_.activation;
  p.norm = options_.norm;
  if (options_.norm != Norm::none) p.gain = set.weight(gain_);
  if (options_.norm == Norm::layer) p.norm_bias = set.weight(norm_bias_);
  return p;
}

Variable Mlp::forward(Tape& tape, const ParameterSet& set, const PerInput<Variable>& inputs,
                      const Variable& residual, ComputePath path, bool keep_hidden,
                      const Mlp* next_edges) const {
  if (path == ComputePath::fused) {
    const MlpParameters next = next_edges != nullptr ? next_edges->parameters(set) : MlpParameters{};
    return ops::mlp(tape, inputs, parameters(set), residual, keep_hidden,
                    next_edges != nullptr ? &next : nullptr);
  }
  PerInput<ConcatPart> parts;
  for (const size_t input : order_) parts.push_back({inputs[input], ConcatPart::Rows::own});
  const Variable x = parts.size() == 1 ? parts.front().x : ops::concat(tape, parts);
  const Variable y = forward_concatenated(tape, set, x);
  return residual ? ops::add(tape, residual, y) : y;
}

Variable Mlp::forward_concatenated(Tape& tape, const ParameterSet& set, const Variable& x) const {
  Variable z = ops::linear(tape, x, set.weight(weights_[0]), set.weight(biases_[0]));
  for (size_t layer = 1; layer < weights_.size(); ++layer) {
    z = ops::linear(tape, ops::activation(tape, z, options_.activation), set.weight(weights_[layer]),
                    set.weight(biases_[layer]));
  }
  if (options_.norm == Norm::none) return z;
  const Weight bias = options_.norm == Norm::layer ? set.weight(norm_bias_) : Weight{};
  return ops::norm(tape, z, options_.norm, set.weight(gain_), bias, 1e-5);
}

}  // namespace meshgrad
