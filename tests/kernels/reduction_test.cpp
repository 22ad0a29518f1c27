// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

Tensor scalar(Runtime& runtime, double value) {
  return Tensor::from<double>(runtime, std::vector<double>{value}, Shape{1}, Tag::data, "scalar");
}
double value_of(Runtime& runtime, const Tensor& tensor) {
  return meshgrad::to_host(tensor, runtime.stream()).values<double>()[0];
}
Tensor flag_tensor(Runtime& runtime, int32_t value) {
  return Tensor::from<int32_t>(runtime, std::span<const int32_t>(&value, 1), {1}, Tag::data);
}
int32_t flag_of(Runtime& runtime, const Tensor& tensor) {
  return meshgrad::to_host(tensor, runtime.stream()).values<int32_t>()[0];
}

TEST_CASE("masked loss and its gradient agree with the reference") {
  uint64_t seed = 1200;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {1, 2, 3, 33}) {
        for (const int64_t rows : backend.sizes_and(width <= 2, 20011)) {
          for (const double share : {0.0, 0.6, 1.0}) {
            RandomMatrices random(seed++);
            CAPTURE(width);
            CAPTURE(rows);
            CAPTURE(share);
            CAPTURE(random.seed());
            Runtime runtime = backend.runtime();
            const Matrix prediction = stored_as(dtype, random.normal(rows, width));
            const Matrix target = stored_as(accumulator_of(dtype), random.normal(rows, width));
            std::vector<uint8_t> mask = random.mask(rows, share);
            for (size_t i = 0; i < mask.size(); i += 3) mask[i] = static_cast<uint8_t>(mask[i] * 255);
            MaskedLossForward forward{rows,
                                      to_tensor(runtime, prediction, dtype),
                                      to_tensor(runtime, target, accumulator_of(dtype)),
                                      mask_tensor(runtime, mask),
                                      unwritten(runtime, {1}, DType::f64),
                                      unwritten(runtime, {1}, DType::f64)};
            backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
            const auto ref = reference::masked_loss(prediction, target, mask);
            // Sums are in double whatever the storage.
            CHECK(std::abs(value_of(runtime, forward.sum) - ref.sum) <=
                  tolerance(DType::f64, rows * width, ref.sum));
            CHECK(value_of(runtime, forward.weight) == ref.weight);

            const MaskedLossBackward backward{
                rows,         forward.prediction,     forward.target,
                forward.mask, scalar(runtime, 0.037), unwritten(runtime, {rows, width}, dtype)};
            backend.kernels->reduction.masked_loss_backward(backward, runtime.stream());
            CHECK(difference(backward.d_prediction,
                             reference::masked_loss_backward(prediction, target, mask, 0.037), 1) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("a loss without a target takes a target of 0") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(49);
      const int64_t rows = backend.many(20011);
      const Matrix prediction = stored_as(dtype, random.normal(rows, 2));
      const Matrix zeros(rows, 2);
      const std::vector<uint8_t> mask = random.mask(rows, 0.6);
      MaskedLossForward forward{rows,
                                to_tensor(runtime, prediction, dtype),
                                {},
                                mask_tensor(runtime, mask),
                                scalar(runtime, 3.0),
                                scalar(runtime, 4.0),
                                true};
      backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
      const auto ref = reference::masked_loss(prediction, zeros, mask);
      CHECK(std::abs(value_of(runtime, forward.sum) - (3.0 + ref.sum)) <=
            tolerance(DType::f64, rows * 2, ref.sum));
      CHECK(value_of(runtime, forward.weight) == 4.0 + ref.weight);
      const MaskedLossBackward backward{
          rows,         forward.prediction,   {},
          forward.mask, scalar(runtime, 0.3), unwritten(runtime, {rows, 2}, dtype)};
      backend.kernels->reduction.masked_loss_backward(backward, runtime.stream());
      CHECK(difference(backward.d_prediction, reference::masked_loss_backward(prediction, zeros, mask, 0.3),
                       1) == "");
    }
  }
}

TEST_CASE("masked rows may hold anything") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(51);
      const Tensor prediction = to_tensor(runtime, random.normal(33, 2), dtype);
      const Tensor target = to_tensor(runtime, random.normal(33, 2), accumulator_of(dtype));
      std::vector<uint8_t> mask(33, 1);
      mask[7] = mask[32] = 0;
      for (const int64_t row : {7, 32}) {
        copy(unwritten(runtime, {1, 2}, accumulator_of(dtype)), target.row_range(row, row + 1),
             runtime.stream());
      }
      MaskedLossForward forward{33,
                                prediction,
                                target,
                                mask_tensor(runtime, mask),
                                unwritten(runtime, {1}, DType::f64),
                                unwritten(runtime, {1}, DType::f64)};
      backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
      CHECK(value_of(runtime, forward.sum) > 0.0);
      CHECK(value_of(runtime, forward.weight) == 31.0);
      const Tensor d = unwritten(runtime, {33, 2}, dtype);
      backend.kernels->reduction.masked_loss_backward(
          {33, prediction, target, forward.mask, scalar(runtime, 1.0), d}, runtime.stream());
      const Matrix values = to_matrix(d);
      CHECK(values.at(7, 0) == 0.0);
      CHECK(values.at(32, 1) == 0.0);
      CHECK(values.at(8, 0) == values.at(8, 0));
    }
  }
}

