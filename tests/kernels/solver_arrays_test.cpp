// SPDX-License-Identifier: Apache-2.0
// What is made of a solver's arrays on every backend, bit by bit against plain loops in f64.
#include <doctest/doctest.h>
#include <meshgrad/kernels/solver_arrays.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "mlp_case.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kSpareRows = 5;

/// `x` rounded to f32 unless `dtype` is f64.
double narrowed(double x, DType dtype) {
  return dtype == DType::f64 ? x : static_cast<double>(static_cast<float>(x));
}

/// A tensor of values that f32 holds, or more digits where it is f64.
struct Given {
  Matrix values;
  Tensor tensor;
  Given(Runtime& runtime, RandomMatrices& random, int64_t rows, int64_t width, DType dtype)
      : values(stored_as(dtype, random.normal(rows, width, 3.0))),
        tensor(to_tensor(runtime, values, dtype)) {}
  double at(int64_t row, int64_t column) const {
    return values.v[static_cast<size_t>(row * values.cols + column)];
  }
};

/// What a backend's kernels write: 16 bits and f32, and the f64 of a solver.
std::vector<DType> written_types(const Backend& backend) {
  std::vector<DType> types = backend.storage_types;
  if (std::find(types.begin(), types.end(), DType::f64) == types.end()) types.push_back(DType::f64);
  return types;
}

/// [columns, 2]: one that changes nothing first.
Matrix scales(RandomMatrices& random, int64_t columns) {
  Matrix scale = random.normal(columns, 2);
  scale.v[0] = 0.0, scale.v[1] = 1.0;
  return scale;
}

/// Calls body(backend, runtime, dtype, random, real rows, rows with spare capacity) for every case.
template <class Body>
void for_row_counts(const std::function<std::vector<DType>(const Backend&)>& types, Body&& body) {
  uint64_t seed = 4100;
  for (const Backend& backend : backends()) {
    for (const DType dtype : types(backend)) {
      for (const int64_t rows : backend.sizes_and(true, 4801)) {
        RandomMatrices random(seed++);
        CAPTURE(backend.name);
        CAPTURE(name_of(dtype));
        CAPTURE(rows);
        Runtime runtime = backend.runtime();
        const Tensor count = to_count(runtime, rows);
        body(backend, runtime, dtype, random, rows, Rows(rows + kSpareRows, count.data<int64_t>()));
      }
    }
  }
}

/// As stored in `dtype`; rows that are not written hold NaN.
Tensor expected_tensor(const Matrix& values, DType dtype) {
  Runtime runtime = make_runtime();
  return to_host(to_tensor(runtime, values, dtype));
}

TEST_CASE("mapped columns have the bits of a loop in f64") {
  for_row_counts(written_types, [](const Backend& backend, Runtime& runtime, DType dtype,
                                   RandomMatrices& random, int64_t real, const Rows& rows) {
    for (const DType from_type : {DType::f32, DType::f64}) {
      for (const int kind : {0, 1, 2, 3}) {  // without anything, from one row, a difference, all
        const int64_t columns = 1 + kind, from_rows = kind == 1 ? 1 : rows.capacity;
        const Given from(runtime, random, from_rows, columns + 2, from_type);
        const Given minus(runtime, random, rows.capacity, columns + 1, from_type);
        const Given start(runtime, random, rows.capacity, columns + 3, dtype);
        const Matrix scale = scales(random, columns);
        const std::vector<uint8_t> kept = random.mask(rows.capacity, 0.3);
        MapColumns args{.rows = rows,
                        .columns = columns,
                        .from = from.tensor,
                        .from_column = 2,
                        .to = start.tensor,
                        .to_column = 1};
        if (kind > 1) args.minus = minus.tensor, args.minus_column = 1;
        if (kind == 3) args.kept = mask_tensor(runtime, kept);
        if (kind % 2 == 1) args.scale = to_tensor(runtime, scale, DType::f64);
        Matrix expected = start.values;
        for (int64_t row = 0; row < real; ++row) {
          for (int64_t c = 0; c < columns; ++c) {
            if (kind == 3 && kept[static_cast<size_t>(row)] != 0) continue;
            double x = from.at(kind == 1 ? 0 : row, 2 + c);
            if (kind > 1) x = narrowed(x - minus.at(row, 1 + c), dtype);
            const auto column = static_cast<size_t>(2 * c);
            if (kind % 2 == 1) x = (x - scale.v[column]) * scale.v[column + 1];
            expected.v[static_cast<size_t>(row * (columns + 3) + 1 + c)] = narrowed(x, dtype);
          }
        }
        backend.kernels->solver_arrays.map_columns(args, runtime.stream());
        CHECK(equal_bits(to_host(args.to), expected_tensor(expected, dtype)));
      }
    }
  });
}

