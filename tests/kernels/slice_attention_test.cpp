// SPDX-License-Identifier: Apache-2.0
#include "reference/slice_attention.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "support.h"

namespace meshgrad::test {
namespace {

struct SliceShape {
  int64_t heads, columns, slices;
};

/// Graphs of these sizes, with the reference's inputs and the kernels', rounded alike.
struct SliceCase {
  DType dtype;
  reference::Slices ref;
  Matrix values, d_tokens, tokens, d_out;
  SliceWeights weights;

  SliceCase(Runtime& runtime, RandomMatrices& random, DType storage, const SliceShape& shape,
            const std::vector<int32_t>& sizes, int64_t capacity = -1)
      : dtype(storage) {
    const DType sums = accumulator_of(dtype);
    const int64_t width = shape.heads * shape.columns;
    ref.heads = shape.heads;
    ref.starts = {0};
    for (const int32_t size : sizes) ref.starts.push_back(ref.starts.back() + size);
    const int64_t nodes = capacity >= 0 ? capacity : ref.starts.back();
    const auto stored = [&](int64_t rows, int64_t columns, double scale) {
      return stored_as(dtype, random.normal(rows, columns, scale));
    };
    ref.keys = stored(nodes, width, 1.0);
    ref.weight = stored(shape.columns, shape.slices, 1.0 / std::sqrt(static_cast<double>(shape.columns)));
    ref.bias = stored_as(sums, random.normal(1, shape.slices));
    ref.temperatures = Matrix(1, shape.heads);
    // One counts as the most, and one as the least.
    for (int64_t h = 0; h < shape.heads; ++h)
      ref.temperatures.at(0, h) = h == 1 ? 7.0 : h == 2 ? 0.0625 : 0.5 + 0.25 * static_cast<double>(h);
    values = stored(nodes, width, 1.0);
    d_out = stored(nodes, width, 1.0);
    tokens = stored(ref.tokens(), shape.columns, 1.0);
    d_tokens = stored(ref.tokens(), shape.columns, 1.0);
    weights = {.heads = shape.heads,
               .nodes = nodes,
               .starts = to_index(runtime, ref.starts),
               .keys = to_tensor(runtime, ref.keys, dtype),
               .weight = to_tensor(runtime, ref.weight, dtype),
               .bias = to_vector(runtime, ref.bias, sums),
               .temperatures = to_vector(runtime, ref.temperatures, sums)};
  }
  int64_t nodes() const { return ref.starts.back(); }
  /// Terms of the gradients of W, b and t.
  int64_t terms() const { return std::max<int64_t>(1, nodes() * ref.heads * ref.columns()); }
};

/// Starts of gradients that are added to, and what they become.
struct GradientStarts {
  Matrix d_keys, d_weight, d_bias, d_temperatures;
  SliceWeightGradients gradients;

