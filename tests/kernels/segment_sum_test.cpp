// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "mlp_case.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kWidths[] = {1, 2, 3, 16, 33, 64, 128, 129};

/// Offsets of `segments` over `items`; some segments are empty, one is a hub.
std::vector<int32_t> random_offsets(RandomMatrices& random, int64_t segments, int64_t items) {
  if (segments == 0) return {0};
  std::vector<int32_t> cuts = random.indices(segments - 1, items / 2 + 1);
  std::sort(cuts.begin(), cuts.end());
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(static_cast<int32_t>(items));
  return cuts;
}

std::vector<int32_t> random_order(RandomMatrices& random, int64_t items) {
  std::vector<int32_t> order(static_cast<size_t>(items));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = 1; i < order.size(); ++i) {
    std::swap(order[i], order[static_cast<size_t>(random.indices(1, static_cast<int64_t>(i) + 1)[0])]);
  }
  return order;
}

/// The segment of each row of x.
std::vector<int32_t> segment_of_rows(const std::vector<int32_t>& offsets, const std::vector<int32_t>& order) {
  std::vector<int32_t> result(order.size());
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      result[static_cast<size_t>(order[static_cast<size_t>(i)])] = static_cast<int32_t>(s);
    }
  }
  return result;
}

Matrix columns(const Matrix& x, int64_t begin, int64_t width) {
  Matrix result(x.rows, width);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < width; ++j) result.at(i, j) = x.at(i, begin + j);
  }
  return result;
}

TEST_CASE("segment_sum agrees with the reference") {
  uint64_t seed = 700;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        for (const int64_t items : backend.sizes_and(width == 2, 20011)) {
          const int64_t segments = items == 0 ? 33 : (items * 2) / 3 + 1;
          RandomMatrices random(seed++);
          CAPTURE(random.seed());
          CAPTURE(width);
          CAPTURE(items);
          Runtime runtime = backend.runtime();
          const std::vector<int32_t> offsets = random_offsets(random, segments, items);
          const std::vector<int32_t> order = random_order(random, items);
          std::vector<int32_t> same(order.size());
          std::iota(same.begin(), same.end(), 0);
          const Matrix x = stored_as(dtype, random.normal(items, width + 5));
          const Matrix start = stored_as(dtype, random.normal(segments, width));
          SegmentSum args;
          args.segments = segments;
          args.offsets = to_index(runtime, offsets);
          args.x = to_tensor(runtime, x, dtype);
          args.x_column = 3;
          args.out = unwritten(runtime, {segments, width}, dtype);
          backend.kernels->segment_sum.segment_sum(args, runtime.stream());
          const Matrix part = columns(x, 3, width);
          CHECK(difference(args.out, reference::scatter_add(part, segment_of_rows(offsets, same), segments),
                           items) == "");

          args.order = to_index(runtime, order);
          const Matrix ordered = reference::scatter_add(part, segment_of_rows(offsets, order), segments);
          args.out = unwritten(runtime, {segments, width}, dtype);
          backend.kernels->segment_sum.segment_sum(args, runtime.stream());
          CHECK(difference(args.out, ordered, items) == "");

          args.out = to_tensor(runtime, start, dtype);
          args.accumulate = true;
          backend.kernels->segment_sum.segment_sum(args, runtime.stream());
          CHECK(difference(args.out, sum(start, ordered), items + 1) == "");
        }
      }
    }
  }
}

/// x[index[k]] * weights[k] for each k, as the kernel sums them.
Matrix weighted_rows(const Matrix& x, const std::vector<int32_t>& index, const Matrix& weights) {
  Matrix result = reference::gather(x, index);
  for (int64_t k = 0; k < result.rows; ++k)
    for (int64_t c = 0; c < x.cols; ++c) result.at(k, c) *= weights.at(0, k);
  return result;
}

