// SPDX-License-Identifier: Apache-2.0
#include "reference/latent.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "support.h"

namespace meshgrad::test {
namespace {

constexpr double kPairSeed = 0.37;
using reference::Pairs;

/// Graphs of these sizes, in which about `degree` pairs a node are listed, and in the first of several nodes
/// all of node 0. Not with all pairs: some of the listed ones are not linked.
Pairs random_pairs(RandomMatrices& random, const std::vector<int32_t>& sizes, int32_t degree, bool all) {
  Pairs pairs{.starts = {0}, .offsets = {0}, .others = {}, .linked = {}, .weights = {}, .all = all};
  std::set<std::pair<int32_t, int32_t>> listed;
  for (size_t graph = 0; graph < sizes.size(); ++graph) {
    const int32_t begin = pairs.starts.back(), size = sizes[graph];
    const std::vector<int32_t> ends =
        random.indices(2 * (size > 1 ? size * degree / 2 : 0), std::max(1, size));
    for (size_t i = 0; i < ends.size(); i += 2) {
      listed.emplace(begin + ends[i], begin + ends[i + 1]);  // at times a node with itself
      listed.emplace(begin + ends[i + 1], begin + ends[i]);
    }
    for (int32_t i = 1; graph == 0 && i < size; ++i)
      listed.emplace(begin, begin + i), listed.emplace(begin + i, begin);
    pairs.starts.push_back(begin + size);
    pairs.weights.push_back(0.5F + static_cast<float>(graph % 3));
    pairs.weights.push_back(0.25F + static_cast<float>(graph % 2));
  }
  pairs.offsets.resize(static_cast<size_t>(pairs.starts.back()) + 1);
  for (const auto& [i, j] : listed) {
    ++pairs.offsets[static_cast<size_t>(i) + 1];
    pairs.others.push_back(j);
    if (!all) pairs.linked.push_back((i + j) % 3 != 0 ? 255 : 0);
  }
  for (size_t i = 1; i < pairs.offsets.size(); ++i) pairs.offsets[i] += pairs.offsets[i - 1];
  return pairs;
}

struct PairRun {
  double sum = 0.0;
  Tensor d_z;
  PairRun(const Backend& backend, Runtime& runtime, const Rows& rows, const Tensor& z, const Pairs& given)
      : d_z(unwritten(runtime, z.shape(), z.dtype())) {
    NodePairs pairs{.graph_starts = to_index(runtime, given.starts),
                    .offsets = to_index(runtime, given.offsets),
                    .others = to_index(runtime, given.others),
                    .weights = exact_tensor(runtime, {std::ssize(given.weights) / 2, 2}, DType::f32),
                    .all_pairs = given.all};
    if (!given.weights.empty())
      pairs.weights = to_tensor(
          runtime, Matrix(std::ssize(given.weights) / 2, 2, {given.weights.begin(), given.weights.end()}),
          DType::f32);
    if (!given.linked.empty()) pairs.linked = mask_tensor(runtime, given.linked);
    PairLossForward forward{.rows = rows, .z = z, .pairs = pairs, .sum = unwritten(runtime, {1}, DType::f64)};
    const PairLossKernels& kernels = backend.kernels->pair_loss;
    kernels.pair_loss_forward(forward, runtime, runtime.stream());
    const double once = to_matrix(forward.sum).at(0, 0);
    forward.accumulate = true;
    kernels.pair_loss_forward(forward, runtime, runtime.stream());
    sum = to_matrix(forward.sum).at(0, 0) - once;
    kernels.pair_loss_backward({.rows = rows,
                                .z = z,
                                .pairs = pairs,
                                .seed = to_vector(runtime, Matrix(1, 1, {kPairSeed}), DType::f64),
                                .d_z = d_z},
                               runtime, runtime.stream());
  }
};

void check_against_reference(const Backend& backend, DType dtype, int64_t width,
                             const std::vector<int32_t>& sizes, bool all, uint64_t seed) {
  RandomMatrices random(seed);
  CAPTURE(name_of(dtype));
  CAPTURE(width);
  CAPTURE(sizes);
  CAPTURE(all);
  CAPTURE(seed);
  Runtime runtime = backend.runtime();
  const Pairs pairs = random_pairs(random, sizes, 6, all);
  const int64_t nodes = pairs.starts.back();
  const Matrix z = stored_as(dtype, random.normal(nodes, width, 1.0 / std::sqrt(std::sqrt(width))));
  const PairRun run(backend, runtime, nodes, to_tensor(runtime, z, dtype), pairs);
  const double loss = reference::pair_loss(z, pairs);
  // Of each pair the rounding of an inner product and of a logarithm.
  const int64_t counted = std::max<int64_t>(1, all ? nodes * nodes : std::ssize(pairs.others));
  CHECK(std::abs(run.sum - loss) <=
        tolerance(accumulator_of(dtype), counted, 16.0) + tolerance(DType::f64, counted, loss));
  CHECK(difference(run.d_z, reference::pair_loss_backward(z, pairs, kPairSeed), all ? nodes : 64, 2.0) == "");
}

TEST_CASE("pair loss and its gradient agree with the reference") {
  uint64_t seed = 9500;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const bool all : {false, true}) {
        for (const int64_t width : {1, 2, 16, 31, 33, 70})
          check_against_reference(backend, dtype, width, {33, 0, 1, 31, 5, 2, 64, 0}, all, seed++);
        for (const int32_t nodes : {0, 1, 2, 31, 32, 33, 65, 127, 257}) {
          if (backend.slow && nodes > 65) continue;
          check_against_reference(backend, dtype, 5, {nodes}, all, seed++);
        }
        check_against_reference(backend, dtype, 3, std::vector<int32_t>(70, 1), all, seed++);
        check_against_reference(backend, dtype, 3, {}, all, seed++);
      }
    }
  }
}