  GradientStarts(Runtime& runtime, RandomMatrices& random, const SliceCase& c, bool accumulate) {
    const DType sums = accumulator_of(c.dtype);
    const auto start = [&](const Matrix& like, DType dtype) {
      return stored_as(dtype, random.normal(like.rows, like.cols));
    };
    d_keys = accumulate ? start(c.ref.keys, c.dtype) : Matrix(c.ref.keys.rows, c.ref.keys.cols);
    d_weight = start(c.ref.weight, sums);
    d_bias = start(c.ref.bias, sums);
    d_temperatures = start(c.ref.temperatures, sums);
    gradients = {.d_keys = accumulate ? to_tensor(runtime, d_keys, c.dtype)
                                      : unwritten(runtime, c.weights.keys.shape(), c.dtype),
                 .accumulate_d_keys = accumulate,
                 .d_weight = to_tensor(runtime, d_weight, sums),
                 .d_bias = to_vector(runtime, d_bias, sums),
                 .d_temperatures = to_vector(runtime, d_temperatures, sums)};
  }
  /// `made_of`: of sums over nodes, when they were made of tokens in storage.
  void check(const SliceCase& c, const reference::SliceGradients& expected, DType made_of) const {
    // A temperature of 0.1 multiplies errors of scores by 10.
    const double flowing = 8.0;
    CHECK(difference(gradients.d_keys, reference::sum(d_keys, expected.d_keys), c.ref.slices(), flowing) ==
          "");
    CHECK(difference(gradients.d_weight, reference::sum(d_weight, expected.d_weight), c.terms(), flowing,
                     made_of) == "");
    CHECK(difference(gradients.d_bias, reference::sum(d_bias, expected.d_bias), c.terms(), flowing,
                     made_of) == "");
    CHECK(difference(gradients.d_temperatures, reference::sum(d_temperatures, expected.d_temperatures),
                     c.terms(), flowing, made_of) == "");
  }
};

struct TokensRun {
  Tensor tokens, sizes;
  TokensRun(const Backend& backend, Runtime& runtime, const SliceCase& c)
      : tokens(unwritten(runtime, {c.ref.tokens(), c.ref.columns()}, c.dtype)),
        sizes(unwritten(runtime, {c.ref.tokens()}, accumulator_of(c.dtype))) {
    backend.kernels->slice_attention.slice_tokens_forward({.weights = c.weights,
                                                           .values = to_tensor(runtime, c.values, c.dtype),
                                                           .tokens = tokens,
                                                           .sizes = sizes},
                                                          runtime, runtime.stream());
  }
};

void check_tokens(const Backend& backend, Runtime& runtime, RandomMatrices& random, const SliceCase& c,
                  bool accumulate) {
  const SliceAttentionKernels& kernels = backend.kernels->slice_attention;
  const TokensRun run(backend, runtime, c);
  const reference::SliceTokens expected = reference::slice_tokens(c.ref, c.values);
  CHECK(difference(run.tokens, expected.tokens, 64, 4.0) == "");
  CHECK(difference(run.sizes, expected.sizes, std::max<int64_t>(1, c.nodes()), 4.0) == "");
  const GradientStarts starts(runtime, random, c, accumulate);
  const Matrix before = stored_as(c.dtype, random.normal(c.values.rows, c.values.cols));
  const Tensor d_values =
      accumulate ? to_tensor(runtime, before, c.dtype) : unwritten(runtime, c.weights.keys.shape(), c.dtype);
  kernels.slice_tokens_backward({.weights = c.weights,
                                 .values = to_tensor(runtime, c.values, c.dtype),
                                 .tokens = run.tokens,
                                 .sizes = run.sizes,
                                 .d_tokens = to_tensor(runtime, c.d_tokens, c.dtype),
                                 .d_values = d_values,
                                 .accumulate_d_values = accumulate,
                                 .gradients = starts.gradients},
                                runtime, runtime.stream());
  const reference::SliceGradients gradients = reference::slice_tokens_backward(c.ref, c.values, c.d_tokens);
  // A slice that hardly any node is in has a token and gradients of its own size.
  CHECK(difference(d_values, accumulate ? reference::sum(before, gradients.d_other) : gradients.d_other,
                   c.ref.slices(), 8.0) == "");
  starts.check(c, gradients, c.dtype);
}

void check_spread(const Backend& backend, Runtime& runtime, RandomMatrices& random, const SliceCase& c,
                  bool accumulate) {
  const SliceAttentionKernels& kernels = backend.kernels->slice_attention;
  const Tensor tokens = to_tensor(runtime, c.tokens, c.dtype);
  const Tensor out = unwritten(runtime, c.weights.keys.shape(), c.dtype);
  kernels.slice_spread_forward({.weights = c.weights, .tokens = tokens, .out = out}, runtime,
                               runtime.stream());
  CHECK(difference(out, reference::slice_spread(c.ref, c.tokens), c.ref.slices(), 4.0) == "");
  const GradientStarts starts(runtime, random, c, accumulate);
  const Matrix before = stored_as(c.dtype, random.normal(c.tokens.rows, c.tokens.cols));
  const Tensor d_tokens =
      accumulate ? to_tensor(runtime, before, c.dtype) : unwritten(runtime, tokens.shape(), c.dtype);
  kernels.slice_spread_backward({.weights = c.weights,
                                 .tokens = tokens,
                                 .d_out = to_tensor(runtime, c.d_out, c.dtype),
                                 .d_tokens = d_tokens,
                                 .accumulate_d_tokens = accumulate,
                                 .gradients = starts.gradients},
                                runtime, runtime.stream());
  const reference::SliceGradients gradients = reference::slice_spread_backward(c.ref, c.tokens, c.d_out);
  CHECK(difference(d_tokens, accumulate ? reference::sum(before, gradients.d_other) : gradients.d_other,
                   std::max<int64_t>(1, c.nodes()), 4.0) == "");
  starts.check(c, gradients, accumulator_of(c.dtype));
}

void check_slices(const Backend& backend, DType dtype, const SliceShape& shape,
                  const std::vector<int32_t>& sizes, uint64_t seed) {
  RandomMatrices random(seed);
  CAPTURE(name_of(dtype));
  CAPTURE(shape.heads);
  CAPTURE(shape.columns);
  CAPTURE(shape.slices);
  CAPTURE(sizes);
  CAPTURE(seed);
  Runtime runtime = backend.runtime();
  const SliceCase c(runtime, random, dtype, shape, sizes);
  check_tokens(backend, runtime, random, c, seed % 2 == 0);
  check_spread(backend, runtime, random, c, seed % 2 == 0);
}

TEST_CASE("slice attention agrees with the reference") {
  uint64_t seed = 11000;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const SliceShape& shape :
           {SliceShape{1, 1, 1}, {1, 7, 1}, {1, 1, 7}, {3, 7, 7}, {2, 16, 64}, {4, 8, 31}, {5, 33, 2}})
        check_slices(backend, dtype, shape, {3, 0, 1, 31, 33, 0}, seed++);
      for (const int32_t nodes : {0, 1, 95, 96, 97, 255, 256, 257, 521}) {
        if (backend.slow && nodes > 257) continue;
        check_slices(backend, dtype, {2, 3, 5}, {nodes}, seed++);
      }
      check_slices(backend, dtype, {2, 3, 5}, {255, 2, 256, 0, 3}, seed++);
      check_slices(backend, dtype, {2, 3, 5}, {}, seed++);
    }
  }
}

