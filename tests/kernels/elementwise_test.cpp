// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mlp_case.h"

namespace meshgrad::test {
namespace {

constexpr Activation kActivations[] = {Activation::none,      Activation::relu, Activation::silu,
                                       Activation::gelu,      Activation::tanh, Activation::elu,
                                       Activation::leaky_relu};

TEST_CASE("activations and their slopes agree with the reference") {
  uint64_t seed = 900;
  for (const Backend& backend : backends()) {
    for (const Activation activation : kActivations) {
      for (const DType dtype : backend.storage_types) {
        for (const int64_t rows : backend.sizes_and(true, 40009)) {
          RandomMatrices random(seed++);
          CAPTURE(name_of(activation));
          CAPTURE(rows);
          CAPTURE(random.seed());
          Runtime runtime = backend.runtime();
          const Matrix x = stored_as(dtype, random.normal(rows, 3, 2.0));
          const Matrix d_y = stored_as(dtype, random.normal(rows, 3));
          const Matrix start = stored_as(dtype, random.normal(rows, 3));
          ActivationForward forward{activation, to_tensor(runtime, x, dtype),
                                    unwritten(runtime, {rows, 3}, dtype)};
          backend.kernels->elementwise.activation_forward(forward, runtime.stream());
          CHECK(difference(forward.y, reference::activation(activation, x), 1) == "");

          const Matrix ref = reference::activation_backward(activation, x, d_y);
          ActivationBackward backward{activation, forward.x, to_tensor(runtime, d_y, dtype),
                                      unwritten(runtime, {rows, 3}, dtype), false};
          backend.kernels->elementwise.activation_backward(backward, runtime.stream());
          CHECK(difference(backward.d_x, ref, 1, magnitude(d_y)) == "");
          backward.d_x = to_tensor(runtime, start, dtype);
          backward.accumulate = true;
          backend.kernels->elementwise.activation_backward(backward, runtime.stream());
          CHECK(difference(backward.d_x, sum(start, ref), 2, magnitude(d_y)) == "");
        }
      }
    }
  }
}

TEST_CASE("activations far from zero are neither NaN nor off") {
  for (const Backend& backend : backends()) {
    for (const Activation activation : kActivations) {
      for (const DType dtype : backend.storage_types) {
        CAPTURE(name_of(activation));
        Runtime runtime = backend.runtime();
        const Matrix x(1, 18,
                       {0.0, -0.0, 1e-30, -1e-30, 1e-5, -1e-5, 5.0, -5.0, 9.5, -9.5, 20.0, -20.0, 88.0, -88.0,
                        500.0, -500.0, 3e4, -3e4});
        const Matrix stored = stored_as(dtype, x);
        const Matrix ones(1, 18, 1.0);
        const ActivationForward forward{activation, to_tensor(runtime, x, dtype),
                                        unwritten(runtime, {1, 18}, dtype)};
        backend.kernels->elementwise.activation_forward(forward, runtime.stream());
        const ActivationBackward backward{activation, forward.x, to_tensor(runtime, ones, dtype),
                                          unwritten(runtime, {1, 18}, dtype), false};
        backend.kernels->elementwise.activation_backward(backward, runtime.stream());
        const Matrix y = to_matrix(forward.y), slopes = to_matrix(backward.d_x);
        for (int64_t i = 0; i < x.cols; ++i) {
          const double at = stored.at(0, i);
          CAPTURE(at);
          // One element at a time: the largest would cover up for the others. Left of 0 silu and gelu are
          // products of x with a number between 0 and 1 that carries an error of its own.
          const double expected = reference::activate(activation, at);
          CHECK(std::abs(y.at(0, i) - expected) <=
                tolerance(dtype, 1, std::max(std::abs(expected), std::min(1.0, std::abs(at)))));
          CHECK(std::abs(slopes.at(0, i) - reference::activation_slope(activation, at)) <=
                tolerance(dtype, 1, 1.0));
        }
      }
    }
  }
}

TEST_CASE("activations let a NaN through") {
  for (const Backend& backend : backends()) {
    for (const Activation activation : kActivations) {
      for (const DType dtype : backend.storage_types) {
        CAPTURE(name_of(activation));
        Runtime runtime = backend.runtime();
        const Tensor nan = unwritten(runtime, {2, 9}, dtype);
        const Tensor y = to_tensor(runtime, Matrix(2, 9), dtype);
        backend.kernels->elementwise.activation_forward({activation, nan, y}, runtime.stream());
        for (const double value : to_matrix(y).v) CHECK(std::isnan(value));
      }
    }
  }
}

TEST_CASE("activations may write over what they read") {
  for (const Backend& backend : backends()) {
    for (const Activation activation : kActivations) {
      CAPTURE(name_of(activation));
      Runtime runtime = backend.runtime();
      RandomMatrices random(41);
      const Matrix x = stored_as(DType::f32, random.normal(61, 7));
      const Matrix d_y = stored_as(DType::f32, random.normal(61, 7));
      const Tensor in_place = to_tensor(runtime, x, DType::f32);
      backend.kernels->elementwise.activation_forward({activation, in_place, in_place}, runtime.stream());
      CHECK(difference(in_place, reference::activation(activation, x), 1) == "");
      const Tensor d = to_tensor(runtime, d_y, DType::f32);
      backend.kernels->elementwise.activation_backward(
          {activation, to_tensor(runtime, x, DType::f32), d, d, false}, runtime.stream());
      CHECK(difference(d, reference::activation_backward(activation, x, d_y), 1) == "");
    }
  }
}

struct NormCase {
  NormCase(Runtime& runtime, RandomMatrices& random, Norm kind, int64_t rows, int64_t width, DType dtype)
      : x(stored_as(dtype, random.normal(rows, width))),
        gain(stored_as(dtype, random.normal(1, width))),
        bias(kind == Norm::layer ? stored_as(dtype, random.normal(1, width)) : Matrix()),
        d_y(stored_as(dtype, random.normal(rows, width))),
        start(stored_as(dtype, random.normal(rows, width))),
        forward{kind,
                rows,
                to_tensor(runtime, x, dtype),
                to_vector(runtime, gain, accumulator_of(dtype)),
                to_vector_if_given(runtime, bias, accumulator_of(dtype)),
                1e-3,
                unwritten(runtime, {rows, width}, dtype)},
        backward{kind,
                 rows,
                 forward.x,
                 forward.gain,
                 to_tensor(runtime, d_y, dtype),
                 1e-3,
                 unwritten(runtime, {rows, width}, dtype),
                 false,
                 to_vector(runtime, Matrix(1, width, 0.5), accumulator_of(dtype)),
                 kind == Norm::layer ? to_vector(runtime, Matrix(1, width, 0.25), accumulator_of(dtype))
                                     : Tensor()} {}
  Matrix x, gain, bias, d_y, start;
  NormForward forward;
  NormBackward backward;
};

TEST_CASE("norms and their gradients agree with the reference") {
  uint64_t seed = 1000;
  for (const Backend& backend : backends()) {
    for (const Norm kind : {Norm::layer, Norm::rms}) {
      for (const DType dtype : backend.storage_types) {
        for (const int64_t width : {1, 2, 3, 11, 16, 33, 64, 128, 129}) {
          for (const int64_t rows : backend.sizes_and(width == 3 || width == 11, 20011)) {
            RandomMatrices random(seed++);
            CAPTURE(name_of(kind));
            CAPTURE(name_of(dtype));
            CAPTURE(rows);
            CAPTURE(width);
            CAPTURE(random.seed());
            Runtime runtime = backend.runtime();
            NormCase c(runtime, random, kind, rows, width, dtype);
            backend.kernels->elementwise.norm_forward(c.forward, runtime, runtime.stream());
            // A row of width 1 or 2 can be nearly constant: its scale, up to 1 / sqrt(epsilon) = 32,
            // multiplies the rounding of x.
            const double scale = width < 11 ? 32.0 : 1.0;
            CHECK(difference(c.forward.y, reference::norm(kind, c.x, c.gain, c.bias, 1e-3), width,
                             scale * magnitude(c.gain)) == "");

            const auto ref = reference::norm_backward(kind, c.x, c.gain, c.d_y, 1e-3);
            const double flowing = scale * magnitude(c.gain) * magnitude(c.d_y);
            backend.kernels->elementwise.norm_backward(c.backward, runtime, runtime.stream());
            CHECK(difference(c.backward.d_x, ref.d_x, width, flowing) == "");
            CHECK(difference(c.backward.d_gain, sum(ref.d_gain, Matrix(1, width, 0.5)), width + rows,
                             flowing) == "");
            if (kind == Norm::layer) {
              CHECK(difference(c.backward.d_bias, sum(ref.d_bias, Matrix(1, width, 0.25)), rows + 1) == "");
            }
            c.backward.d_x = to_tensor(runtime, c.start, dtype);
            c.backward.accumulate = true;
            backend.kernels->elementwise.norm_backward(c.backward, runtime, runtime.stream());
            CHECK(difference(c.backward.d_x, sum(ref.d_x, c.start), width + 1, flowing) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("layer norm of rows far from zero keeps its digits") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(42);
    Matrix x = random.normal(33, 64);
    for (double& value : x.v) value += 1000.0;  // E[x^2] - E[x]^2 would lose 20 of 24 bits
    x = stored_as(DType::f32, x);
    const Matrix ones(1, 64, 1.0), zeros(1, 64, 0.0);
    const NormForward args{Norm::layer,
                           33,
                           to_tensor(runtime, x, DType::f32),
                           to_vector(runtime, ones, DType::f32),
                           to_vector(runtime, zeros, DType::f32),
                           1e-5,
                           unwritten(runtime, {33, 64}, DType::f32)};
    backend.kernels->elementwise.norm_forward(args, runtime, runtime.stream());
    // The mean is rounded at the size of x: an error of 1000 epsilon in every normalised value.
    CHECK(difference(args.y, reference::norm(Norm::layer, x, ones, zeros, 1e-5), 1, 1000.0) == "");
  }
}

TEST_CASE("norms work in place and keep rows after the count") {
  for (const Backend& backend : backends()) {
    for (const Norm kind : {Norm::layer, Norm::rms}) {
      for (const DType dtype : backend.storage_types) {
        CAPTURE(name_of(kind));
        Runtime runtime = backend.runtime();
        RandomMatrices random(43);
        const int64_t count = 67;
        NormCase whole(runtime, random, kind, 97, 33, dtype);
        NormForward forward = whole.forward;
        forward.x = forward.y = to_tensor(runtime, whole.x, dtype);
        const Tensor real = to_count(runtime, count);
        forward.rows = Rows(97, real.data<int64_t>());
        backend.kernels->elementwise.norm_forward(whole.forward, runtime, runtime.stream());
        backend.kernels->elementwise.norm_forward(forward, runtime, runtime.stream());
        CHECK(equal_bits(forward.y.row_range(0, count), whole.forward.y.row_range(0, count)));
        CHECK(equal_bits(forward.y.row_range(count, 97), whole.forward.x.row_range(count, 97)));

        NormBackward backward = whole.backward;
        const auto zeros = [&] { return to_vector(runtime, Matrix(1, 33), accumulator_of(dtype)); };
        backward.d_gain = zeros();
        backward.d_bias = kind == Norm::layer ? zeros() : Tensor();
        backward.d_x = backward.d_y = to_tensor(runtime, whole.d_y, dtype);
        backward.rows = forward.rows;
        const Tensor d_y = whole.backward.d_y;
        backend.kernels->elementwise.norm_backward(whole.backward, runtime, runtime.stream());
        backend.kernels->elementwise.norm_backward(backward, runtime, runtime.stream());
        CHECK(equal_bits(backward.d_x.row_range(0, count), whole.backward.d_x.row_range(0, count)));
        CHECK(equal_bits(backward.d_x.row_range(count, 97), d_y.row_range(count, 97)));
      }
    }
  }
}

TEST_CASE("axpby agrees with the reference, also onto its own input") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t rows : backend.sizes_and(true, 40009)) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(44);
        const Matrix x = stored_as(dtype, random.normal(rows, 5));
        const Matrix y = stored_as(dtype, random.normal(rows, 5));
        Matrix expected = y;
        for (size_t i = 0; i < x.v.size(); ++i) expected.v[i] = 0.75 * x.v[i] - 1.5 * y.v[i];
        const Axpby args{0.75, to_tensor(runtime, x, dtype), -1.5, to_tensor(runtime, y, dtype)};
        backend.kernels->elementwise.axpby(args, runtime.stream());
        CHECK(difference(args.y, expected, 2) == "");
        const Tensor self = to_tensor(runtime, x, dtype);
        backend.kernels->elementwise.axpby({2.0, self, 1.0, self}, runtime.stream());
        Matrix tripled = x;
        for (double& value : tripled.v) value *= 3.0;
        CHECK(difference(self, tripled, 2) == "");
      }
    }
  }
}

TEST_CASE("norms of wide rows agree with the reference") {
  uint64_t seed = 1200;
  for (const Backend& backend : backends()) {
    for (const Norm kind : {Norm::layer, Norm::rms}) {
      for (const DType dtype : backend.storage_types) {
        // Around what registers hold of a row, in vectors and one by one.
        for (const int64_t width : {256, 264, 513, 1024, 1025, 1100}) {
          RandomMatrices random(seed++);
          CAPTURE(name_of(kind));
          CAPTURE(name_of(dtype));
          CAPTURE(width);
          Runtime runtime = backend.runtime();
          const NormCase c(runtime, random, kind, 37, width, dtype);
          backend.kernels->elementwise.norm_forward(c.forward, runtime, runtime.stream());
          CHECK(difference(c.forward.y, reference::norm(kind, c.x, c.gain, c.bias, 1e-3), width,
                           magnitude(c.gain)) == "");
          backend.kernels->elementwise.norm_backward(c.backward, runtime, runtime.stream());
          const auto ref = reference::norm_backward(kind, c.x, c.gain, c.d_y, 1e-3);
          const double flowing = magnitude(c.gain) * magnitude(c.d_y);
          CHECK(difference(c.backward.d_x, ref.d_x, width, flowing) == "");
          CHECK(difference(c.backward.d_gain, sum(ref.d_gain, Matrix(1, width, 0.5)), width + 37, flowing) ==
                "");
          if (kind == Norm::layer)
            CHECK(difference(c.backward.d_bias, sum(ref.d_bias, Matrix(1, width, 0.25)), 38) == "");
        }
      }
    }
  }
}

TEST_CASE("elementwise takes rows that start at any element") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {1, 2, 4, 12}) {  // where a row of 16 bits starts within 16 bytes differs
        Runtime runtime = backend.runtime();
        RandomMatrices random(46);
        NormCase whole(runtime, random, Norm::layer, 67, width, dtype);
        NormForward part = whole.forward;
        part.rows = 66;
        part.x = whole.forward.x.row_range(1, 67);
        part.y = unwritten(runtime, {67, width}, dtype).row_range(1, 67);
        backend.kernels->elementwise.norm_forward(whole.forward, runtime, runtime.stream());
        backend.kernels->elementwise.norm_forward(part, runtime, runtime.stream());
        CHECK(equal_bits(part.y, whole.forward.y.row_range(1, 67)));
        const Tensor y = unwritten(runtime, {67, width}, dtype);
        backend.kernels->elementwise.activation_forward({Activation::silu, part.x, y.row_range(1, 67)},
                                                        runtime.stream());
        const Matrix expected = reference::activation(Activation::silu, to_matrix(part.x));
        CHECK(difference(y.row_range(1, 67), expected, 1) == "");
        CHECK(equal_bits(y.row_range(0, 1), unwritten(runtime, {1, width}, dtype)));
      }
    }
  }
}

