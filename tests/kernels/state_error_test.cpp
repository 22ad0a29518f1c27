// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kSpare = 29;

/// The first rows.
Matrix head(const Matrix& matrix, int64_t rows) {
  return {
      rows, matrix.cols,
      std::vector<double>(matrix.v.begin(), matrix.v.begin() + static_cast<ptrdiff_t>(rows * matrix.cols))};
}
Tensor head(const Tensor& tensor, int64_t rows) { return tensor.row_range(0, rows); }

/// Random values as they are stored, and the tensor of them.
struct Stored {
  Matrix values;
  Tensor tensor;
  Stored(Runtime& runtime, RandomMatrices& random, int64_t rows, int64_t width, DType dtype)
      : values(stored_as(dtype, random.normal(rows, width))), tensor(to_tensor(runtime, values, dtype)) {}
};

/// Calls body(backend, runtime, dtype, random, real rows, rows with spare capacity) for every case.
template <class Body>
void for_sizes(uint64_t seed, Body&& body) {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t rows : backend.sizes_and(true, 20011)) {
        for (const int64_t spare : {int64_t{0}, kSpare}) {
          RandomMatrices random(seed++);
          CAPTURE(backend.name);
          CAPTURE(name_of(dtype));
          CAPTURE(rows);
          CAPTURE(spare);
          Runtime runtime = backend.runtime();
          const Tensor count = to_count(runtime, rows);
          const Rows counted(rows + spare, spare > 0 ? count.data<int64_t>() : nullptr);
          body(backend, runtime, dtype, random, rows, counted);
        }
      }
    }
  }
}

/// Checks that rows past the real ones were not written.
void check_spare(Runtime& runtime, const Tensor& tensor, int64_t rows) {
  const int64_t spare = tensor.rows() - rows;
  if (spare == 0) return;
  CHECK(equal_bits(tensor.row_range(rows, tensor.rows()),
                   unwritten(runtime, {spare, tensor.width()}, tensor.dtype())));
}

TEST_CASE("state errors agree with the reference") {
  for_sizes(2100, [](const Backend& backend, Runtime& runtime, DType dtype, RandomMatrices& random,
                     int64_t real, const Rows& rows) {
    for (const int64_t width : {1, 2, 3}) {
      const DType sums = accumulator_of(dtype);
      const Stored before(runtime, random, rows.capacity, width, sums);
      const Stored prediction(runtime, random, rows.capacity, width, dtype);
      const Stored target(runtime, random, rows.capacity, width, sums);
      std::vector<uint8_t> mask = random.mask(rows.capacity, 0.6);
      for (size_t i = 0; i < mask.size(); i += 3) mask[i] = static_cast<uint8_t>(mask[i] * 255);
      const Matrix zeros(rows.capacity, width);
      for (const bool first : {true, false}) {
        const AccumulateErrorForward args{.rows = rows,
                                          .before = first ? Tensor() : before.tensor,
                                          .prediction = prediction.tensor,
                                          .target = first ? target.tensor : Tensor(),
                                          .mask = mask_tensor(runtime, mask),
                                          .after = unwritten(runtime, {rows.capacity, width}, sums)};
        backend.kernels->state_error.accumulate_error_forward(args, runtime.stream());
        const Matrix ref = reference::accumulate_error(first ? zeros : before.values, prediction.values,
                                                       first ? target.values : zeros, mask);
        CHECK(difference(head(args.after, real), head(ref, real), 3) == "");
        check_spare(runtime, args.after, real);
      }
    }
  });
}

TEST_CASE("masked rows of a state error may hold anything, and are 0") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      const DType sums = accumulator_of(dtype);
      const AccumulateErrorForward args{.rows = 3,
                                        .before = unwritten(runtime, {3, 2}, sums),
                                        .prediction = unwritten(runtime, {3, 2}, dtype),
                                        .target = unwritten(runtime, {3, 2}, sums),
                                        .mask = mask_tensor(runtime, {0, 0, 0}),
                                        .after = unwritten(runtime, {3, 2}, sums)};
      backend.kernels->state_error.accumulate_error_forward(args, runtime.stream());
      CHECK(to_matrix(args.after).v == std::vector<double>(6, 0.0));
      const AccumulateErrorBackward back{.rows = 3,
                                         .d_after = args.before,
                                         .mask = args.mask,
                                         .d_before = unwritten(runtime, {3, 2}, sums),
                                         .d_prediction = unwritten(runtime, {3, 2}, dtype)};
      backend.kernels->state_error.accumulate_error_backward(back, runtime.stream());
      CHECK(to_matrix(back.d_before).v == std::vector<double>(6, 0.0));
      CHECK(to_matrix(back.d_prediction).v == std::vector<double>(6, 0.0));
    }
  }
}

