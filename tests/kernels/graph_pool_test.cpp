// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support.h"

namespace meshgrad::test {
namespace {

constexpr GraphPool kPools[] = {GraphPool::sum, GraphPool::mean, GraphPool::max};

/// Starts of `graphs` over `nodes`; some are empty, the last ones too.
std::vector<int32_t> random_starts(RandomMatrices& random, int64_t graphs, int64_t nodes) {
  std::vector<int32_t> starts = random.indices(graphs, static_cast<int32_t>(nodes) + 1);
  std::sort(starts.begin(), starts.end());
  starts.insert(starts.begin(), 0);
  if (graphs > 1) starts.end()[-2] = static_cast<int32_t>(nodes);
  starts.back() = static_cast<int32_t>(nodes);
  return starts;
}

GraphPoolForward forward_of(Runtime& runtime, GraphPool pool, const std::vector<int32_t>& starts,
                            const Tensor& x) {
  const int64_t graphs = std::ssize(starts) - 1;
  GraphPoolForward args{.pool = pool,
                        .graphs = graphs,
                        .starts = to_index(runtime, starts),
                        .x = x,
                        .out = unwritten(runtime, {graphs, x.width()}, x.dtype())};
  if (pool == GraphPool::max) args.index = exact_tensor(runtime, {graphs, x.width()}, DType::i32);
  return args;
}

GraphPoolBackward backward_of(const GraphPoolForward& forward, const Rows& nodes, const Tensor& d_out,
                              const Tensor& d_x) {
  return {.pool = forward.pool,
          .nodes = nodes,
          .graphs = forward.graphs,
          .starts = forward.starts,
          .d_out = d_out,
          .d_x = d_x,
          .index = forward.index};
}

std::vector<double> to_doubles(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }

TEST_CASE("graph_pool and its gradient agree with the reference") {
  uint64_t seed = 8100;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {1, 3, 16, 33, 129}) {
        for (const int64_t nodes : backend.sizes_and(width == 1, 20011)) {
          for (const GraphPool pool : kPools) {
            RandomMatrices random(seed++);
            CAPTURE(name_of(dtype));
            CAPTURE(name_of(pool));
            CAPTURE(width);
            CAPTURE(nodes);
            CAPTURE(random.seed());
            Runtime runtime = backend.runtime();
            const std::vector<int32_t> starts = random_starts(random, nodes / 9 + 3, nodes);
            const Matrix x = stored_as(dtype, random.normal(nodes, width));
            const GraphPoolForward forward = forward_of(runtime, pool, starts, to_tensor(runtime, x, dtype));
            backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
            const reference::GraphPoolResult expected = reference::graph_pool(pool, x, starts);
            CHECK(difference(forward.out, expected.out, nodes) == "");
            if (pool == GraphPool::max) CHECK(to_matrix(forward.index).v == to_doubles(expected.index));

            const Matrix d_out = stored_as(dtype, random.normal(std::ssize(starts) - 1, width));
            const Matrix start = stored_as(dtype, random.normal(nodes, width));
            const Matrix d_x = reference::graph_pool_backward(pool, x, starts, d_out);
            GraphPoolBackward back = backward_of(forward, nodes, to_tensor(runtime, d_out, dtype),
                                                 unwritten(runtime, {nodes, width}, dtype));
            backend.kernels->graph_pool.graph_pool_backward(back, runtime.stream());
            CHECK(difference(back.d_x, d_x, 1) == "");
            back.d_x = to_tensor(runtime, start, dtype);
            back.accumulate = true;
            backend.kernels->graph_pool.graph_pool_backward(back, runtime.stream());
            CHECK(difference(back.d_x, reference::sum(start, d_x), 2) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("graph_pool: of equal maxima the first node has the gradient") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      const int64_t nodes = 300;
      Matrix x(nodes, 2);
      for (const int64_t node : {41, 42, 170, 299}) x.at(node, 0) = 2.0;
      x.at(0, 1) = -0.0;
      const GraphPoolForward forward =
          forward_of(runtime, GraphPool::max, {0, 300}, to_tensor(runtime, x, dtype));
      backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
      CHECK(to_matrix(forward.index).v == std::vector<double>{41, 0});
    }
  }
}

TEST_CASE("graph_pool hides no NaN") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const GraphPool pool : kPools) {
        for (const int64_t bad : {0, 7, 199, 230}) {
          CAPTURE(name_of(pool));
          CAPTURE(bad);
          Runtime runtime = backend.runtime();
          RandomMatrices random(8001);
          Matrix x = stored_as(dtype, random.normal(260, 3));
          for (const int64_t node : {bad, int64_t{240}}) x.at(node, 1) = std::nan("");
          x.at(5, 1) = x.at(250, 1) = std::numeric_limits<double>::infinity();
          const GraphPoolForward forward =
              forward_of(runtime, pool, {0, 200, 260}, to_tensor(runtime, x, dtype));
          backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
          const Matrix out = to_matrix(forward.out);
          CHECK(std::isnan(out.at(0, 1)) == (bad < 200));
          CHECK(std::isnan(out.at(1, 1)));
          CHECK(std::isfinite(out.at(0, 0)));
          if (pool != GraphPool::max) continue;
          CHECK(to_matrix(forward.index).at(0, 1) == static_cast<double>(bad < 200 ? bad : 5));
          CHECK(to_matrix(forward.index).at(1, 1) == static_cast<double>(bad < 200 ? 240 : bad));
        }
      }
    }
  }
}