TEST_CASE("an advanced state has the bits of a loop in f64") {
  const auto stored = [](const Backend& backend) { return backend.storage_types; };
  for_row_counts(stored, [](const Backend& backend, Runtime& runtime, DType dtype, RandomMatrices& random,
                            int64_t real, const Rows& rows) {
    constexpr int64_t kWidth = 3;
    for (const bool second : {false, true}) {
      const Given prediction(runtime, random, rows.capacity, kWidth, dtype);
      const Given current(runtime, random, rows.capacity, kWidth, DType::f32);
      const Given before(runtime, random, rows.capacity, kWidth, DType::f32);
      const Matrix scale = scales(random, kWidth);
      const std::vector<uint8_t> mask = random.mask(rows.capacity, 0.7), values{0, 0, 9};
      const AdvanceState args{.rows = rows,
                              .prediction = prediction.tensor,
                              .scale = to_tensor(runtime, scale, DType::f64),
                              .values = mask_tensor(runtime, values),
                              .mask = mask_tensor(runtime, mask),
                              .current = current.tensor,
                              .before = second ? before.tensor : Tensor(),
                              .next = unwritten(runtime, {rows.capacity, kWidth}, DType::f32)};
      Matrix expected(rows.capacity, kWidth, std::nan(""));
      for (int64_t row = 0; row < real; ++row) {
        for (int64_t c = 0; c < kWidth; ++c) {
          const auto column = static_cast<size_t>(2 * c);
          const double product = prediction.at(row, c) * scale.v[column + 1];
          const double change = narrowed(product + scale.v[column], accumulator_of(dtype));
          double base = second ? 2.0 * current.at(row, c) - before.at(row, c) : current.at(row, c);
          if (values[static_cast<size_t>(c)] != 0) base = 0.0;
          expected.v[static_cast<size_t>(row * kWidth + c)] =
              mask[static_cast<size_t>(row)] != 0 ? base + change : current.at(row, c);
        }
      }
      backend.kernels->solver_arrays.advance_state(args, runtime.stream());
      const Tensor next = to_host(args.next), wanted = expected_tensor(expected, DType::f32);
      CHECK(equal_bits(next.row_range(0, real), wanted.row_range(0, real)));
      const Tensor spare = unwritten(runtime, {kSpareRows, kWidth}, DType::f32);
      CHECK(equal_bits(next.row_range(real, rows.capacity), to_host(spare)));
    }
  });
}

TEST_CASE("edge displacements have the bits of a loop in f64") {
  const auto stored = [](const Backend& backend) { return backend.storage_types; };
  for_row_counts(stored, [](const Backend& backend, Runtime& runtime, DType dtype, RandomMatrices& random,
                            int64_t real, const Rows& rows) {
    constexpr int64_t kNodes = 7;
    for (const int64_t dim : {2, 3}) {
      const Given positions(runtime, random, kNodes, dim, DType::f32);
      const Given start(runtime, random, rows.capacity, dim + 3, dtype);
      const Matrix scale = scales(random, dim + 1);
      std::vector<int32_t> senders, receivers;
      for (int32_t edge = 0; edge < rows.capacity; ++edge) {
        senders.push_back(edge % kNodes);
        receivers.push_back(edge / kNodes % kNodes);
      }
      const EdgeDisplacements args{.edges = rows,
                                   .senders = to_index(runtime, senders),
                                   .receivers = to_index(runtime, receivers),
                                   .positions = positions.tensor,
                                   .period = {0.0, 2.5, 0.75},
                                   .scale = to_tensor(runtime, scale, DType::f64),
                                   .features = start.tensor,
                                   .column = 2};
      Matrix expected = start.values;
      for (int64_t edge = 0; edge < real; ++edge) {
        double squares = 0.0;
        for (int64_t axis = 0; axis <= dim; ++axis) {
          double d = std::sqrt(squares);
          if (axis < dim) {
            const auto at = static_cast<size_t>(edge);
            d = positions.at(senders[at], axis) - positions.at(receivers[at], axis);
            const double period = args.period[static_cast<size_t>(axis)];
            if (period > 0.0) d -= period * std::nearbyint(d / period);
          }
          squares += d * d;
          const auto column = static_cast<size_t>(2 * axis);
          const double x = narrowed(d, accumulator_of(dtype));
          expected.v[static_cast<size_t>(edge * (dim + 3) + 2 + axis)] =
              narrowed((x - scale.v[column]) * scale.v[column + 1], dtype);
        }
      }
      backend.kernels->solver_arrays.edge_displacements(args, runtime.stream());
      CHECK(equal_bits(to_host(args.features), expected_tensor(expected, dtype)));
    }
  });
}