TEST_CASE("slice attention of the largest sizes") {
  uint64_t seed = 11500;
  for (const Backend& backend : backends()) {
    const DType dtype = backend.storage_types.front();
    for (const SliceShape& shape : {SliceShape{1, 128, 32}, {1, 32, 128}, {16, 1, 128}, {1, 64, 64}})
      check_slices(backend, dtype, shape, {20, 1, 14}, seed++);
  }
}

TEST_CASE("token attention agrees with the reference") {
  uint64_t seed = 11700;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const SliceShape& shape : {SliceShape{0, 4, 4},
                                      {1, 1, 1},
                                      {3, 7, 1},
                                      {7, 1, 7},
                                      {2, 16, 64},
                                      {3, 33, 31},
                                      {1, 32, 128},
                                      {1, 128, 32}}) {
        RandomMatrices random(seed++);
        CAPTURE(name_of(dtype));
        CAPTURE(shape.heads);
        CAPTURE(shape.columns);
        CAPTURE(shape.slices);
        Runtime runtime = backend.runtime();
        const int64_t rows = shape.heads * shape.slices;  // of as many groups
        const auto stored = [&] { return stored_as(dtype, random.normal(rows, shape.columns)); };
        const auto given = [&](const Matrix& m) { return to_tensor(runtime, m, dtype); };
        const reference::Tokens t{shape.slices, stored(), stored(), stored()};
        const Matrix d_out = stored();
        const Tensor out = unwritten(runtime, {rows, shape.columns}, dtype);
        const SliceAttentionKernels& kernels = backend.kernels->slice_attention;
        kernels.token_attention_forward({.slices = shape.slices,
                                         .queries = given(t.queries),
                                         .keys = given(t.keys),
                                         .values = given(t.values),
                                         .out = out},
                                        runtime, runtime.stream());
        CHECK(difference(out, reference::token_attention(t), shape.slices, 4.0) == "");
        const bool add = seed % 2 == 0;
        const Matrix before = add ? stored() : Matrix(rows, shape.columns);
        const auto gradient = [&] { return add ? given(before) : unwritten(runtime, out.shape(), dtype); };
        const TokenAttentionBackward back{.slices = shape.slices,
                                          .queries = given(t.queries),
                                          .keys = given(t.keys),
                                          .values = given(t.values),
                                          .d_out = given(d_out),
                                          .d_queries = gradient(),
                                          .d_keys = gradient(),
                                          .d_values = gradient(),
                                          .accumulate_d_queries = add,
                                          .accumulate_d_keys = add,
                                          .accumulate_d_values = add};
        kernels.token_attention_backward(back, runtime, runtime.stream());
        const reference::TokenGradients expected = reference::token_attention_backward(t, d_out);
        const auto check = [&](const Tensor& actual, const Matrix& of) {
          CHECK(difference(actual, reference::sum(before, of), shape.slices, 4.0) == "");
        };
        check(back.d_queries, expected.d_queries);
        check(back.d_keys, expected.d_keys);
        check(back.d_values, expected.d_values);
      }
    }
  }
}