TEST_CASE("segment_sum of weighted rows, and means") {
  uint64_t seed = 7700;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        for (const int64_t items : backend.sizes_and(width == 2, 20011)) {
          const int64_t segments = items == 0 ? 33 : (items * 2) / 3 + 1;
          RandomMatrices random(seed++);
          CAPTURE(random.seed());
          CAPTURE(width);
          CAPTURE(items);
          Runtime runtime = backend.runtime();
          const std::vector<int32_t> offsets = random_offsets(random, segments, items);
          const std::vector<int32_t> order = random_order(random, items);
          const std::vector<int32_t> index = random.indices(items, 37);
          const Matrix x = stored_as(dtype, random.normal(37, width + 5));
          const Matrix weights = stored_as(DType::f32, random.normal(1, items));
          const Matrix items_of_x = weighted_rows(columns(x, 3, width), index, weights);
          const Matrix expected =
              reference::scatter_add(items_of_x, segment_of_rows(offsets, order), segments);
          SegmentSum args;
          args.segments = segments;
          args.offsets = to_index(runtime, offsets);
          args.order = to_index(runtime, order);
          args.index = to_index(runtime, index);
          args.weights = to_vector(runtime, weights, DType::f32);
          args.x = to_tensor(runtime, x, dtype);
          args.x_column = 3;
          args.out = unwritten(runtime, {segments, width}, dtype);
          backend.kernels->segment_sum.segment_sum(args, runtime.stream());
          CHECK(difference(args.out, expected, items) == "");

          args.mean = true;
          args.out = unwritten(runtime, {segments, width}, dtype);
          backend.kernels->segment_sum.segment_sum(args, runtime.stream());
          Matrix means = expected;
          for (int64_t s = 0; s < segments; ++s) {
            const auto at = static_cast<size_t>(s);
            for (int64_t c = 0; c < width; ++c) means.at(s, c) /= std::max(offsets[at + 1] - offsets[at], 1);
          }
          CHECK(difference(args.out, means, items) == "");
        }
      }
    }
  }
}

TEST_CASE("segment_sum of 16 bits is not rounded in 32") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {3, 8, 33}) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(37);
        CAPTURE(name_of(dtype));
        CAPTURE(width);
        const std::vector<int32_t> offsets{0, 0, 700, 703, 711};
        const DType wide = accumulator_of(dtype);
        const Matrix x = stored_as(dtype, random.normal(711, width));
        const Matrix start = stored_as(wide, random.normal(4, width));
        SegmentSum args;
        args.segments = 4;
        args.offsets = to_index(runtime, offsets);
        args.order = to_index(runtime, random_order(random, 711));
        args.x = to_tensor(runtime, x, dtype);
        args.out = to_tensor(runtime, start, wide);
        args.accumulate = true;
        backend.kernels->segment_sum.segment_sum(args, runtime.stream());
        const std::vector<int32_t> order = [&] {
          const auto values = to_host(args.order);
          return std::vector<int32_t>(values.data<int32_t>(), values.data<int32_t>() + 711);
        }();
        const Matrix ref = sum(start, reference::scatter_add(x, segment_of_rows(offsets, order), 4));
        CHECK(difference(args.out, ref, 701) == "");
      }
    }
  }
}

TEST_CASE("segment_sum without offsets copies a range of columns") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(35);
        CAPTURE(width);
        const Matrix x = stored_as(dtype, random.normal(131, width + 16));
        const Matrix start = stored_as(dtype, random.normal(131, width));
        SegmentSum args;
        args.segments = 131;
        args.x = to_tensor(runtime, x, dtype);
        args.x_column = 8;
        args.out = unwritten(runtime, {131, width}, dtype);
        backend.kernels->segment_sum.segment_sum(args, runtime.stream());
        CHECK(equal_bits(args.out, to_tensor(runtime, columns(x, 8, width), dtype)));
        args.out = to_tensor(runtime, start, dtype);
        args.accumulate = true;
        backend.kernels->segment_sum.segment_sum(args, runtime.stream());
        CHECK(difference(args.out, sum(start, columns(x, 8, width)), 2) == "");
      }
    }
  }
}

TEST_CASE("segment_sum of segments longer than a block adds at once") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {3, 8, 33, 128, 272}) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(36);
        CAPTURE(name_of(dtype));
        CAPTURE(width);
        std::vector<int32_t> offsets = {0};
        for (const int32_t length : {0, 512, 1, 513, 0, 0, 2051, 7, 640, 576, 0})
          offsets.push_back(offsets.back() + length);
        const int64_t items = offsets.back(), segments = static_cast<int64_t>(offsets.size()) - 1;
        const std::vector<int32_t> order = random_order(random, items);
        const Matrix x = stored_as(dtype, random.normal(items, width));
        const Matrix start = stored_as(dtype, random.normal(segments, width));
        SegmentSum args;
        args.segments = segments;
        args.offsets = to_index(runtime, offsets);
        args.order = to_index(runtime, order);
        args.x = to_tensor(runtime, x, dtype);
        args.out = to_tensor(runtime, start, dtype);
        args.accumulate = true;
        backend.kernels->segment_sum.segment_sum(args, runtime.stream());
        const Matrix ref = sum(start, reference::scatter_add(x, segment_of_rows(offsets, order), segments));
        CHECK(difference(args.out, ref, 2051) == "");
      }
    }
  }
}

