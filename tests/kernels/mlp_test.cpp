// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "mlp_case.h"

namespace meshgrad::test {
namespace {

const std::vector<MlpShape>& mlp_shapes() {
  static const std::vector<MlpShape> list = {
      {{11}, 128, 3, 128, Activation::relu, Norm::layer},        // an encoder
      {{128, 128}, 128, 3, 128, Activation::relu, Norm::layer},  // a node update
      {{128}, 128, 3, 2, Activation::relu, Norm::none},          // a decoder
      {{3}, 16, 2, 16, Activation::silu, Norm::rms},
      {{33, 1, 2}, 33, 3, 33, Activation::gelu, Norm::layer},
      {{64, 64, 64}, 64, 2, 64, Activation::tanh, Norm::none},
      {{129}, 129, 3, 129, Activation::silu, Norm::layer},
      {{2}, 1, 2, 3, Activation::tanh, Norm::none},
      {{16}, 0, 1, 64, Activation::none, Norm::layer},
      {{1}, 3, 4, 11, Activation::gelu, Norm::rms},
      {{16}, 17, 3, 5, Activation::elu, Norm::layer},
      {{1, 2, 3, 4, 5, 6, 7, 8}, 16, 8, 16, Activation::tanh, Norm::layer}};
  return list;
}

/// Calls body with every shape, storage type and number of rows; seeds differ.
template <class Body>
void for_each_mlp(Body&& body) {
  uint64_t seed = 100;
  for (const Backend& backend : backends()) {
    for (const MlpShape& shape : mlp_shapes()) {
      for (const DType dtype : backend.storage_types) {
        for (const int64_t rows : backend.sizes_and(shape.hidden <= 16 && shape.out <= 16, 5003)) {
          const std::string text = shape.text();
          const uint64_t this_seed = seed++;
          CAPTURE(backend.name);
          CAPTURE(text);
          CAPTURE(name_of(dtype));
          CAPTURE(rows);
          CAPTURE(this_seed);
          RandomMatrices random(this_seed);
          Runtime runtime = backend.runtime();
          MlpCase mlp(runtime, random, shape, rows, dtype);
          body(backend, runtime, random, mlp);
        }
      }
    }
  }
}

MlpForward forward_args(Runtime& runtime, const MlpCase& mlp, bool keep_hidden = true) {
  MlpForward args;
  args.rows = mlp.rows;
  args.inputs = mlp.inputs;
  args.weights = mlp.weights;
  args.out = unwritten(runtime, {mlp.rows, mlp.shape.out}, mlp.dtype);
  args.saved = mlp.saved(runtime, keep_hidden);
  return args;
}

/// Writes every input's gradient.
MlpBackward backward_args(Runtime& runtime, const MlpCase& mlp, const MlpSaved& saved, const Tensor& d_out,
                          const StartedGradients& gradients) {
  MlpBackward args;
  args.rows = mlp.rows;
  args.inputs = mlp.inputs;
  args.weights = mlp.weights;
  args.saved = saved;
  args.d_out = d_out;
  for (const MlpInput& input : mlp.inputs) {
    args.d_inputs.push_back(unwritten(runtime, input.x.shape(), mlp.dtype));
    args.accumulate.push_back(false);
  }
  args.d_first_weights = gradients.first_weights;
  args.d_weights = gradients.weights;
  return args;
}

TEST_CASE("mlp forward agrees with the reference") {
  for_each_mlp([](const Backend& backend, Runtime& runtime, RandomMatrices& random, const MlpCase& mlp) {
    MlpForward args = forward_args(runtime, mlp);
    const Matrix residual = mlp.values(random, mlp.rows, mlp.shape.out);
    const bool with_residual = random.seed() % 2 == 0;
    if (with_residual) args.residual = to_tensor(runtime, residual, mlp.dtype);
    backend.kernels->mlp.forward(args, runtime, runtime.stream());

    const auto ref = reference::mlp(mlp.ref, mlp.input_values);
    CHECK(difference(args.out, with_residual ? sum(ref.out, residual) : ref.out, mlp.terms()) == "");
    check_saved(args.saved, mlp.ref, ref, mlp.terms());
  });
}

// Gradients are held against those that flowed in, when they are smaller: a slope near 0, as of a saturated
// tanh, is a difference of larger values and carries their errors.
TEST_CASE("mlp backward agrees with the reference") {
  for_each_mlp([](const Backend& backend, Runtime& runtime, RandomMatrices& random, const MlpCase& mlp) {
    const MlpForward forward = forward_args(runtime, mlp);
    backend.kernels->mlp.forward(forward, runtime, runtime.stream());
    const Matrix d_out = mlp.values(random, mlp.rows, mlp.shape.out);
    const StartedGradients gradients(runtime, random, mlp);
    MlpBackward args =
        backward_args(runtime, mlp, forward.saved, to_tensor(runtime, d_out, mlp.dtype), gradients);
    // The last input's gradient is added to; the first of several is not wanted.
    const size_t last = mlp.inputs.size() - 1;
    const Matrix start = mlp.values(random, mlp.rows, mlp.shape.inputs[last]);
    args.d_inputs[last] = to_tensor(runtime, start, mlp.dtype);
    args.accumulate[last] = true;
    if (last > 0) args.d_inputs[0] = Tensor();
    backend.kernels->mlp.backward(args, runtime, runtime.stream());

    const auto ref = reference::mlp_backward(mlp.ref, mlp.input_values, {}, d_out);
    const int64_t terms = 2 * mlp.terms();
    for (size_t i = 0; i < mlp.inputs.size(); ++i) {
      if (!args.d_inputs[i].defined()) continue;
      const Matrix expected = i == last ? sum(ref.d_inputs[i], start) : ref.d_inputs[i];
      CHECK(difference(args.d_inputs[i], expected, terms, magnitude(d_out)) == "");
    }
    check_gradients(gradients, in_order(mlp, ref), terms + mlp.rows, magnitude(d_out));
  });
}

TEST_CASE("mlp backward recomputes what was not kept, bit for bit") {
  for_each_mlp([](const Backend& backend, Runtime& runtime, RandomMatrices& random, const MlpCase& mlp) {
    const MlpForward kept = forward_args(runtime, mlp, true);
    const MlpForward dropped = forward_args(runtime, mlp, false);
    backend.kernels->mlp.forward(kept, runtime, runtime.stream());
    backend.kernels->mlp.forward(dropped, runtime, runtime.stream());
    if (!mlp.fused(backend) || mlp.shape.norm != Norm::none) CHECK(equal_bits(kept.out, dropped.out));

    MlpSaved undefined_hidden = dropped.saved;
    for (size_t i = 0; i < kept.saved.pre_activations.size(); ++i)
      undefined_hidden.pre_activations.push_back({});
    const Tensor d_out = to_tensor(runtime, mlp.values(random, mlp.rows, mlp.shape.out), mlp.dtype);
    std::vector<NamedTensors> results;
    std::vector<MlpSaved> records = {kept.saved, dropped.saved, undefined_hidden};
    if (!mlp.fused(backend)) records.emplace_back();
    for (const MlpSaved& saved : records) {
      RandomMatrices same_start(random.seed() + 1);
      const StartedGradients gradients(runtime, same_start, mlp);
      const MlpBackward args = backward_args(runtime, mlp, saved, d_out, gradients);
      backend.kernels->mlp.backward(args, runtime, runtime.stream());
      results.push_back(gradients.named());
      for (const Tensor& d_input : args.d_inputs) results.back().emplace_back("d_input", d_input);
    }
    // Without a norm nothing is saved in the later records: the fused kernels take them.
    const bool another_path = mlp.fused(backend) && mlp.shape.norm == Norm::none && !mlp.exact();
    const size_t first = another_path ? 1 : 0;
    for (size_t i = first + 1; i < results.size(); ++i) check_equal_bits(results[first], results[i]);
  });
}

TEST_CASE("mlp backward adds into d_out if the input is the residual") {
  for_each_mlp([](const Backend& backend, Runtime& runtime, RandomMatrices& random, const MlpCase& mlp) {
    if (mlp.shape.inputs[0] != mlp.shape.out) return;
    MlpForward forward = forward_args(runtime, mlp);
    forward.residual = mlp.inputs[0].x;
    backend.kernels->mlp.forward(forward, runtime, runtime.stream());
    const auto checked = reference::mlp(mlp.ref, mlp.input_values);
    CHECK(difference(forward.out, sum(checked.out, mlp.input_values[0]), mlp.terms()) == "");

    const Matrix d_out = mlp.values(random, mlp.rows, mlp.shape.out);
    const StartedGradients gradients(runtime, random, mlp);
    MlpBackward args =
        backward_args(runtime, mlp, forward.saved, to_tensor(runtime, d_out, mlp.dtype), gradients);
    args.d_inputs[0] = args.d_out;
    args.accumulate[0] = true;
    backend.kernels->mlp.backward(args, runtime, runtime.stream());
    const auto ref = reference::mlp_backward(mlp.ref, mlp.input_values, {}, d_out);
    CHECK(difference(args.d_out, sum(ref.d_inputs[0], d_out), 2 * mlp.terms(), magnitude(d_out)) == "");
    for (size_t i = 1; i < mlp.inputs.size(); ++i) {
      CHECK(difference(args.d_inputs[i], ref.d_inputs[i], 2 * mlp.terms(), magnitude(d_out)) == "");
    }
    check_gradients(gradients, in_order(mlp, ref), 2 * mlp.terms() + mlp.rows, magnitude(d_out));
  });
}

TEST_CASE("mlp computes only the gradients that are wanted") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(7);
    const DType dtype = backend.storage_types.back();
    MlpCase mlp(runtime, random, {{5, 7}, 33, 3, 17, Activation::silu, Norm::layer}, 77, dtype);
    mlp.weights.first_bias = mlp.weights.biases[0] = mlp.weights.biases[1] = mlp.weights.norm_bias = Tensor();
    for (Matrix* bias : {&mlp.ref.first_bias, &mlp.ref.biases[0], &mlp.ref.biases[1], &mlp.ref.norm_bias}) {
      std::fill(bias->v.begin(), bias->v.end(), 0.0);
    }
    const MlpForward forward = forward_args(runtime, mlp);
    backend.kernels->mlp.forward(forward, runtime, runtime.stream());
    CHECK(difference(forward.out, reference::mlp(mlp.ref, mlp.input_values).out, mlp.terms()) == "");

