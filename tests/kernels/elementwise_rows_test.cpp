// SPDX-License-Identifier: Apache-2.0
// Elementwise operations of two operands: dropout and its mask, biases, maxima.
#include <doctest/doctest.h>
#include <meshgrad/kernels/dropout.h>

#include "support.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kWidths[] = {1, 2, 3, 4, 7, 8, 33, 129};

std::vector<int64_t> some_keys(RandomMatrices& random, int64_t rows) {
  std::vector<int64_t> keys;
  for (const int32_t low : random.indices(rows, 1 << 30)) keys.push_back((int64_t{low} << 31) - low);
  return keys;
}
Tensor on_device(Runtime& runtime, const std::vector<int64_t>& values) {
  return Tensor::from<int64_t>(runtime, values, {std::ssize(values)}, Tag::data, "test");
}

/// x / (1 - rate) where the mask of `keys`, on the host, keeps it.
Matrix dropped(const Matrix& x, DropoutKey key, const std::vector<int64_t>& keys) {
  DropoutMask mask = mask_of({.seed = key.seed, .op = key.op, .rate = key.rate});
  mask.row_keys = keys.data();
  Matrix result(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t c = 0; c < x.cols; ++c)
      if (keep(mask, i, c)) result.at(i, c) = x.at(i, c) / (1.0 - key.rate);
  return result;
}

TEST_CASE("dropout of rows agrees with the mask") {
  uint64_t seed = 9300;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        for (const int64_t rows : backend.sizes_and(width == 2, 20011)) {
          RandomMatrices random(seed++);
          CAPTURE(name_of(dtype));
          CAPTURE(width);
          CAPTURE(rows);
          Runtime runtime = backend.runtime();
          const std::vector<int64_t> keys = some_keys(random, rows);
          const Matrix x = stored_as(dtype, random.normal(rows, width));
          const Matrix start = stored_as(dtype, random.normal(rows, width));
          Dropout args{.rows = rows,
                       .key = {.seed = seed, .op = 3, .rate = 0.6, .row_keys = on_device(runtime, keys)},
                       .x = to_tensor(runtime, x, dtype),
                       .y = unwritten(runtime, {rows, width}, dtype)};
          const Matrix expected = dropped(x, args.key, keys);
          backend.kernels->elementwise.dropout(args, runtime.stream());
          CHECK(difference(args.y, expected, 1) == "");
          args.y = to_tensor(runtime, start, dtype);
          args.accumulate = true;
          backend.kernels->elementwise.dropout(args, runtime.stream());
          CHECK(difference(args.y, sum(start, expected), 2) == "");
        }
      }
    }
  }
}

TEST_CASE("dropout of rows keeps those after the count") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(9201);
    const Tensor real = to_count(runtime, 41);
    const Dropout args{.rows = Rows(67, real.data<int64_t>()),
                       .key = {.rate = 0.5},
                       .x = to_tensor(runtime, random.normal(67, 5), DType::f32),
                       .y = unwritten(runtime, {67, 5}, DType::f32)};
    backend.kernels->elementwise.dropout(args, runtime.stream());
    CHECK(equal_bits(args.y.row_range(41, 67), unwritten(runtime, {26, 5}, DType::f32)));
    for (const double value : to_matrix(args.y.row_range(0, 41)).v) CHECK(value == value);
  }
}

TEST_CASE("biases and their gradients agree with the reference") {
  uint64_t seed = 9500;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        for (const int64_t rows : backend.sizes_and(width == 2, 20011)) {
          RandomMatrices random(seed++);
          CAPTURE(name_of(dtype));
          CAPTURE(width);
          CAPTURE(rows);
          Runtime runtime = backend.runtime();
          const DType wide = accumulator_of(dtype);
          const Matrix x = stored_as(dtype, random.normal(rows, width));
          const Matrix bias = stored_as(wide, random.normal(1, width));
          const AddBiasForward forward{.x = to_tensor(runtime, x, dtype),
                                       .bias = to_vector(runtime, bias, wide),
                                       .y = unwritten(runtime, {rows, width}, dtype)};
          backend.kernels->elementwise.add_bias_forward(forward, runtime.stream());
          Matrix expected = x, total = bias;
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t c = 0; c < width; ++c) {
              expected.at(i, c) += bias.at(0, c);
              total.at(0, c) += x.at(i, c);
            }
          }
          CHECK(difference(forward.y, expected, 2) == "");
          const AddBiasBackward backward{
              .rows = rows, .d_y = forward.x, .d_bias = to_vector(runtime, bias, wide)};
          backend.kernels->elementwise.add_bias_backward(backward, runtime, runtime.stream());
          CHECK(difference(backward.d_bias, total, rows + 1) == "");
        }
      }
    }
  }
}