TEST_CASE("graph_pool keeps the gradients of rows after the count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const GraphPool pool : kPools) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(8002);
        const int64_t count = 41, capacity = 67;
        const Tensor real = to_count(runtime, count);
        const std::vector<int32_t> starts{0, 20, 41, 41};
        const GraphPoolForward forward =
            forward_of(runtime, pool, starts, to_tensor(runtime, random.normal(capacity, 5), dtype));
        backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
        const GraphPoolBackward back = backward_of(forward, Rows(capacity, real.data<int64_t>()),
                                                   to_tensor(runtime, random.normal(3, 5), dtype),
                                                   unwritten(runtime, {capacity, 5}, dtype));
        backend.kernels->graph_pool.graph_pool_backward(back, runtime.stream());
        CHECK(equal_bits(back.d_x.row_range(count, capacity),
                         unwritten(runtime, {capacity - count, 5}, dtype)));
        for (const double value : to_matrix(back.d_x.row_range(0, count)).v) CHECK(std::isfinite(value));
        for (const double value : to_matrix(forward.out.row_range(2, 3)).v) CHECK(value == 0.0);
      }
    }
  }
}

// As of the edges of each node, where a batch has room for more nodes: their starts are never written.
TEST_CASE("graph_pool leaves graphs after the count alone") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const GraphPool pool : kPools) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(8004);
        const Tensor real_graphs = to_count(runtime, 3), real_nodes = to_count(runtime, 41);
        const Rows nodes(67, real_nodes.data<int64_t>());
        GraphPoolForward forward = forward_of(runtime, pool, {0, 20, 20, 41, -7, 1 << 30, 5},
                                              to_tensor(runtime, random.normal(67, 5), dtype));
        forward.graphs.count = real_graphs.data<int64_t>();
        backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
        CHECK(equal_bits(forward.out.row_range(3, 6), unwritten(runtime, {3, 5}, dtype)));
        const Matrix x = to_matrix(forward.x.row_range(0, 41));
        const std::vector<int32_t> starts{0, 20, 20, 41};
        CHECK(difference(forward.out.row_range(0, 3), reference::graph_pool(pool, x, starts).out, 41) == "");
        const Tensor d_out = to_tensor(runtime, random.normal(6, 5), dtype);
        const GraphPoolBackward back = backward_of(forward, nodes, d_out, unwritten(runtime, {67, 5}, dtype));
        backend.kernels->graph_pool.graph_pool_backward(back, runtime.stream());
        const Matrix d_x = reference::graph_pool_backward(pool, x, starts, to_matrix(d_out.row_range(0, 3)));
        CHECK(difference(back.d_x.row_range(0, 41), d_x, 1) == "");
        CHECK(equal_bits(back.d_x.row_range(41, 67), unwritten(runtime, {26, 5}, dtype)));
      }
    }
  }
}

TEST_CASE("graph_pool has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const GraphPool pool : kPools) {
        std::vector<Matrix> results;
        for (const int threads : backend.thread_counts()) {
          Runtime runtime = backend.runtime(threads);
          RandomMatrices random(8003);
          const int64_t nodes = backend.many(20011);
          const std::vector<int32_t> starts = random_starts(random, 301, nodes);
          const GraphPoolForward forward =
              forward_of(runtime, pool, starts, to_tensor(runtime, random.normal(nodes, 7), dtype));
          backend.kernels->graph_pool.graph_pool_forward(forward, runtime.stream());
          const GraphPoolBackward back =
              backward_of(forward, nodes, forward.out, unwritten(runtime, {nodes, 7}, dtype));
          backend.kernels->graph_pool.graph_pool_backward(back, runtime.stream());
          results.push_back(to_matrix(forward.out));
          results.push_back(to_matrix(back.d_x));
        }
        for (size_t i = 2; i < results.size(); ++i) CHECK(results[i].v == results[i % 2].v);
      }
    }
  }
}

TEST_CASE("graph_pool says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](GraphPool pool, auto&& change) {
    GraphPoolForward args = forward_of(runtime, pool, {0, 2, 5}, unwritten(runtime, {5, 4}, DType::f32));
    change(args);
    return invalid_argument_text([&] { kernels::graph_pool_forward(args, runtime.stream()); });
  };
  using Args = GraphPoolForward;
  CHECK(error(GraphPool::max, [](Args&) {}) == "");
  CHECK(contains(error(GraphPool::sum, [](Args& a) { a.x = {}; }), "graph_pool.forward: x"));
  CHECK(contains(error(GraphPool::sum,
                       [&](Args& a) {
                         a.starts = to_index(runtime, {0, 5});
                       }),
                 "starts] needed i32[3], got i32[2]"));
  CHECK(contains(error(GraphPool::max, [](Args& a) { a.index = a.starts; }), "index] needed i32[2, 4]"));
  CHECK(contains(error(GraphPool::mean, [](Args& a) { a.index = a.starts; }), "got an index for mean"));
  const GraphPoolForward forward =
      forward_of(runtime, GraphPool::sum, {0, 2, 5}, unwritten(runtime, {5, 4}, DType::f32));
  const std::string text = invalid_argument_text([&] {
    kernels::graph_pool_backward(backward_of(forward, 5, forward.out, unwritten(runtime, {5, 3}, DType::f32)),
                                 runtime.stream());
  });
  CHECK(contains(text, "graph_pool.backward: d_x] needed f32[5, 4], got f32[5, 3]"));
}

}  // namespace
}  // namespace meshgrad::test