    const Matrix d_out = mlp.values(random, mlp.rows, mlp.shape.out);
    const auto ref = reference::mlp_backward(mlp.ref, mlp.input_values, {}, d_out);
    MlpBackward args;
    args.rows = mlp.rows;
    args.inputs = mlp.inputs;
    args.weights = mlp.weights;
    args.saved = forward.saved;
    args.d_out = to_tensor(runtime, d_out, mlp.dtype);
    args.d_inputs = {Tensor(), unwritten(runtime, mlp.inputs[1].x.shape(), mlp.dtype)};
    args.accumulate = {false, false};
    args.d_first_weights = {to_tensor(runtime, Matrix(5, 33), accumulator_of(dtype)), Tensor()};
    args.d_weights.weights = {Tensor(), to_tensor(runtime, Matrix(33, 17), accumulator_of(dtype))};
    args.d_weights.biases = {Tensor(), Tensor()};
    backend.kernels->mlp.backward(args, runtime, runtime.stream());
    CHECK(difference(args.d_inputs[1], ref.d_inputs[1], 2 * mlp.terms()) == "");
    CHECK(difference(args.d_first_weights[0], ref.d_first_weights[0], 300, 0.0, dtype) == "");
    CHECK(difference(args.d_weights.weights[1], ref.d_weights[1], 300, 0.0, dtype) == "");
  }
}