TEST_CASE("maximum and its gradients agree with the larger value") {
  uint64_t seed = 9700;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t rows : backend.sizes_and(true, 40009)) {
        RandomMatrices random(seed++);
        CAPTURE(name_of(dtype));
        CAPTURE(rows);
        Runtime runtime = backend.runtime();
        Matrix a = stored_as(dtype, random.normal(rows, 3)), b = stored_as(dtype, random.normal(rows, 3));
        for (int64_t i = 0; i < rows; i += 5) a.at(i, 0) = b.at(i, 0);  // a has the gradient
        const Matrix d_y = stored_as(dtype, random.normal(rows, 3)),
                     start = stored_as(dtype, random.normal(rows, 3));
        Matrix y = a, d_a = d_y, d_b(rows, 3);
        for (size_t i = 0; i < y.v.size(); ++i)
          if (b.v[i] > a.v[i]) y.v[i] = b.v[i], d_b.v[i] = d_y.v[i], d_a.v[i] = 0.0;
        const Tensor got = unwritten(runtime, {rows, 3}, dtype);
        const Tensor first = to_tensor(runtime, a, dtype), second = to_tensor(runtime, b, dtype);
        backend.kernels->elementwise.maximum_forward({first, second, got}, runtime.stream());
        CHECK(equal_bits(got, to_tensor(runtime, y, dtype)));
        const MaximumBackward both{.a = first,
                                   .b = second,
                                   .d_y = to_tensor(runtime, d_y, dtype),
                                   .d_a = unwritten(runtime, {rows, 3}, dtype),
                                   .d_b = to_tensor(runtime, start, dtype),
                                   .accumulate_d_b = true};
        backend.kernels->elementwise.maximum_backward(both, runtime.stream());
        CHECK(difference(both.d_a, d_a, 1) == "");
        CHECK(difference(both.d_b, sum(start, d_b), 2) == "");
        MaximumBackward one = both;
        one.d_b = {};
        one.d_a = to_tensor(runtime, start, dtype), one.accumulate_d_a = true;
        backend.kernels->elementwise.maximum_backward(one, runtime.stream());
        CHECK(difference(one.d_a, sum(start, d_a), 2) == "");
      }
      Runtime runtime = backend.runtime();
      const Tensor nan = unwritten(runtime, {2, 9}, dtype), number = to_tensor(runtime, Matrix(2, 9), dtype);
      for (const bool swapped : {false, true}) {
        const Tensor y = to_tensor(runtime, Matrix(2, 9), dtype);
        backend.kernels->elementwise.maximum_forward({swapped ? number : nan, swapped ? nan : number, y},
                                                     runtime.stream());
        for (const double value : to_matrix(y).v) CHECK(value != value);
      }
    }
  }
}

TEST_CASE("dropout and biases say which argument does not fit") {
  Runtime runtime = make_runtime();
  const Tensor x = unwritten(runtime, {3, 2}, DType::f32);
  const auto drop = [&](DropoutKey key, const Tensor& y) {
    return invalid_argument_text(
        [&] { kernels::dropout({.rows = 3, .key = key, .x = x, .y = y}, runtime.stream()); });
  };
  CHECK(drop({.rate = 0.5}, unwritten(runtime, {3, 2}, DType::f32)) == "");
  CHECK(contains(drop({.rate = 1.0}, x), "[dropout: dropout] needed a rate in [0, 1)"));
  CHECK(contains(drop({}, unwritten(runtime, {3, 3}, DType::f32)),
                 "[dropout: x] needed f32[3, 3], got f32[3, 2]"));
  CHECK(contains(drop({.row_keys = on_device(runtime, {1})}, x), "row_keys] needed i64[3], got i64[1]"));
  const std::string text = invalid_argument_text([&] {
    kernels::add_bias_forward({.x = x, .bias = unwritten(runtime, {3}, DType::f32), .y = x},
                              runtime.stream());
  });
  CHECK(contains(text, "[add_bias.forward: bias] needed f32[2], got f32[3]"));
  const std::string back = invalid_argument_text([&] {
    kernels::add_bias_backward({.rows = 4, .d_y = x, .d_bias = unwritten(runtime, {2}, DType::f32)}, runtime,
                               runtime.stream());
  });
  CHECK(contains(back, "[add_bias.backward: d_y] needed f32[4, 2], got f32[3, 2]"));
}

}  // namespace
}  // namespace meshgrad::test
