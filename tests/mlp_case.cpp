// SPDX-License-Identifier: Apache-2.0
#include "mlp_case.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshgrad::test {

std::string MlpShape::text() const {
  std::string text = "mlp [";
  for (const int64_t width : inputs) text += fmt::format("{} ", width);
  return text +
         fmt::format("] -> {} x {} -> {} {} {}", hidden, layers, out, name_of(activation), name_of(norm));
}

MlpCase::MlpCase(Runtime& runtime, RandomMatrices& random, const MlpShape& mlp_shape, int64_t row_count,
                 DType type)
    : shape(mlp_shape), rows(row_count), dtype(type) {
  const auto weight = [&](int64_t in, int64_t out, int64_t fan_in) {
    return weight_values(random, in, out, fan_in);
  };
  const auto vector = [&](const Matrix& row) {
    return to_vector_if_given(runtime, row, accumulator_of(dtype));
  };
  const int64_t all_inputs = std::accumulate(shape.inputs.begin(), shape.inputs.end(), int64_t{0});
  for (const int64_t width : shape.inputs) {
    ref.first_weights.push_back(weight(width, first_width(), all_inputs));
    input_values.push_back(values(random, rows, width));
    inputs.push_back({to_tensor(runtime, input_values.back(), dtype),
                      to_tensor(runtime, ref.first_weights.back(), dtype)});
  }
  ref.first_bias = values(random, 1, first_width());
  for (int64_t layer = 1; layer < shape.layers; ++layer) {
    const int64_t out = layer == shape.layers - 1 ? shape.out : shape.hidden;
    ref.weights.push_back(weight(shape.hidden, out, shape.hidden));
    ref.biases.push_back(values(random, 1, out));
    weights.weights.push_back(to_tensor(runtime, ref.weights.back(), dtype));
    weights.biases.push_back(vector(ref.biases.back()));
  }
  ref.activation = weights.activation = shape.activation;
  ref.norm = weights.norm = shape.norm;
  if (shape.norm != Norm::none) ref.gain = stored_as(dtype, random.normal(1, shape.out));
  if (shape.norm == Norm::layer) ref.norm_bias = stored_as(dtype, random.normal(1, shape.out));
  weights.first_bias = vector(ref.first_bias);
  weights.gain = vector(ref.gain);
  weights.norm_bias = vector(ref.norm_bias);
  ref.epsilon = weights.epsilon = 1e-5;
}

int64_t MlpCase::terms() const {
  const int64_t first = std::accumulate(shape.inputs.begin(), shape.inputs.end(), int64_t{1});
  return first + (shape.layers - 1) * shape.hidden + (shape.norm == Norm::none ? 0 : 2 * shape.out);
}

bool MlpCase::fused(const Backend& backend) const {
  return backend.device.kind == DeviceKind::cuda && size_of(dtype) == 2 && shape.layers > 1 &&
         shape.activation != Activation::none &&
         (shape.hidden == 64 || shape.hidden == 128 || shape.hidden == 256);
}

Matrix MlpCase::weight_values(RandomMatrices& random, int64_t in, int64_t out, int64_t fan_in) const {
  return exact() ? random.grid(in, out, size_of(dtype) == 2 ? 0.5 : 0.25, 0.5)
                 : stored_as(dtype, random.normal(in, out, 1.0 / std::sqrt(static_cast<double>(fan_in))));
}

Matrix MlpCase::values(RandomMatrices& random, int64_t value_rows, int64_t cols) const {
  return exact() ? random.grid(value_rows, cols, size_of(dtype) == 2 ? 0.5 : 0.125, 1.0)
                 : stored_as(dtype, random.normal(value_rows, cols));
}

MlpSaved MlpCase::saved(Runtime& runtime, bool keep_hidden) const {
  MlpSaved saved;
  for (int64_t layer = 1; keep_hidden && layer < shape.layers; ++layer) {
    saved.pre_activations.push_back(unwritten(runtime, {rows, shape.hidden}, dtype));
  }
  if (shape.norm != Norm::none) saved.pre_norm = unwritten(runtime, {rows, shape.out}, dtype);
  return saved;
}