TEST_CASE("masked loss ignores rows after the count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(52);
      const int64_t capacity = 129, count = 100;
      const Matrix prediction = stored_as(dtype, random.normal(capacity, 3));
      const Matrix target = stored_as(accumulator_of(dtype), random.normal(capacity, 3));
      std::vector<uint8_t> mask = random.mask(capacity, 0.5);
      std::fill(mask.begin() + count, mask.end(), uint8_t{1});
      const Tensor real = to_count(runtime, count);
      MaskedLossForward forward{Rows(capacity, real.data<int64_t>()),
                                to_tensor(runtime, prediction, dtype),
                                to_tensor(runtime, target, accumulator_of(dtype)),
                                mask_tensor(runtime, mask),
                                unwritten(runtime, {1}, DType::f64),
                                unwritten(runtime, {1}, DType::f64)};
      backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
      std::vector<uint8_t> counted = mask;
      std::fill(counted.begin() + count, counted.end(), uint8_t{0});
      const auto ref = reference::masked_loss(prediction, target, counted);
      CHECK(std::abs(value_of(runtime, forward.sum) - ref.sum) <= tolerance(DType::f64, 3 * count, ref.sum));
      CHECK(value_of(runtime, forward.weight) == ref.weight);
      const Tensor d = unwritten(runtime, {capacity, 3}, dtype);
      backend.kernels->reduction.masked_loss_backward(
          {forward.rows, forward.prediction, forward.target, forward.mask, scalar(runtime, 1.0), d},
          runtime.stream());
      CHECK(equal_bits(d.row_range(count, capacity), unwritten(runtime, {capacity - count, 3}, dtype)));
      CHECK(to_matrix(d).at(count - 1, 0) == to_matrix(d).at(count - 1, 0));
    }
  }
}

TEST_CASE("sum of squares adds in double and flags non-finite values") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.gradient_types()) {
      for (const int64_t size : backend.sizes_and(true, 70001)) {
        CAPTURE(size);
        Runtime runtime = backend.runtime();
        RandomMatrices random(53);
        const Matrix x = stored_as(dtype, random.normal(1, size));
        Tensor flag = flag_tensor(runtime, 0);
        SumOfSquares args{to_vector(runtime, x, dtype), scalar(runtime, 3.0), flag};
        backend.kernels->reduction.sum_of_squares(args, runtime, runtime.stream());
        const double expected = reference::sum_of_squares(x.v) + 3.0;
        // The sum is in double whatever the storage.
        CHECK(std::abs(value_of(runtime, args.sum) - expected) <= tolerance(DType::f64, size, expected));
        CHECK(flag_of(runtime, flag) == 0);
        flag = flag_tensor(runtime, 1);
        args.non_finite = flag;
        backend.kernels->reduction.sum_of_squares(args, runtime, runtime.stream());
        CHECK_MESSAGE(flag_of(runtime, flag) == 1, "a flag that is set stays set");
        args.non_finite = Tensor();
        backend.kernels->reduction.sum_of_squares(args, runtime, runtime.stream());
        CHECK(std::abs(value_of(runtime, args.sum) - (3.0 * (expected - 3.0) + 3.0)) <=
              tolerance(DType::f64, size, 3.0 * expected));
      }
    }
  }
}

TEST_CASE("sum of squares of more than one CPU round") {
  constexpr int64_t kSize = (int64_t{9} << 20) + 5;
  Runtime runtime = make_runtime();
  const Tensor x = Tensor::empty(runtime, Shape{kSize}, DType::f32, Tag::workspace, "x");
  double expected = 0.0;
  for (int64_t i = 0; i < kSize; ++i) {
    const int64_t value = i % 5;
    x.data<float>()[i] = static_cast<float>(value);
    expected += static_cast<double>(value * value);
  }
  const Tensor sum = scalar(runtime, 0.0);
  kernels::sum_of_squares({x, sum, Tensor()}, runtime, runtime.stream());
  CHECK(value_of(runtime, sum) == expected);
}