TEST_CASE("cast rounds to nearest even, into every storage type") {
  for (const Backend& backend : backends()) {
    for (const DType from : backend.storage_types) {
      for (const DType to : backend.storage_types) {
        for (const int64_t size : backend.sizes_and(true, 40009)) {
          CAPTURE(name_of(from));
          CAPTURE(name_of(to));
          CAPTURE(size);
          Runtime runtime = backend.runtime();
          RandomMatrices random(47);
          Matrix x = random.normal(1, size, 100.0);
          const std::vector<double> special = {1e6,     -1e30,        65519.9,    65520.0,    1e-6, -0.0,
                                               0x1p-25, 1.0009765625, 1.00390625, 1.01171875, 1e-40};
          for (size_t i = 0; i < std::min(special.size(), x.v.size()); ++i) x.v[i] = special[i];
          const Matrix stored = stored_as(from, x);
          const Tensor result = unwritten(runtime, {1, size}, to);
          backend.kernels->elementwise.cast({to_tensor(runtime, stored, from), result}, runtime.stream());
          CHECK(equal_bits(result, to_tensor(runtime, stored_as(to, stored), to)));
        }
      }
    }
  }
}

TEST_CASE("elementwise has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<NamedTensors> results;
      for (const int threads : backend.thread_counts()) {
        Runtime runtime = backend.runtime(threads);
        NamedTensors result;
        for (const Norm kind : {Norm::layer, Norm::rms}) {
          RandomMatrices random(45);
          const int64_t rows = backend.many(5003);
          const NormCase c(runtime, random, kind, rows, 33, dtype);
          backend.kernels->elementwise.norm_forward(c.forward, runtime, runtime.stream());
          backend.kernels->elementwise.norm_backward(c.backward, runtime, runtime.stream());
          result.insert(result.end(),
                        {{"y", c.forward.y}, {"d_x", c.backward.d_x}, {"d_gain", c.backward.d_gain}});
          if (kind == Norm::layer) result.emplace_back("d_bias", c.backward.d_bias);
          for (const Activation activation : kActivations) {
            const Tensor y = unwritten(runtime, {rows, 33}, dtype),
                         d_x = unwritten(runtime, {rows, 33}, dtype);
            backend.kernels->elementwise.activation_forward({activation, c.forward.x, y}, runtime.stream());
            backend.kernels->elementwise.activation_backward(
                {activation, c.forward.x, c.backward.d_y, d_x, false}, runtime.stream());
            result.insert(result.end(), {{"activation", y}, {"slope", d_x}});
          }
        }
        results.push_back(std::move(result));
      }
      for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
    }
  }
}