StartedGradients::StartedGradients(Runtime& runtime, RandomMatrices& random, const MlpCase& mlp)
    : made_of(mlp.dtype) {
  const DType dtype = accumulator_of(mlp.dtype);
  const auto like = [&](const Tensor& weight) {
    if (!weight.defined()) return Tensor();
    start.push_back(stored_as(dtype, random.normal(1, weight.elements())));
    return to_tensor(runtime, start.back(), dtype).reshaped(weight.shape());
  };
  for (const MlpInput& input : mlp.inputs) first_weights.push_back(like(input.weight));
  weights.first_bias = like(mlp.weights.first_bias);
  for (size_t layer = 0; layer < mlp.weights.weights.size(); ++layer) {
    weights.weights.push_back(like(mlp.weights.weights[layer]));
    weights.biases.push_back(like(mlp.weights.biases[layer]));
  }
  weights.gain = like(mlp.weights.gain);
  weights.norm_bias = like(mlp.weights.norm_bias);
}

NamedTensors StartedGradients::named() const {
  NamedTensors result;
  const auto add = [&](std::string name, const Tensor& tensor) {
    if (tensor.defined()) result.emplace_back(std::move(name), tensor);
  };
  for (size_t i = 0; i < first_weights.size(); ++i)
    add(fmt::format("d_first_weights[{}]", i), first_weights[i]);
  add("d_first_bias", weights.first_bias);
  for (size_t layer = 0; layer < weights.weights.size(); ++layer) {
    add(fmt::format("d_weights[{}]", layer), weights.weights[layer]);
    add(fmt::format("d_biases[{}]", layer), weights.biases[layer]);
  }
  add("d_gain", weights.gain);
  add("d_norm_bias", weights.norm_bias);
  return result;
}

void check_saved(const MlpSaved& saved, const reference::Mlp& mlp, const reference::MlpResult& ref,
                 int64_t terms) {
  REQUIRE(saved.pre_activations.size() == ref.pre_activations.size());
  for (size_t layer = 0; layer < ref.pre_activations.size(); ++layer) {
    const Tensor& kept = saved.pre_activations[layer];
    const Matrix& z = ref.pre_activations[layer];
    std::string wrong = difference(kept, z, terms);
    if (!wrong.empty() && mlp.activation == Activation::relu)
      wrong = difference(kept, reference::activation(Activation::relu, z), terms);
    CHECK(wrong == "");
  }
  if (mlp.norm != Norm::none) CHECK(difference(saved.pre_norm, ref.pre_norm, terms) == "");
}

std::vector<Matrix> in_order(const MlpCase& mlp, const reference::MlpGradients& gradients) {
  std::vector<Matrix> result = gradients.d_first_weights;
  result.push_back(gradients.d_first_bias);
  for (size_t layer = 0; layer < gradients.d_weights.size(); ++layer) {
    result.push_back(gradients.d_weights[layer]);
    result.push_back(gradients.d_biases[layer]);
  }
  if (mlp.ref.gain.given()) result.push_back(gradients.d_gain);
  if (mlp.ref.norm_bias.given()) result.push_back(gradients.d_norm_bias);
  return result;
}

void check_gradients(const StartedGradients& actual, const std::vector<Matrix>& ref, int64_t terms,
                     double at_least) {
  const NamedTensors tensors = actual.named();
  REQUIRE(tensors.size() == ref.size());
  for (size_t i = 0; i < ref.size(); ++i) {
    const auto& tensor = tensors[i].second;
    Matrix expected = ref[i];
    for (size_t k = 0; k < expected.v.size(); ++k) expected.v[k] += actual.start[i].v[k];
    const std::string wrong = difference(tensor, expected, terms, at_least, actual.made_of);
    CHECK_MESSAGE(wrong.empty(), tensors[i].first, ": ", wrong);
  }
}

void check_equal_bits(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK_MESSAGE(equal_bits(a[i].second, b[i].second), a[i].first);
}

}  // namespace meshgrad::test