TEST_CASE("sum of squares finds one bad element anywhere") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.gradient_types()) {
      Runtime runtime = backend.runtime();
      for (const int64_t at : {0, 1, 63, 64, 5001, 9999}) {
        for (const double bad :
             {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
              std::numeric_limits<double>::quiet_NaN()}) {
          CAPTURE(at);
          CAPTURE(bad);
          Matrix x(1, 10000, 1.0);
          x.at(0, at) = bad;
          const Tensor flag = flag_tensor(runtime, 0);
          backend.kernels->reduction.sum_of_squares(
              {to_vector(runtime, x, dtype), scalar(runtime, 0.0), flag}, runtime, runtime.stream());
          CHECK(flag_of(runtime, flag) == 1);
        }
      }
      const Tensor flag = flag_tensor(runtime, 0);
      const Tensor sum = scalar(runtime, 0.0);
      backend.kernels->reduction.sum_of_squares({to_vector(runtime, Matrix(1, 4, 1e30), dtype), sum, flag},
                                                runtime, runtime.stream());
      CHECK(flag_of(runtime, flag) == 0);
      CHECK(value_of(runtime, sum) == doctest::Approx(4e60).epsilon(1e-6));
    }
  }
}

TEST_CASE("reductions have the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<std::unique_ptr<Runtime>> runtimes;
      std::vector<NamedTensors> results;
      const int64_t rows = backend.many(50021);
      for (const int threads : backend.thread_counts()) {
        RuntimeOptions options;
        options.device = backend.device;
        options.threads = threads;
        Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
        RandomMatrices random(54);
        MaskedLossForward forward{rows,
                                  to_tensor(runtime, random.normal(rows, 3), dtype),
                                  to_tensor(runtime, random.normal(rows, 3), accumulator_of(dtype)),
                                  mask_tensor(runtime, random.mask(rows, 0.7)),
                                  unwritten(runtime, {1}, DType::f64),
                                  unwritten(runtime, {1}, DType::f64)};
        backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
        const Tensor d = unwritten(runtime, {rows, 3}, dtype);
        backend.kernels->reduction.masked_loss_backward(
            {rows, forward.prediction, forward.target, forward.mask, forward.sum, d}, runtime.stream());
        const Tensor squares = scalar(runtime, 0.1);
        backend.kernels->reduction.sum_of_squares({forward.target, squares, Tensor()}, runtime,
                                                  runtime.stream());
        results.push_back({{"sum", forward.sum},
                           {"weight", forward.weight},
                           {"d_prediction", d},
                           {"squares", meshgrad::to_host(squares, runtime.stream())}});
      }
      for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
    }
  }
}

TEST_CASE("reductions say which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return unwritten(runtime, shape, dtype);
  };
  const Tensor mask = mask_tensor(runtime, {1, 0, 1});
  const auto loss_error = [&](auto&& change) {
    MaskedLossForward args{3,    tensor({3, 2}),          tensor({3, 2}),
                           mask, tensor({1}, DType::f64), tensor({1}, DType::f64)};
    change(args);
    return invalid_argument_text([&] { kernels::masked_loss_forward(args, runtime, runtime.stream()); });
  };
  CHECK(loss_error([](MaskedLossForward&) {}) == "");
  std::string text = loss_error([&](MaskedLossForward& a) { a.target = tensor({3, 3}); });
  CHECK_MESSAGE(
      (contains(text, "masked_loss.forward: target") && contains(text, "[3, 2]") && contains(text, "[3, 3]")),
      text);
  text = loss_error([&](MaskedLossForward& a) { a.mask = tensor({3}); });
  CHECK_MESSAGE((contains(text, "mask") && contains(text, "u8")), text);
  text = loss_error([&](MaskedLossForward& a) { a.sum = tensor({1}); });
  CHECK_MESSAGE((contains(text, "sum") && contains(text, "f64")), text);
  text = invalid_argument_text([&] {
    kernels::masked_loss_backward(
        {3, tensor({3, 2}), tensor({3, 2}), mask, scalar(runtime, 1.0), tensor({2, 3})}, runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "masked_loss.backward: d_prediction") && contains(text, "[2, 3]")), text);
  text = invalid_argument_text([&] {
    kernels::sum_of_squares({tensor({3, 2}), tensor({2}, DType::f64), Tensor()}, runtime, runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "sum_of_squares") && contains(text, "f64[1]") && contains(text, "f64[2]")),
                text);
}

}  // namespace
}  // namespace meshgrad::test