TEST_CASE("elementwise says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return unwritten(runtime, shape, dtype);
  };
  std::string text = invalid_argument_text([&] {
    kernels::activation_forward({Activation::relu, tensor({3, 4}), tensor({4, 3})}, runtime.stream());
  });
  CHECK_MESSAGE(
      (contains(text, "activation.forward: y") && contains(text, "[3, 4]") && contains(text, "[4, 3]")),
      text);
  text = invalid_argument_text([&] {
    kernels::activation_backward(
        {Activation::relu, tensor({3, 4}), tensor({3, 4}), tensor({3, 4}, DType::f64), false},
        runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "activation.backward: d_x") && contains(text, "f64")), text);
  text = invalid_argument_text([&] {
    kernels::norm_forward({Norm::layer, 3, tensor({3, 5}), tensor({4}), tensor({4}), 1e-5, tensor({3, 4})},
                          runtime, runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "norm.forward: x") && contains(text, "[3, 4]") && contains(text, "[3, 5]")),
                text);
  text = invalid_argument_text([&] {
    kernels::norm_backward({Norm::layer, 3, tensor({3, 4}), tensor({4}), tensor({3, 4}), 1e-5, tensor({3, 4}),
                            false, tensor({5}), tensor({4})},
                           runtime, runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "norm.backward: d_gain") && contains(text, "[5]")), text);
  text = invalid_argument_text([&] {
    kernels::norm_forward({Norm::none, 3, tensor({3, 4}), tensor({4}), tensor({4}), 1e-5, tensor({3, 4})},
                          runtime, runtime.stream());
  });
  CHECK_MESSAGE(contains(text, "layer or rms"), text);
  text = invalid_argument_text([&] { kernels::cast({tensor({3, 5}), tensor({3, 4})}, runtime.stream()); });
  CHECK_MESSAGE((contains(text, "cast") && contains(text, "[3, 5]") && contains(text, "[3, 4]")), text);
  text = invalid_argument_text([&] {
    kernels::axpby({1.0, tensor({3, 5}), 1.0, tensor({3, 4})}, runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "axpby: x") && contains(text, "[3, 5]")), text);
}

}  // namespace
}  // namespace meshgrad::test
