// SPDX-License-Identifier: Apache-2.0
// The fused kernels with smooth activations, whose values and derivatives they approximate, against the
// reference.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/tables.h>

#include <array>
#include <cmath>

#include "edge_case.h"
#include "fused_case.h"

namespace meshgrad::test {
namespace {

constexpr std::array kSmooth = {Activation::silu, Activation::gelu, Activation::tanh};
constexpr std::array kStored = {DType::f16, DType::bf16};

/// All finite values of 16 bits as rows of 64; others are 0.
Matrix all_values(DType dtype) {
  Matrix values(1024, 64);
  for (size_t i = 0; i < values.v.size(); ++i) {
    half as_half;
    bfloat16 as_bfloat16;
    as_half.bits = as_bfloat16.bits = static_cast<uint16_t>(i);
    const auto value = dtype == DType::f16 ? static_cast<float>(as_half) : static_cast<float>(as_bfloat16);
    if (std::isfinite(value)) values.v[i] = static_cast<double>(value);
  }
  return values;
}

/// What the formulas of tile_activation.h may be off, and one rounding to storage. A derivative is a sum of
/// terms that may cancel: `absolute` is then the error of a term.
Bounded approximated(DType dtype, Matrix exact, double absolute) {
  Bounded result(std::move(exact));
  for (size_t i = 0; i < result.value.v.size(); ++i)
    result.error.v[i] = 1e-5 * std::abs(result.value.v[i]) + absolute;
  return stored(dtype, result);
}

TEST_CASE("fused smooth activations are right at all 16-bit values" * doctest::skip(cuda_devices().empty())) {
  Matrix identity(64, 64);
  for (int64_t i = 0; i < 64; ++i) identity.at(i, i) = 1.0;
  for (const DType dtype : kStored) {
    const Matrix x = all_values(dtype);
    for (const Activation activation : kSmooth) {
      CAPTURE(name_of(activation));
      CAPTURE(name_of(dtype));
      Gpu gpu;
      MlpForward forward{.rows = x.rows,
                         .inputs = {{gpu.tensor(x, dtype), gpu.tensor(identity, dtype)}},
                         .weights = {},
                         .residual = {},
                         .out = gpu.unwritten(x.rows, 64, dtype),
                         .saved = {}};
      forward.weights.activation = activation;
      forward.weights.weights = {gpu.tensor(identity, dtype)};
      forward.weights.biases = {Tensor()};
      REQUIRE(!kernels::saves_hidden(forward));  // the fused kernels take it
      kernels::mlp_forward(forward, gpu.runtime, gpu.stream());
      const Bounded y = approximated(dtype, reference::activation(activation, x), 3e-7);
      CHECK(outside(gpu.download(forward.out), y) == "");

      const Matrix ones(x.rows, 64, 1.0);
      MlpBackward backward{.rows = x.rows,
                           .inputs = forward.inputs,
                           .weights = forward.weights,
                           .saved = {},
                           .d_out = gpu.tensor(ones, dtype),
                           .d_inputs = {gpu.unwritten(x.rows, 64, dtype)},
                           .accumulate = {false},
                           .d_first_weights = {Tensor()},
                           .d_weights = {}};
      backward.d_weights.weights = backward.d_weights.biases = {Tensor()};
      kernels::mlp_backward(backward, gpu.runtime, gpu.stream());
      // Rounded when it is saved and when d_x is stored.
      const Bounded d_x =
          stored(dtype, approximated(dtype, reference::activation_backward(activation, x, ones), 3e-6));
      CHECK(outside(gpu.download(backward.d_inputs[0]), d_x) == "");
    }
  }
}

void check_mlp(const Backend& backend, const MlpShape& shape, DType dtype, int64_t rows, uint64_t seed) {
  const std::string text = fmt::format("{} {} {} rows", shape.text(), name_of(dtype), rows);
  CAPTURE(text);
  Runtime runtime = backend.runtime();
  RandomMatrices random(seed);
  const MlpCase mlp(runtime, random, shape, rows, dtype);
  MlpForward forward{.rows = rows,
                     .inputs = mlp.inputs,
                     .weights = mlp.weights,
                     .residual = {},
                     .out = unwritten(runtime, {rows, shape.out}, dtype),
                     .saved = {}};
  const int64_t launches = gpu::counters().launches;
  backend.kernels->mlp.forward(forward, runtime, runtime.stream());
  CHECK(gpu::counters().launches - launches == 1);
  CHECK(difference(forward.out, reference::mlp(mlp.ref, mlp.input_values).out, mlp.terms()) == "");

  const Matrix d_out = mlp.values(random, rows, shape.out);
  const StartedGradients gradients(runtime, random, mlp);
  MlpBackward backward;
  backward.rows = rows;
  backward.inputs = mlp.inputs;
  backward.weights = mlp.weights;
  backward.d_out = to_tensor(runtime, d_out, dtype);
  for (const MlpInput& input : mlp.inputs) {
    backward.d_inputs.push_back(unwritten(runtime, input.x.shape(), dtype));
    backward.accumulate.push_back(false);
  }
  backward.d_first_weights = gradients.first_weights;
  backward.d_weights = gradients.weights;
  const int64_t before = gpu::counters().launches;
  backend.kernels->mlp.backward(backward, runtime, runtime.stream());
  CHECK(gpu::counters().launches - before == 3);
  const auto ref = reference::mlp_backward(mlp.ref, mlp.input_values, {}, d_out);
  for (size_t i = 0; i < mlp.inputs.size(); ++i)
    CHECK(difference(backward.d_inputs[i], ref.d_inputs[i], 2 * mlp.terms(), magnitude(d_out)) == "");
  check_gradients(gradients, in_order(mlp, ref), 2 * mlp.terms() + rows, magnitude(d_out));
}

TEST_CASE("fused mlp with smooth activations agrees with the reference" *
          doctest::skip(cuda_devices().empty())) {
  uint64_t seed = 3000;
  for (const Backend& backend : backends()) {
    if (backend.device.kind != DeviceKind::cuda) continue;
    for (const DType dtype : kStored) {
      for (const Activation activation : kSmooth) {
        check_mlp(backend, {{64, 64}, 64, 3, 64, activation, Norm::layer}, dtype, 67, seed++);
        check_mlp(backend, {{11}, 64, 4, 64, activation, Norm::rms}, dtype, 33, seed++);
        check_mlp(backend, {{128}, 128, 3, 2, activation, Norm::none}, dtype, 35, seed++);
        check_mlp(backend, {{128}, 128, 2, 128, activation, Norm::layer}, dtype, 31, seed++);
      }
      check_mlp(backend, {{256}, 256, 3, 256, kSmooth[seed % 3], Norm::layer}, dtype, 33, seed);
      ++seed;
    }
    // Several rounds of a warp, which uses the memory of its derivatives again.
    check_mlp(backend, {{64}, 64, 3, 64, Activation::gelu, Norm::layer}, DType::f16, 3571, seed++);
  }
}

void check_edges(const Backend& backend, const EdgeShape& shape, DType dtype, int64_t nodes, int64_t edges,
                 uint64_t seed) {
  const std::string text = fmt::format("{} {} {} edges", shape.mlp.text(), name_of(dtype), edges);
  CAPTURE(text);
  Runtime runtime = backend.runtime();
  RandomMatrices random(seed);
  const EdgeCase edge(runtime, random, shape, random_edges(random, nodes, edges), dtype);
  EdgeUpdateForward done = edge.forward(runtime, false);
  done.saved = {};
  const int64_t launches = gpu::counters().launches;
  backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
  CHECK(gpu::counters().launches - launches == 2);
  const auto ref =
      reference::edge_update(edge.update, edge.connectivity, edge.terms, edge.mlp.input_values[0]);
  CHECK(difference(done.edges_out, ref.edges_out, edge.row_terms()) == "");
  CHECK(difference(done.aggregate, ref.aggregate, edge.sum_terms()) == "");

  const EdgeGradients gradients(runtime, random, edge);
  const EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
  const int64_t before = gpu::counters().launches;
  backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
  CHECK(gpu::counters().launches - before <= 4);
  check_backward(edge, args, gradients, edge.reference_gradients());
}

TEST_CASE("fused edge update with smooth activations is right" * doctest::skip(cuda_devices().empty())) {
  uint64_t seed = 3100;
  for (const Backend& backend : backends()) {
    if (backend.device.kind != DeviceKind::cuda) continue;
    for (const DType dtype : kStored) {
      for (const Activation activation : kSmooth) {
        check_edges(backend, {64, {{64}, 64, 3, 64, activation, Norm::layer}, true, false}, dtype, 61, 211,
                    seed++);
        check_edges(backend, {64, {{64}, 64, 4, 64, activation, Norm::rms}, true, true}, dtype, 31, 67,
                    seed++);
        check_edges(backend, {128, {{128}, 128, 3, 128, activation, Norm::layer}, true, false}, dtype, 17, 67,
                    seed++);
      }
      const EdgeShape wide{256, {{256}, 256, 3, 256, kSmooth[seed % 3], Norm::layer}, true, false};
      if (fuses_wide_edges()) check_edges(backend, wide, dtype, 9, 33, seed);
      ++seed;
    }
    check_edges(backend, {64, {{64}, 64, 2, 64, Activation::silu, Norm::none}, false, false}, DType::f16, 307,
                1571, seed++);
  }
}

}  // namespace
}  // namespace meshgrad::test