TEST_CASE("mlp keeps the rows after the count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(8);
      const int64_t capacity = 131, count = 97;
      const MlpShape shape{{33, 16}, 33, 3, 33, Activation::relu, Norm::layer};
      MlpCase mlp(runtime, random, shape, capacity, dtype);
      const Matrix d_out = mlp.values(random, capacity, 33);
      const auto padding = [&](const Tensor& tensor) { return tensor.row_range(count, capacity); };
      const auto poison = [&](const Tensor& tensor) {
        const Tensor nan = unwritten(runtime, padding(tensor).shape(), dtype);
        copy(nan, padding(tensor), runtime.stream());
        return nan;
      };
      for (const MlpInput& input : mlp.inputs) poison(input.x);
      MlpForward forward = forward_args(runtime, mlp);
      const Tensor real = to_count(runtime, count);
      forward.rows = Rows(capacity, real.data<int64_t>());
      const Tensor nan = poison(forward.out);
      backend.kernels->mlp.forward(forward, runtime, runtime.stream());
      const StartedGradients gradients(runtime, random, mlp);
      MlpBackward args =
          backward_args(runtime, mlp, forward.saved, to_tensor(runtime, d_out, dtype), gradients);
      args.rows = forward.rows;
      poison(args.d_out);
      backend.kernels->mlp.backward(args, runtime, runtime.stream());

      CHECK(equal_bits(padding(forward.out), nan));
      CHECK(equal_bits(padding(forward.saved.pre_norm), nan));
      CHECK(equal_bits(padding(forward.saved.pre_activations[1]), nan));
      CHECK(equal_bits(padding(args.d_inputs[0]), nan));
      std::vector<Matrix> first;
      for (const Matrix& input : mlp.input_values) {
        first.emplace_back(count, input.cols,
                           std::vector<double>(input.v.begin(), input.v.begin() + count * input.cols));
      }
      const Matrix d_first(count, 33, std::vector<double>(d_out.v.begin(), d_out.v.begin() + count * 33));
      CHECK(difference(forward.out.row_range(0, count), reference::mlp(mlp.ref, first).out, mlp.terms()) ==
            "");
      const auto ref = reference::mlp_backward(mlp.ref, first, {}, d_first);
      CHECK(difference(args.d_inputs[0].row_range(0, count), ref.d_inputs[0], 2 * mlp.terms()) == "");
      check_gradients(gradients, in_order(mlp, ref), 2 * mlp.terms() + count);
    }
  }
}