TEST_CASE("solver arrays have the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    std::vector<Tensor> results;
    for (const int threads : backend.thread_counts()) {
      Runtime runtime = backend.runtime(threads);
      RandomMatrices random(5);
      const int64_t rows = backend.many(20011);
      const Given from(runtime, random, rows, 2, DType::f64);
      const Tensor to = unwritten(runtime, {rows, 2}, DType::f16);
      backend.kernels->solver_arrays.map_columns({.rows = rows, .columns = 2, .from = from.tensor, .to = to},
                                                 runtime.stream());
      results.push_back(to_host(to));
    }
    for (const Tensor& result : results) CHECK(equal_bits(results.front(), result));
  }
}

TEST_CASE("solver arrays name the argument that does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype) { return unwritten(runtime, shape, dtype); };
  const auto map_error = [&](auto&& change) {
    MapColumns args{.rows = 4,
                    .columns = 2,
                    .from = tensor({4, 3}, DType::f64),
                    .from_column = 1,
                    .to = tensor({4, 2}, DType::f32)};
    change(args);
    return invalid_argument_text([&] { kernels::map_columns(args, runtime.stream()); });
  };
  CHECK(map_error([](MapColumns&) {}) == "");
  std::string text = map_error([](MapColumns& a) { a.from_column = 2; });
  CHECK_MESSAGE(contains(text, "map_columns: from] needed [4, 4 or more]"), text);
  text = map_error([&](MapColumns& a) { a.from = tensor({3, 3}, DType::f32); });
  CHECK_MESSAGE(contains(text, "got [3, 3]"), text);
  text = map_error([&](MapColumns& a) { a.from = tensor({4, 3}, DType::f16); });
  CHECK_MESSAGE(contains(text, "needed f32 or f64, got f16"), text);
  text = map_error([&](MapColumns& a) { a.minus = tensor({4, 2}, DType::f32); });
  CHECK_MESSAGE(contains(text, "map_columns: minus] needed f64"), text);
  text = map_error([&](MapColumns& a) { a.scale = tensor({2, 1}, DType::f64); });
  CHECK_MESSAGE(contains(text, "map_columns: scale] needed f64[2, 2]"), text);
  text = map_error([](MapColumns& a) { a.to_column = -1; });
  CHECK_MESSAGE(contains(text, "map_columns: to]"), text);
  const Tensor state = tensor({4, 2}, DType::f32), mask = mask_tensor(runtime, {1, 1, 1, 1});
  text = invalid_argument_text([&] {
    kernels::advance_state({.rows = 4,
                            .prediction = state,
                            .scale = tensor({2, 2}, DType::f64),
                            .values = mask,
                            .mask = mask,
                            .current = state,
                            .before = {},
                            .next = state},
                           runtime.stream());
  });
  CHECK_MESSAGE(contains(text, "advance_state: values] needed u8[2]"), text);
  text = invalid_argument_text([&] {
    kernels::edge_displacements({.edges = 1,
                                 .senders = to_index(runtime, {0}),
                                 .receivers = to_index(runtime, {0}),
                                 .positions = state,
                                 .scale = tensor({3, 2}, DType::f64),
                                 .features = tensor({1, 2}, DType::f32)},
                                runtime.stream());
  });
  CHECK_MESSAGE(contains(text, "edge_displacements: features] needed [1, 3 or more]"), text);
}

}  // namespace
}  // namespace meshgrad::test