TEST_CASE("slice attention leaves rows after the count alone") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(11800);
      const int64_t capacity = 300;
      // As in a batch with room for more: the empty graphs begin at the real count.
      SliceCase c(runtime, random, dtype, {2, 3, 5}, {40, 1, 0, 0}, capacity);
      const auto bad = [&](Matrix& m) { std::fill(m.v.begin() + 6 * c.nodes(), m.v.end(), std::nan("")); };
      bad(c.ref.keys), bad(c.values), bad(c.d_out);
      const Tensor real = to_count(runtime, c.nodes());
      c.weights.nodes = Rows(capacity, real.data<int64_t>());
      c.weights.keys = to_tensor(runtime, c.ref.keys, dtype);
      const TokensRun run(backend, runtime, c);
      CHECK(difference(run.tokens, reference::slice_tokens(c.ref, c.values).tokens, 64, 4.0) == "");
      const Tensor tokens = to_tensor(runtime, c.tokens, dtype);
      const auto output = [&] { return unwritten(runtime, {capacity, 6}, dtype); };
      const Tensor out = output(), d_keys = output(), d_values = output();
      const SliceAttentionKernels& kernels = backend.kernels->slice_attention;
      kernels.slice_spread_forward({.weights = c.weights, .tokens = tokens, .out = out}, runtime,
                                   runtime.stream());
      kernels.slice_tokens_backward({.weights = c.weights,
                                     .values = to_tensor(runtime, c.values, dtype),
                                     .tokens = run.tokens,
                                     .sizes = run.sizes,
                                     .d_tokens = tokens,
                                     .d_values = d_values,
                                     .gradients = {.d_keys = d_keys}},
                                    runtime, runtime.stream());
      for (const Tensor& written : {out, d_keys, d_values}) {
        for (const double value : to_matrix(written.row_range(0, c.nodes())).v) CHECK(std::isfinite(value));
        CHECK(equal_bits(written.row_range(c.nodes(), capacity),
                         unwritten(runtime, {capacity - c.nodes(), 6}, dtype)));
      }
    }
  }
}

TEST_CASE("slice attention of a graph does not depend on its batch") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(11900);
      const SliceCase batch(runtime, random, dtype, {2, 3, 5}, {100, 300, 7});
      SliceCase alone(runtime, random, dtype, {2, 3, 5}, {300});
      const auto part = [&](const Matrix& m) {
        return Matrix(300, 6, {m.v.begin() + 600, m.v.begin() + 2400});
      };
      alone.weights = batch.weights;
      alone.weights.nodes = 300;
      alone.weights.starts = to_index(runtime, {0, 300});
      alone.weights.keys = to_tensor(runtime, part(batch.ref.keys), dtype);
      alone.values = part(batch.values);
      const TokensRun all(backend, runtime, batch), one(backend, runtime, alone);
      CHECK(equal_bits(all.tokens.row_range(10, 20), one.tokens));
      CHECK(equal_bits(all.sizes.row_range(10, 20), one.sizes));
    }
  }
}