TEST_CASE("gradients of a state error are masked") {
  for_sizes(2200, [](const Backend& backend, Runtime& runtime, DType dtype, RandomMatrices& random,
                     int64_t real, const Rows& rows) {
    constexpr int64_t kWidth = 2;
    const DType sums = accumulator_of(dtype);
    const Stored d_after(runtime, random, rows.capacity, kWidth, sums);
    const std::vector<uint8_t> mask = random.mask(rows.capacity, 0.6);
    const Matrix ref = head(reference::masked(d_after.values, mask), real);
    for (const bool add_before : {false, true}) {
      for (const bool add_prediction : {false, true}) {
        const Stored before(runtime, random, rows.capacity, kWidth, sums);
        const Stored prediction(runtime, random, rows.capacity, kWidth, dtype);
        const Shape shape{rows.capacity, kWidth};
        const AccumulateErrorBackward args{
            .rows = rows,
            .d_after = d_after.tensor,
            .mask = mask_tensor(runtime, mask),
            .d_before = add_before ? before.tensor : unwritten(runtime, shape, sums),
            .accumulate_d_before = add_before,
            .d_prediction = add_prediction ? prediction.tensor : unwritten(runtime, shape, dtype),
            .accumulate_d_prediction = add_prediction};
        backend.kernels->state_error.accumulate_error_backward(args, runtime.stream());
        const auto expected = [&](bool add, const Stored& start) {
          return add ? sum(head(start.values, real), ref) : ref;
        };
        CHECK(difference(head(args.d_before, real), expected(add_before, before), 2) == "");
        CHECK(difference(head(args.d_prediction, real), expected(add_prediction, prediction), 2) == "");
        if (!add_before) check_spare(runtime, args.d_before, real);
        if (!add_prediction) check_spare(runtime, args.d_prediction, real);
      }
    }
    // Only one of the two.
    AccumulateErrorBackward one{.rows = rows,
                                .d_after = d_after.tensor,
                                .mask = mask_tensor(runtime, mask),
                                .d_before = unwritten(runtime, {rows.capacity, kWidth}, sums),
                                .d_prediction = {}};
    backend.kernels->state_error.accumulate_error_backward(one, runtime.stream());
    CHECK(difference(head(one.d_before, real), ref, 1) == "");
    one.d_before = {};
    one.d_prediction = unwritten(runtime, {rows.capacity, kWidth}, dtype);
    backend.kernels->state_error.accumulate_error_backward(one, runtime.stream());
    CHECK(difference(head(one.d_prediction, real), ref, 1) == "");
  });
}

TEST_CASE("added columns and their gradient agree with the reference") {
  for_sizes(2300, [](const Backend& backend, Runtime& runtime, DType dtype, RandomMatrices& random,
                     int64_t real, const Rows& rows) {
    const DType sums = accumulator_of(dtype);
    const std::vector<std::vector<int32_t>> maps = {{0}, {-1, 1, 0, -1, 0}, {2, -1, -1, -1}};
    for (const std::vector<int32_t>& source : maps) {
      const auto columns = static_cast<int64_t>(source.size());
      const int64_t width = 1 + *std::max_element(source.begin(), source.end());
      const Stored given(runtime, random, rows.capacity, columns, dtype);
      const Stored shift(runtime, random, rows.capacity, width, sums);
      const Matrix ratio = stored_as(sums, random.normal(1, columns));
      const AddColumnsForward forward{.rows = rows,
                                      .given = given.tensor,
                                      .shift = shift.tensor,
                                      .source = to_index(runtime, source),
                                      .ratio = to_vector(runtime, ratio, sums),
                                      .shifted = unwritten(runtime, {rows.capacity, columns}, dtype)};
      backend.kernels->state_error.add_columns_forward(forward, runtime.stream());
      const Matrix ref = reference::add_columns(given.values, shift.values, source, ratio);
      CHECK(difference(head(forward.shifted, real), head(ref, real), 2) == "");
      check_spare(runtime, forward.shifted, real);

      const Matrix d_ref = head(reference::add_columns_backward(given.values, width, source, ratio), real);
      for (const bool accumulate : {false, true}) {
        const Stored start(runtime, random, rows.capacity, width, sums);
        const AddColumnsBackward back{
            .rows = rows,
            .d_shifted = given.tensor,
            .source = forward.source,
            .ratio = forward.ratio,
            .d_shift = accumulate ? start.tensor : unwritten(runtime, {rows.capacity, width}, sums),
            .accumulate = accumulate};
        backend.kernels->state_error.add_columns_backward(back, runtime.stream());
        const Matrix expected = accumulate ? sum(head(start.values, real), d_ref) : d_ref;
        CHECK(difference(head(back.d_shift, real), expected, 5, magnitude(given.values)) == "");
        if (!accumulate) check_spare(runtime, back.d_shift, real);
      }
    }
  });
}