TEST_CASE("mlp has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const MlpShape& shape : {MlpShape{{128, 128}, 128, 3, 128, Activation::relu, Norm::layer},
                                    MlpShape{{33}, 17, 2, 5, Activation::gelu, Norm::rms}}) {
        const std::string text = shape.text();
        CAPTURE(text);
        CAPTURE(name_of(dtype));
        std::vector<NamedTensors> results;
        for (const int threads : backend.thread_counts()) {
          Runtime runtime = backend.runtime(threads);
          RandomMatrices random(9);
          MlpCase mlp(runtime, random, shape, backend.many(5003), dtype);
          // Values off the grid: exact sums would hide a change of order.
          for (const MlpInput& input : mlp.inputs) {
            copy(to_tensor(runtime, random.normal(mlp.rows, input.x.width()), dtype), input.x,
                 runtime.stream());
          }
          const MlpForward forward = forward_args(runtime, mlp, threads != 3);
          backend.kernels->mlp.forward(forward, runtime, runtime.stream());
          const StartedGradients gradients(runtime, random, mlp);
          const Tensor d_out = to_tensor(runtime, random.normal(mlp.rows, shape.out), dtype);
          const MlpBackward args = backward_args(runtime, mlp, forward.saved, d_out, gradients);
          backend.kernels->mlp.backward(args, runtime, runtime.stream());
          results.push_back(gradients.named());
          results.back().emplace_back("out", forward.out);
          results.back().emplace_back("pre_norm", forward.saved.pre_norm);
          for (const Tensor& d_input : args.d_inputs) results.back().emplace_back("d_input", d_input);
        }
        for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
      }
    }
  }
}