TEST_CASE("gather agrees with the reference") {
  uint64_t seed = 800;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : kWidths) {
        for (const int64_t rows : backend.sizes_and(width == 2, 20011)) {
          RandomMatrices random(seed++);
          CAPTURE(random.seed());
          CAPTURE(width);
          CAPTURE(rows);
          Runtime runtime = backend.runtime();
          const Matrix x = stored_as(dtype, random.normal(37, width));
          const std::vector<int32_t> index = random.indices(rows, 37);
          Matrix expected = stored_as(dtype, random.normal(rows, width + 4));
          Gather args;
          args.rows = rows;
          args.index = to_index(runtime, index);
          args.x = to_tensor(runtime, x, dtype);
          args.out = to_tensor(runtime, expected, dtype);
          args.out_column = 3;
          backend.kernels->segment_sum.gather(args, runtime.stream());
          const Matrix ref = reference::gather(x, index);
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < width; ++j) expected.at(i, j + 3) = ref.at(i, j);
          }
          CHECK(equal_bits(args.out, to_tensor(runtime, expected, dtype)));
        }
      }
    }
  }
}

TEST_CASE("gather without an index copies rows") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(31);
    const Tensor x = to_tensor(runtime, random.normal(211, 33), DType::f32);
    Gather args;
    args.rows = 211;
    args.x = x;
    args.out = unwritten(runtime, {211, 33}, DType::f32);
    backend.kernels->segment_sum.gather(args, runtime.stream());
    CHECK(equal_bits(args.out, x));
  }
}

TEST_CASE("gather and segment_sum are each other's transpose") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(32);
    const reference::Edges edges = random_edges(random, 61, 307);
    const Graph graph = to_graph(runtime, edges);
    const DType dtype = backend.storage_types.back();
    const Matrix nodes = stored_as(dtype, random.normal(61, 5));
    const Matrix on_edges = stored_as(dtype, random.normal(307, 5));
    Gather gather_args;
    gather_args.rows = 307;
    gather_args.index = graph.senders;
    gather_args.x = to_tensor(runtime, nodes, dtype);
    gather_args.out = unwritten(runtime, {307, 5}, dtype);
    backend.kernels->segment_sum.gather(gather_args, runtime.stream());
    SegmentSum sum_args;
    sum_args.segments = 61;
    sum_args.offsets = graph.sender_offsets;
    sum_args.order = graph.sender_order;
    sum_args.x = to_tensor(runtime, on_edges, dtype);
    sum_args.out = unwritten(runtime, {61, 5}, dtype);
    backend.kernels->segment_sum.segment_sum(sum_args, runtime.stream());
    const auto dot = [](const Matrix& a, const Matrix& b) {
      return std::inner_product(a.v.begin(), a.v.end(), b.v.begin(), 0.0);
    };
    const double over_edges = dot(on_edges, to_matrix(gather_args.out));
    const double over_nodes = dot(nodes, to_matrix(sum_args.out));
    CHECK(std::abs(over_edges - over_nodes) <= tolerance(dtype, 307 * 5, 20.0));
  }
}

TEST_CASE("segment_sum and gather keep the rows after the count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(33);
      const int64_t count = 41, capacity = 67;
      const std::vector<int32_t> offsets = random_offsets(random, capacity, 211);
      const Matrix x = stored_as(dtype, random.normal(211, 17));
      SegmentSum sum_args;
      const Tensor real = to_count(runtime, count);
      sum_args.segments = Rows(capacity, real.data<int64_t>());
      sum_args.offsets = to_index(runtime, offsets);
      sum_args.x = to_tensor(runtime, x, dtype);
      sum_args.out = unwritten(runtime, {capacity, 17}, dtype);
      backend.kernels->segment_sum.segment_sum(sum_args, runtime.stream());
      Gather gather_args;
      gather_args.rows = sum_args.segments;
      gather_args.index = to_index(runtime, random.indices(capacity, 211));
      gather_args.x = sum_args.x;
      gather_args.out = unwritten(runtime, {capacity, 17}, dtype);
      backend.kernels->segment_sum.gather(gather_args, runtime.stream());
      const Tensor nan = unwritten(runtime, {capacity - count, 17}, dtype);
      for (const Tensor& out : {sum_args.out, gather_args.out}) {
        CHECK(equal_bits(out.row_range(count, capacity), nan));
        for (const double value : to_matrix(out.row_range(0, count)).v) CHECK(value == value);
      }
    }
  }
}

