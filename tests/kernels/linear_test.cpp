// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "mlp_case.h"

namespace meshgrad::test {
namespace {

struct LinearShape {
  int64_t in, out;
};
// The last is wider than what a warp of a GPU holds in registers.
constexpr LinearShape kLinearShapes[] = {{1, 1},   {2, 3},  {3, 16},    {11, 128},  {16, 33},
                                         {33, 64}, {64, 2}, {128, 128}, {129, 129}, {1, 1030}};

template <class Body>
void for_each_linear(Body&& body) {
  uint64_t seed = 600;
  for (const Backend& backend : backends()) {
    for (const LinearShape& width : kLinearShapes) {
      for (const DType dtype : backend.storage_types) {
        for (const int64_t rows : backend.sizes_and(width.in * width.out <= 64, 5003)) {
          const uint64_t this_seed = seed++;
          CAPTURE(backend.name);
          CAPTURE(width.in);
          CAPTURE(width.out);
          CAPTURE(name_of(dtype));
          CAPTURE(rows);
          CAPTURE(this_seed);
          Runtime runtime = backend.runtime();
          RandomMatrices random(this_seed);
          body(backend, runtime, random, rows, width, dtype);
        }
      }
    }
  }
}

TEST_CASE("linear forward agrees with the reference") {
  for_each_linear([](const Backend& backend, Runtime& runtime, RandomMatrices& random, int64_t rows,
                     LinearShape width, DType dtype) {
    const Matrix x = stored_as(dtype, random.normal(rows, width.in));
    const Matrix weight = stored_as(dtype, random.normal(width.in, width.out));
    const Matrix bias = stored_as(dtype, random.normal(1, width.out));
    const Matrix start = stored_as(dtype, random.normal(rows, width.out));
    LinearForward args;
    args.rows = rows;
    args.x = to_tensor(runtime, x, dtype);
    args.weight = to_tensor(runtime, weight, dtype);
    args.y = unwritten(runtime, {rows, width.out}, dtype);
    backend.kernels->linear.forward(args, runtime, runtime.stream());
    CHECK(difference(args.y, reference::linear(x, weight), width.in) == "");

    args.bias = to_vector(runtime, bias, accumulator_of(dtype));
    backend.kernels->linear.forward(args, runtime, runtime.stream());
    CHECK(difference(args.y, reference::linear(x, weight, bias), width.in + 1) == "");

    args.y = to_tensor(runtime, start, dtype);
    args.accumulate = true;
    backend.kernels->linear.forward(args, runtime, runtime.stream());
    CHECK(difference(args.y, sum(start, reference::linear(x, weight, bias)), width.in + 2) == "");
  });
}

TEST_CASE("linear backward agrees with the reference") {
  for_each_linear([](const Backend& backend, Runtime& runtime, RandomMatrices& random, int64_t rows,
                     LinearShape width, DType dtype) {
    const Matrix x = stored_as(dtype, random.normal(rows, width.in));
    const Matrix weight = stored_as(dtype, random.normal(width.in, width.out));
    const Matrix d_y = stored_as(dtype, random.normal(rows, width.out));
    const Matrix start_x = stored_as(dtype, random.normal(rows, width.in));
    const Matrix start_weight = stored_as(dtype, random.normal(width.in, width.out));
    const Matrix start_bias = stored_as(dtype, random.normal(1, width.out));
    const auto ref = reference::linear_backward(x, weight, d_y);
    LinearBackward all;
    all.rows = rows;
    all.d_y = to_tensor(runtime, d_y, dtype);
    all.x = to_tensor(runtime, x, dtype);
    all.weight = to_tensor(runtime, weight, dtype);
    all.d_x = unwritten(runtime, {rows, width.in}, dtype);
    all.d_weight = to_tensor(runtime, start_weight, accumulator_of(dtype));
    all.d_bias = to_vector(runtime, start_bias, accumulator_of(dtype));
    backend.kernels->linear.backward(all, runtime, runtime.stream());
    CHECK(difference(all.d_x, ref.d_x, width.out) == "");
    CHECK(difference(all.d_weight, sum(start_weight, ref.d_weight), rows + 1) == "");
    CHECK(difference(all.d_bias, sum(start_bias, ref.d_bias), rows + 1) == "");

    LinearBackward only = all;
    only.d_weight = only.d_bias = Tensor();
    only.d_x = to_tensor(runtime, start_x, dtype);
    only.accumulate_d_x = true;
    backend.kernels->linear.backward(only, runtime, runtime.stream());
    CHECK(difference(only.d_x, sum(start_x, ref.d_x), width.out + 1) == "");

    only.d_x = Tensor();
    only.d_weight = to_tensor(runtime, start_weight, accumulator_of(dtype));
    backend.kernels->linear.backward(only, runtime, runtime.stream());
    CHECK(equal_bits(only.d_weight, all.d_weight));

    only.d_weight = Tensor();
    only.d_bias = to_vector(runtime, start_bias, accumulator_of(dtype));
    backend.kernels->linear.backward(only, runtime, runtime.stream());
    CHECK(equal_bits(only.d_bias, all.d_bias));
  });
}

TEST_CASE("linear keeps the rows after the count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(21);
      const int64_t capacity = 140, count = 101;
      const Matrix x = stored_as(dtype, random.normal(count, 33));
      const Matrix weight = stored_as(dtype, random.normal(33, 17));
      const Matrix d_y = stored_as(dtype, random.normal(count, 17));
      const auto roomy = [&](const Matrix& values) {
        const Tensor tensor = unwritten(runtime, {capacity, values.cols}, dtype);
        copy(to_tensor(runtime, values, dtype), tensor.row_range(0, count), runtime.stream());
        return tensor;
      };
      LinearForward forward;
      const Tensor real = to_count(runtime, count);
      forward.rows = Rows(capacity, real.data<int64_t>());
      forward.x = roomy(x);
      forward.weight = to_tensor(runtime, weight, dtype);
      forward.y = unwritten(runtime, {capacity, 17}, dtype);
      backend.kernels->linear.forward(forward, runtime, runtime.stream());
      CHECK(difference(forward.y.row_range(0, count), reference::linear(x, weight), 33) == "");
      CHECK(equal_bits(forward.y.row_range(count, capacity),
                       unwritten(runtime, {capacity - count, 17}, dtype)));

      LinearBackward backward;
      backward.rows = forward.rows;
      backward.d_y = roomy(d_y);
      backward.x = forward.x;
      backward.weight = forward.weight;
      backward.d_x = unwritten(runtime, {capacity, 33}, dtype);
      backward.d_weight = to_tensor(runtime, Matrix(33, 17), accumulator_of(dtype));
      backward.d_bias = to_vector(runtime, Matrix(1, 17), accumulator_of(dtype));
      backend.kernels->linear.backward(backward, runtime, runtime.stream());
      const auto ref = reference::linear_backward(x, weight, d_y);
      CHECK(difference(backward.d_x.row_range(0, count), ref.d_x, 17) == "");
      CHECK(equal_bits(backward.d_x.row_range(count, capacity),
                       unwritten(runtime, {capacity - count, 33}, dtype)));
      CHECK(difference(backward.d_weight, ref.d_weight, count) == "");
      CHECK(difference(backward.d_bias, ref.d_bias, count) == "");
    }
  }
}