TEST_CASE("slice attention has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<std::vector<Matrix>> results;
      for (const int threads : backend.thread_counts()) {
        Runtime runtime = backend.runtime(threads);
        RandomMatrices random(12000);
        const SliceCase c(runtime, random, dtype, {2, 3, 5}, {700, 0, 300, 1});
        const TokensRun run(backend, runtime, c);
        const GradientStarts first(runtime, random, c, false), second(runtime, random, c, false);
        const Tensor d_values = unwritten(runtime, c.weights.keys.shape(), dtype);
        const Tensor d_tokens = unwritten(runtime, run.tokens.shape(), dtype);
        const SliceAttentionKernels& kernels = backend.kernels->slice_attention;
        kernels.slice_tokens_backward({.weights = c.weights,
                                       .values = to_tensor(runtime, c.values, dtype),
                                       .tokens = run.tokens,
                                       .sizes = run.sizes,
                                       .d_tokens = to_tensor(runtime, c.d_tokens, dtype),
                                       .d_values = d_values,
                                       .gradients = first.gradients},
                                      runtime, runtime.stream());
        kernels.slice_spread_backward({.weights = c.weights,
                                       .tokens = to_tensor(runtime, c.tokens, dtype),
                                       .d_out = to_tensor(runtime, c.d_out, dtype),
                                       .d_tokens = d_tokens,
                                       .gradients = second.gradients},
                                      runtime, runtime.stream());
        std::vector<Matrix>& all = results.emplace_back();
        for (const Tensor& tensor :
             {run.tokens, run.sizes, d_values, d_tokens, first.gradients.d_keys, first.gradients.d_weight,
              first.gradients.d_bias, first.gradients.d_temperatures, second.gradients.d_weight})
          all.push_back(to_matrix(tensor));
        for (size_t i = 0; i < all.size(); ++i) CHECK(all[i].v == results.front()[i].v);
      }
    }
  }
}

TEST_CASE("slice attention of large scores is finite, and hides no NaN") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(12100);
      SliceCase c(runtime, random, dtype, {1, 2, 3}, {4, 4});
      for (double& key : c.ref.keys.v) key *= 4096.0;
      c.weights.keys = to_tensor(runtime, c.ref.keys, dtype);
      for (const double token : to_matrix(TokensRun(backend, runtime, c).tokens).v)
        CHECK(std::isfinite(token));
      c.ref.keys.at(1, 0) = std::nan("");
      c.weights.keys = to_tensor(runtime, c.ref.keys, dtype);
      const Matrix tokens = to_matrix(TokensRun(backend, runtime, c).tokens);
      for (int64_t i = 0; i < 6; ++i) CHECK(std::isnan(tokens.at(i, 0)) == (i < 3));
      c.ref.temperatures.at(0, 0) = std::nan("");
      c.weights.temperatures = to_vector(runtime, c.ref.temperatures, c.weights.temperatures.dtype());
      for (const double token : to_matrix(TokensRun(backend, runtime, c).tokens).v) CHECK(std::isnan(token));
    }
  }
}

TEST_CASE("slice attention says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](auto&& change) {
    RandomMatrices random(12200);
    const SliceCase c(runtime, random, DType::f32, {2, 3, 5}, {4, 3});
    SliceSpreadForward args{.weights = c.weights,
                            .tokens = to_tensor(runtime, c.tokens, DType::f32),
                            .out = unwritten(runtime, {7, 6}, DType::f32)};
    change(args);
    return invalid_argument_text([&] { kernels::slice_spread_forward(args, runtime, runtime.stream()); });
  };
  using Args = SliceSpreadForward;
  CHECK(error([](Args&) {}) == "");
  CHECK(contains(error([](Args& a) { a.weights.keys = {}; }), "slice_spread.forward: keys"));
  CHECK(contains(error([](Args& a) { a.weights.heads = 4; }), "got 4 heads, width 6"));
  CHECK(contains(error([](Args& a) { a.weights.heads = 3; }), "weight] needed f32[2, 5], got f32[3, 5]"));
  CHECK(contains(error([](Args& a) { a.tokens = a.out; }), "tokens] needed f32[20, 3], got f32[7, 6]"));
  CHECK(contains(error([&](Args& a) {
                   a.weights.weight = unwritten(runtime, {3, 129}, DType::f32);
                 }),
                 "1 to 128 slices"));
  CHECK(contains(error([](Args& a) { a.weights.bias = a.weights.temperatures; }), "bias] needed f32[5]"));
  CHECK(contains(error([](Args& a) { a.weights.nodes = 8; }), "keys] needed f32[8, 6], got f32[7, 6]"));
  const Tensor rows = unwritten(runtime, {7, 2}, DType::f32);
  CHECK(contains(invalid_argument_text([&] {
                   kernels::token_attention_forward(
                       {.slices = 3, .queries = rows, .keys = rows, .values = rows, .out = rows}, runtime,
                       runtime.stream());
                 }),
                 "token_attention.forward: queries] needed rows in groups of 3, got 7 rows"));
}

}  // namespace
}  // namespace meshgrad::test