TEST_CASE("segment_sum has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<NamedTensors> results;
      for (const int threads : backend.thread_counts()) {
        Runtime runtime = backend.runtime(threads);
        RandomMatrices random(34);
        const int64_t edges = backend.many(20011);
        const Graph graph = to_graph(runtime, random_edges(random, 907, edges));
        SegmentSum args;
        args.segments = 907;
        args.offsets = graph.sender_offsets;
        args.order = graph.sender_order;
        args.x = to_tensor(runtime, random.normal(edges, 33), dtype);
        args.out = unwritten(runtime, {907, 33}, dtype);
        backend.kernels->segment_sum.segment_sum(args, runtime.stream());
        Gather gather_args;
        gather_args.rows = edges;
        gather_args.index = graph.senders;
        gather_args.x = args.out;
        gather_args.out = unwritten(runtime, {edges, 33}, dtype);
        backend.kernels->segment_sum.gather(gather_args, runtime.stream());
        results.push_back({{"segment_sum", args.out}, {"gather", gather_args.out}});
      }
      for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
    }
  }
}

TEST_CASE("segment_sum and gather say which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return unwritten(runtime, shape, dtype);
  };
  const auto sum_error = [&](auto&& change) {
    SegmentSum args;
    args.segments = 2;
    args.offsets = to_index(runtime, {0, 1, 5});
    args.x = tensor({5, 4});
    args.out = tensor({2, 4});
    change(args);
    return invalid_argument_text([&] { kernels::segment_sum(args, runtime.stream()); });
  };
  CHECK(sum_error([](SegmentSum&) {}) == "");
  std::string text = sum_error([&](SegmentSum& a) { a.offsets = to_index(runtime, {0, 1}); });
  CHECK_MESSAGE((contains(text, "segment_sum: offsets") && contains(text, "[3]") && contains(text, "[2]")),
                text);
  text = sum_error([&](SegmentSum& a) { a.x_column = 1; });
  CHECK_MESSAGE((contains(text, "columns") && contains(text, "1 + 4 of 4")), text);
  text = sum_error([&](SegmentSum& a) { a.x = tensor({5, 4}, DType::f64); });
  CHECK_MESSAGE((contains(text, "f32") && contains(text, "f64")), text);
  text = sum_error([&](SegmentSum& a) { a.order = tensor({5}); });
  CHECK_MESSAGE((contains(text, "order") && contains(text, "i32")), text);
  text = sum_error([&](SegmentSum& a) { a.index = to_index(runtime, {0, 1}), a.weights = tensor({3}); });
  CHECK_MESSAGE(contains(text, "weights] needed f32[2], got f32[3]"), text);
  text = sum_error([&](SegmentSum& a) { a.order = a.offsets, a.index = to_index(runtime, {0, 1}); });
  CHECK_MESSAGE(contains(text, "index] needed i32[3], got i32[2]"), text);
  text = sum_error([](SegmentSum& a) { a.mean = a.accumulate = true; });
  CHECK_MESSAGE(contains(text, "for a mean, got accumulate"), text);
  text = sum_error([](SegmentSum& a) { a.mean = true, a.offsets = {}, a.segments = 2; });
  CHECK_MESSAGE(contains(text, "for a mean, got no offsets"), text);

  const auto gather_error = [&](auto&& change) {
    Gather args;
    args.rows = 3;
    args.index = to_index(runtime, {0, 1, 0});
    args.x = tensor({2, 4});
    args.out = tensor({3, 6});
    args.out_column = 2;
    change(args);
    return invalid_argument_text([&] { kernels::gather(args, runtime.stream()); });
  };
  CHECK(gather_error([](Gather&) {}) == "");
  text = gather_error([](Gather& a) { a.out_column = 3; });
  CHECK_MESSAGE((contains(text, "gather") && contains(text, "3 + 4 of 6")), text);
  text = gather_error([&](Gather& a) { a.index = to_index(runtime, {0, 1}); });
  CHECK_MESSAGE((contains(text, "index") && contains(text, "[3]") && contains(text, "[2]")), text);
  text = gather_error([](Gather& a) { a.rows = 2; });
  CHECK_MESSAGE((contains(text, "out") && contains(text, "[3, 6]")), text);
}

}  // namespace
}  // namespace meshgrad::test