TEST_CASE("state errors have the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    std::vector<NamedTensors> results;
    for (const int threads : backend.thread_counts()) {
      Runtime runtime = backend.runtime(threads);
      RandomMatrices random(77);
      const int64_t rows = backend.many(30011);
      const Stored before(runtime, random, rows, 2, DType::f32);
      const Stored prediction(runtime, random, rows, 2, DType::f16);
      const Stored given(runtime, random, rows, 3, DType::f16);
      const Tensor after = unwritten(runtime, {rows, 2}, DType::f32);
      const Tensor shifted = unwritten(runtime, {rows, 3}, DType::f16);
      backend.kernels->state_error.accumulate_error_forward(
          {.rows = rows,
           .before = before.tensor,
           .prediction = prediction.tensor,
           .target = before.tensor,
           .mask = mask_tensor(runtime, random.mask(rows, 0.5)),
           .after = after},
          runtime.stream());
      backend.kernels->state_error.add_columns_forward(
          {.rows = rows,
           .given = given.tensor,
           .shift = after,
           .source = to_index(runtime, {1, -1, 0}),
           .ratio = to_vector(runtime, Matrix(1, 3, 0.37), DType::f32),
           .shifted = shifted},
          runtime.stream());
      results.push_back({{"after", to_host(after)}, {"shifted", to_host(shifted)}});
    }
    for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
  }
}

TEST_CASE("state errors name the argument that does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype) { return unwritten(runtime, shape, dtype); };
  const Tensor mask = mask_tensor(runtime, {1, 1});
  const auto deviation_error = [&](auto&& change) {
    AccumulateErrorForward args{2,    tensor({2, 3}, DType::f32), tensor({2, 3}, DType::f16), {},
                                mask, tensor({2, 3}, DType::f32)};
    change(args);
    return invalid_argument_text([&] { kernels::accumulate_error_forward(args, runtime.stream()); });
  };
  CHECK(deviation_error([](AccumulateErrorForward&) {}) == "");
  std::string text = deviation_error([&](AccumulateErrorForward& a) {
    a.before = tensor({2, 3}, DType::f16);
  });
  CHECK_MESSAGE((contains(text, "accumulate_error.forward: before") && contains(text, "f32")), text);
  text = deviation_error([&](AccumulateErrorForward& a) { a.mask = mask_tensor(runtime, {1}); });
  CHECK_MESSAGE((contains(text, "mask") && contains(text, "[2]")), text);
  text = invalid_argument_text([&] {
    kernels::accumulate_error_backward({.rows = 2, .d_after = tensor({2, 3}, DType::f16), .mask = mask},
                                       runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "accumulate_error.backward: d_after") && contains(text, "f32")), text);
  const Tensor source = to_index(runtime, {0, -1});
  text = invalid_argument_text([&] {
    kernels::add_columns_forward({2, tensor({2, 2}, DType::f16), tensor({2, 1}, DType::f32), source,
                                  tensor({2}, DType::f16), tensor({2, 2}, DType::f16)},
                                 runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "add_columns.forward: ratio") && contains(text, "f32")), text);
  text = invalid_argument_text([&] {
    kernels::add_columns_backward({.rows = 2,
                                   .d_shifted = tensor({2, 2}, DType::f32),
                                   .source = to_index(runtime, {0}),
                                   .ratio = tensor({2}, DType::f32),
                                   .d_shift = tensor({2, 1}, DType::f32)},
                                  runtime.stream());
  });
  CHECK_MESSAGE((contains(text, "add_columns.backward: source") && contains(text, "[2]")), text);
  const auto shift = [&](const std::vector<int32_t>& columns) {
    return invalid_argument_text([&] {
      kernels::add_columns_forward(
          {2, tensor({2, 2}, DType::f32), tensor({2, 1}, DType::f32), to_index(runtime, columns),
           tensor({2}, DType::f32), tensor({2, 2}, DType::f32)},
          runtime.stream());
    });
  };
  CHECK(shift({0, -1}) == "");
  text = shift({0, 1});
  CHECK_MESSAGE((contains(text, "add_columns.forward: source") && contains(text, "columns below 1, got 1")),
                text);
}

}  // namespace
}  // namespace meshgrad::test