TEST_CASE("linear has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const LinearShape& width : {LinearShape{384, 128}, LinearShape{33, 5}}) {
        std::vector<NamedTensors> results;
        for (const int threads : backend.thread_counts()) {
          Runtime runtime = backend.runtime(threads);
          RandomMatrices random(22);
          const auto tensor = [&](int64_t tensor_rows, int64_t cols) {
            return to_tensor(runtime, random.normal(tensor_rows, cols), dtype);
          };
          LinearForward forward;
          const int64_t rows = backend.many(5003);
          forward.rows = rows;
          forward.x = tensor(rows, width.in);
          forward.weight = tensor(width.in, width.out);
          forward.y = unwritten(runtime, {rows, width.out}, dtype);
          backend.kernels->linear.forward(forward, runtime, runtime.stream());
          LinearBackward backward;
          backward.rows = rows;
          backward.d_y = tensor(rows, width.out);
          backward.x = forward.x;
          backward.weight = forward.weight;
          backward.d_x = unwritten(runtime, {rows, width.in}, dtype);
          backward.d_weight = to_tensor(runtime, random.normal(width.in, width.out), accumulator_of(dtype));
          backward.d_bias = to_vector(runtime, random.normal(1, width.out), accumulator_of(dtype));
          backend.kernels->linear.backward(backward, runtime, runtime.stream());
          results.push_back({{"y", forward.y},
                             {"d_x", backward.d_x},
                             {"d_weight", backward.d_weight},
                             {"d_bias", backward.d_bias}});
        }
        for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
      }
    }
  }
}