TEST_CASE("pair loss of a graph without links counts all of its pairs") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    const Pairs pairs{.starts = {0, 3},
                      .offsets = {0, 0, 0, 0},
                      .others = {},
                      .linked = {},
                      .weights = {5.0F, 0.5F},
                      .all = true};
    const PairRun run(backend, runtime, 3, to_tensor(runtime, Matrix(3, 2), DType::f32), pairs);
    CHECK(std::abs(run.sum - 4.5 * std::log(2.0)) <= tolerance(DType::f32, 9, 1.0));
  }
}

TEST_CASE("pair loss of large products neither overflows nor hides NaN") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const bool all : {false, true}) {
        Runtime runtime = backend.runtime();
        const Pairs pairs{.starts = {0, 2, 4},
                          .offsets = {0, 1, 2, 3, 4},
                          .others = {1, 0, 3, 2},
                          .linked = {},
                          .weights = {0.5F, 0.5F, 0.5F, 0.5F},
                          .all = all};
        Matrix z(4, 1, {128.0, -64.0, 0.5, 1.0});
        const PairRun run(backend, runtime, 4, to_tensor(runtime, z, dtype), pairs);
        const double loss = reference::pair_loss(z, pairs);
        CHECK(std::abs(run.sum - loss) <= tolerance(accumulator_of(dtype), 4, loss));
        CHECK(difference(run.d_z, reference::pair_loss_backward(z, pairs, kPairSeed), 4, 1.0) == "");
        z.at(0, 0) = std::nan("");
        const PairRun bad(backend, runtime, 4, to_tensor(runtime, z, dtype), pairs);
        CHECK(std::isnan(bad.sum));
        CHECK(std::isnan(to_matrix(bad.d_z).at(1, 0)));
        CHECK(to_matrix(bad.d_z).at(2, 0) == to_matrix(run.d_z).at(2, 0));
      }
    }
  }
}

TEST_CASE("pair loss ignores rows after the real count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const bool all : {false, true}) {
        for (const int32_t count : {0, 1, 50}) {
          CAPTURE(count);
          Runtime runtime = backend.runtime();
          RandomMatrices random(9700);
          Pairs pairs = random_pairs(random, {count, 0, 0}, 4, all);
          const int64_t capacity = 77;
          Matrix z = stored_as(dtype, random.normal(capacity, 4));
          const double loss = reference::pair_loss(z, pairs);
          std::fill(z.v.begin() + 4 * count, z.v.end(), std::nan(""));
          pairs.offsets.resize(static_cast<size_t>(capacity) + 1, 1 << 30);
          const Tensor real = to_count(runtime, count);
          const PairRun run(backend, runtime, Rows(capacity, real.data<int64_t>()),
                            to_tensor(runtime, z, dtype), pairs);
          CHECK(std::abs(run.sum - loss) <= tolerance(accumulator_of(dtype), count * count + 1, 32.0));
          CHECK(equal_bits(run.d_z.row_range(count, capacity),
                           unwritten(runtime, {capacity - count, 4}, dtype)));
        }
      }
    }
  }
}

TEST_CASE("pair loss has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const bool all : {false, true}) {
        std::vector<std::unique_ptr<Runtime>> runtimes;
        std::vector<PairRun> runs;
        for (const int threads : backend.thread_counts()) {
          RuntimeOptions options;
          options.device = backend.device;
          options.threads = threads;
          Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
          RandomMatrices random(9800);
          const Pairs pairs = random_pairs(random, {100, 30, 0, 200}, 6, all);
          runs.emplace_back(backend, runtime, 330, to_tensor(runtime, random.normal(330, 5), dtype), pairs);
          CHECK(runs.back().sum == runs.front().sum);
          CHECK(equal_bits(runs.back().d_z, runs.front().d_z));
        }
        CHECK(runs.front().sum > 0.0);
      }
    }
  }
}

TEST_CASE("pair loss says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](auto&& change) {
    PairLossForward args{.rows = 3,
                         .z = unwritten(runtime, {3, 2}, DType::f32),
                         .pairs = {.graph_starts = to_index(runtime, {0, 3}),
                                   .offsets = to_index(runtime, {0, 0, 0, 0}),
                                   .others = to_index(runtime, {1, 0}),
                                   .weights = unwritten(runtime, {1, 2}, DType::f32)},
                         .sum = unwritten(runtime, {1}, DType::f64)};
    change(args);
    return invalid_argument_text([&] { kernels::pair_loss_forward(args, runtime, runtime.stream()); });
  };
  CHECK(error([](PairLossForward&) {}) == "");
  CHECK(contains(error([](PairLossForward& a) { a.z = {}; }), "pair_loss.forward: z"));
  CHECK(contains(error([](PairLossForward& a) { a.rows = 4; }), "needed f32[4, 2], got f32[3, 2]"));
  CHECK(contains(error([](PairLossForward& a) { a.pairs.offsets = a.pairs.others; }),
                 "offsets] needed i32[4], got i32[2]"));
  CHECK(contains(error([](PairLossForward& a) { a.pairs.graph_starts = a.pairs.offsets; }),
                 "graph_starts] needed i32[2], got i32[4]"));
  CHECK(contains(error([](PairLossForward& a) { a.pairs.weights = a.z; }), "graph_starts] needed i32[4]"));
  CHECK(contains(error([](PairLossForward& a) { a.pairs.linked = a.pairs.others; }), "linked] needed u8[2]"));
}

}  // namespace
}  // namespace meshgrad::test