TEST_CASE("mlp says which argument does not fit") {
  Runtime runtime = make_runtime();
  RandomMatrices random(10);
  const MlpCase mlp(runtime, random, {{4, 6}, 8, 2, 4, Activation::relu, Norm::layer}, 9, DType::f32);
  const auto forward_error = [&](auto&& change) {
    MlpForward args = forward_args(runtime, mlp);
    change(args);
    return invalid_argument_text([&] { kernels::mlp_forward(args, runtime, runtime.stream()); });
  };
  CHECK(forward_error([](MlpForward&) {}) == "");
  std::string text = forward_error([&](MlpForward& a) {
    a.inputs[1].x = unwritten(runtime, {9, 5}, DType::f32);
  });
  CHECK_MESSAGE((contains(text, "mlp.forward") && contains(text, "[9, 6]") && contains(text, "[9, 5]")),
                text);
  text = forward_error([&](MlpForward& a) { a.out = unwritten(runtime, {8, 4}, DType::f32); });
  CHECK_MESSAGE((contains(text, "out") && contains(text, "[9, 4]") && contains(text, "[8, 4]")), text);
  text = forward_error([&](MlpForward& a) { a.weights.weights[0] = unwritten(runtime, {8, 4}, DType::f64); });
  CHECK_MESSAGE((contains(text, "f32") && contains(text, "f64")), text);
  text = forward_error([&](MlpForward& a) { a.weights.gain = Tensor(); });
  CHECK_MESSAGE((contains(text, "gain") && contains(text, "none")), text);
  text = forward_error([&](MlpForward& a) { a.residual = unwritten(runtime, {9, 8}, DType::f32); });
  CHECK_MESSAGE((contains(text, "residual") && contains(text, "[9, 8]")), text);
  text = forward_error([&](MlpForward& a) { a.inputs.clear(); });
  CHECK_MESSAGE(contains(text, "1 to 8 inputs"), text);
  text = forward_error([&](MlpForward& a) { a.weights.biases.clear(); });
  CHECK_MESSAGE(contains(text, "mlp.forward"), text);
  text = forward_error([&](MlpForward& a) { a.out = Tensor(); });
  CHECK_MESSAGE(contains(text, "out"), text);

  const StartedGradients gradients(runtime, random, mlp);
  const Tensor d_out = unwritten(runtime, {9, 4}, DType::f32);
  const auto backward_error = [&](auto&& change) {
    MlpBackward args = backward_args(runtime, mlp, MlpSaved{}, d_out, gradients);
    change(args);
    return invalid_argument_text([&] { kernels::mlp_backward(args, runtime, runtime.stream()); });
  };
  CHECK(backward_error([](MlpBackward&) {}) == "");
  text = backward_error([&](MlpBackward& a) { a.d_inputs = {a.d_inputs.front()}; });
  CHECK_MESSAGE((contains(text, "mlp.backward") && contains(text, "2 inputs")), text);
  text = backward_error([&](MlpBackward& a) { a.d_weights.gain = unwritten(runtime, {5}, DType::f32); });
  CHECK_MESSAGE((contains(text, "d_gain") && contains(text, "[4]") && contains(text, "[5]")), text);
  text = backward_error([&](MlpBackward& a) { a.saved.pre_norm = unwritten(runtime, {9, 5}, DType::f32); });
  CHECK_MESSAGE((contains(text, "pre_norm") && contains(text, "[9, 5]")), text);
}

}  // namespace
}  // namespace meshgrad::test