TEST_CASE("linear says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return unwritten(runtime, shape, dtype);
  };
  const auto forward_error = [&](auto&& change) {
    LinearForward args;
    args.rows = 9;
    args.x = tensor({9, 4});
    args.weight = tensor({4, 6});
    args.y = tensor({9, 6});
    change(args);
    return invalid_argument_text([&] { kernels::linear_forward(args, runtime, runtime.stream()); });
  };
  CHECK(forward_error([](LinearForward&) {}) == "");
  std::string text = forward_error([&](LinearForward& a) { a.x = tensor({9, 5}); });
  CHECK_MESSAGE((contains(text, "linear.forward: x") && contains(text, "[9, 4]") && contains(text, "[9, 5]")),
                text);
  text = forward_error([&](LinearForward& a) { a.rows = 10; });
  CHECK_MESSAGE((contains(text, "[10, 4]") && contains(text, "[9, 4]")), text);
  text = forward_error([&](LinearForward& a) { a.bias = tensor({5}); });
  CHECK_MESSAGE((contains(text, "bias") && contains(text, "[6]") && contains(text, "[5]")), text);
  text = forward_error([&](LinearForward& a) { a.y = tensor({9, 6}, DType::f64); });
  CHECK_MESSAGE((contains(text, "f32[9, 6]") && contains(text, "f64[9, 6]")), text);
  text = forward_error([&](LinearForward& a) { a.weight = Tensor(); });
  CHECK_MESSAGE((contains(text, "weight") && contains(text, "none")), text);
  text = forward_error([&](LinearForward& a) { a.weight = tensor({24}); });
  CHECK_MESSAGE(contains(text, "linear.forward"), text);
  text = forward_error([&](LinearForward& a) {
    for (Tensor* t : {&a.x, &a.weight, &a.y}) *t = Tensor::empty(runtime, t->shape(), DType::i32, Tag::data);
  });
  CHECK_MESSAGE((contains(text, "storage in f32") && contains(text, "i32")), text);

  const auto backward_error = [&](auto&& change) {
    LinearBackward args;
    args.rows = 9;
    args.d_y = tensor({9, 6});
    args.x = tensor({9, 4});
    args.weight = tensor({4, 6});
    args.d_x = tensor({9, 4});
    args.d_weight = tensor({4, 6});
    change(args);
    return invalid_argument_text([&] { kernels::linear_backward(args, runtime, runtime.stream()); });
  };
  CHECK(backward_error([](LinearBackward&) {}) == "");
  text = backward_error([&](LinearBackward& a) { a.d_weight = tensor({6, 4}); });
  CHECK_MESSAGE((contains(text, "linear.backward: d_weight") && contains(text, "[6, 4]")), text);
  text = backward_error([&](LinearBackward& a) { a.x = Tensor(); });
  CHECK_MESSAGE(contains(text, "linear.backward: x"), text);
  CHECK(backward_error([&](LinearBackward& a) { a.x = a.d_weight = Tensor(); }) == "");
}

}  // namespace
}  // namespace meshgrad::test
