// SPDX-License-Identifier: Apache-2.0
#include "attention_case.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace meshgrad::test {
namespace {

/// Forward and backward of one case on one backend, against the reference.
void check_case(const Backend& backend, Runtime& runtime, const AttentionCase& c, bool accumulate) {
  const std::string text = c.shape.text();
  CAPTURE(text);
  CAPTURE(name_of(c.dtype));
  CAPTURE(c.graph.edges);
  const EdgeAttentionForward done = c.forward(runtime);
  backend.kernels->attention.edge_attention_forward(done, runtime.stream());
  const auto ref = reference::attention(c.ref, c.connectivity);
  CHECK(difference(done.out, ref.out, c.terms(), c.flowing()) == "");
  CHECK(difference(done.log_sums, ref.log_sums, c.terms(), 1.0) == "");
  const EdgeAttentionBackward back = c.backward(runtime, done, accumulate);
  backend.kernels->attention.edge_attention_backward(back, runtime, runtime.stream());
  check_attention_gradients(c, back, accumulate);
}

TEST_CASE("attention agrees with the reference") {
  uint64_t seed = 900;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const AttentionShape& shape : attention_shapes()) {
        Runtime runtime = backend.runtime();
        RandomMatrices random(seed++);
        // The hub of random_edges has an eighth of all edges.
        const AttentionCase c(runtime, random, shape, random_edges(random, 41, 307), dtype);
        check_case(backend, runtime, c, seed % 2 == 0);
      }
    }
  }
}

TEST_CASE("attention of 1 to 16 heads of many widths") {
  uint64_t seed = 1500;
  for (const Backend& backend : backends()) {
    for (const AttentionScore score : {AttentionScore::gat, AttentionScore::gatv2, AttentionScore::dot}) {
      for (int64_t heads = 1; heads <= kMaxHeads; heads += backend.slow ? 5 : 1) {
        for (const int64_t dim : {1, 2, 7, 8, 20, 40}) {
          if (backend.slow && heads * dim > 160) continue;
          const DType dtype = backend.storage_types[seed % backend.storage_types.size()];
          Runtime runtime = backend.runtime();
          RandomMatrices random(seed++);
          const AttentionShape shape{.score = score, .heads = heads, .dim = dim, .self_edges = seed % 3 == 0};
          check_case(backend, runtime,
                     AttentionCase(runtime, random, shape, random_edges(random, 13, 40), dtype), false);
        }
      }
    }
  }
}

TEST_CASE("attention on graphs of odd shapes") {
  using reference::Edges;
  const Edges odd[] = {
      {0, 0, {}, {}},
      {1, 1, {}, {}},
      {1, 1, {0}, {0}},
      {5, 5, {}, {}},
      {2, 2, {1}, {0}},
      {4, 2, {3, 2, 3, 0}, {0, 0, 1, 1}},              // halo nodes send only
      {9, 9, {1, 0, 7, 8, 8}, {0, 1, 7, 7, 8}},        // no edges of nodes 2 to 6
      {3, 3, {1, 1, 1, 0, 1, 2}, {0, 0, 0, 2, 2, 2}},  // parallel edges
  };
  uint64_t seed = 2100;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const Edges& edges : odd) {
        for (const AttentionShape& shape : attention_shapes()) {
          if (shape.dim > 100) continue;
          Runtime runtime = backend.runtime();
          RandomMatrices random(seed++);
          check_case(backend, runtime, AttentionCase(runtime, random, shape, edges, dtype), false);
        }
      }
    }
  }
}

TEST_CASE("attention of a bipartite graph") {
  const reference::Edges edges{3, 5, {0, 2, 1, 1, 2, 0}, {0, 0, 1, 4, 4, 4}};
  for (const Backend& backend : backends()) {
    for (AttentionShape shape : attention_shapes()) {
      if (shape.self_edges || shape.dim > 100) continue;
      Runtime runtime = backend.runtime();
      RandomMatrices random(2400);
      reference::Edges square = edges;
      square.nodes = square.owned_nodes = 5;
      AttentionCase c(runtime, random, shape, square, DType::f32);
      // to_graph makes square ones: the last two senders' rows go.
      c.connectivity = edges;
      c.graph.nodes = 3;
      c.graph.sender_offsets = c.graph.sender_offsets.row_range(0, 4);
      for (Matrix* const rows : {&c.ref.values, &c.ref.sender_scores, &c.ref.keys}) {
        if (!rows->given()) continue;
        rows->v.resize(static_cast<size_t>(3 * rows->cols));
        rows->rows = 3;
      }
      for (Tensor* const rows : {&c.inputs.values, &c.inputs.sender_scores, &c.inputs.keys})
        if (rows->defined()) *rows = rows->row_range(0, 3);
      c.inputs.graph = &c.graph;
      check_case(backend, runtime, c, false);
    }
  }
}

/// Node 0 receives from all others, and node 1 sends to all others.
reference::Edges star(int64_t edges) {
  reference::Edges result{edges / 2 + 2, edges / 2 + 2, {}, {}};
  for (int64_t i = 0; i < edges / 2; ++i) {
    result.senders.push_back(static_cast<int32_t>(i + 2));
    result.receivers.push_back(0);
  }
  for (int64_t i = 0; i < edges / 2; ++i) {
    result.senders.push_back(1);
    result.receivers.push_back(static_cast<int32_t>(i + 2));
  }
  return result;
}

TEST_CASE("attention of hubs: slabs and their ends") {
  uint64_t seed = 2500;
  for (const Backend& backend : backends()) {
    for (const int64_t degree : {127, 128, 129, 255, 256, 257, 511, 512, 513, 1025}) {
      for (const AttentionShape& shape : attention_shapes()) {
        if (shape.dim > 20 || (backend.slow && degree % 2 == 0)) continue;
        const DType dtype = backend.storage_types[seed % backend.storage_types.size()];
        Runtime runtime = backend.runtime();
        RandomMatrices random(seed++);
        check_case(backend, runtime, AttentionCase(runtime, random, shape, star(2 * degree), dtype), false);
      }
    }
  }
}

// Heads of 33 columns leave four groups to a block of a GPU, which take 1024 edges a round.
TEST_CASE("attention of a hub that takes a block several rounds") {
  for (const Backend& backend : backends()) {
    for (const AttentionScore score : {AttentionScore::gat, AttentionScore::gatv2, AttentionScore::dot}) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(2890);
      const AttentionShape shape{.score = score, .heads = 1, .dim = 33};
      check_case(backend, runtime, AttentionCase(runtime, random, shape, star(2 * 2311), DType::f32), false);
    }
  }
}

TEST_CASE("attention of a hub of 100,000 edges") {
  for (const Backend& backend : backends()) {
    const int64_t degree = backend.slow ? 3000 : 100000;
    for (const AttentionScore score : {AttentionScore::gat, AttentionScore::gatv2, AttentionScore::dot}) {
      Runtime runtime = backend.runtime(2);
      RandomMatrices random(2900);
      const AttentionShape shape{.score = score, .heads = 2, .dim = 4, .self_edges = true, .rate = 0.25};
      check_case(backend, runtime, AttentionCase(runtime, random, shape, star(2 * degree), DType::f32), true);
    }
  }
}

TEST_CASE("attention of large scores does not overflow") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(2950);
      AttentionCase c(runtime, random, {.heads = 4, .dim = 8}, random_edges(random, 31, 900), dtype);
      for (double& score : c.ref.receiver_scores.v) score += 800.0;
      c.ref.receiver_scores = stored_as(accumulator_of(dtype), c.ref.receiver_scores);
      c.inputs.receiver_scores = to_tensor(runtime, c.ref.receiver_scores, accumulator_of(dtype));
      const EdgeAttentionForward done = c.forward(runtime);
      backend.kernels->attention.edge_attention_forward(done, runtime.stream());
      const auto ref = reference::attention(c.ref, c.connectivity);
      // Scores near 800 are rounded to 3e-5.
      CHECK(difference(done.out, ref.out, c.terms(), 100.0) == "");
      CHECK(difference(done.log_sums, ref.log_sums, c.terms(), 1.0) == "");
    }
  }
}

TEST_CASE("attention shows a score that is not a number") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(2960);
    AttentionCase c(runtime, random, {.heads = 2, .dim = 8}, {3, 3, {0, 1, 2}, {0, 0, 1}}, DType::f32);
    c.ref.sender_scores.at(1, 1) = std::nan("");
    c.inputs.sender_scores = to_tensor(runtime, c.ref.sender_scores, DType::f32);
    const EdgeAttentionForward done = c.forward(runtime);
    backend.kernels->attention.edge_attention_forward(done, runtime.stream());
    const Matrix out = to_matrix(done.out);
    for (int64_t column = 0; column < 16; ++column) {
      CHECK(std::isnan(out.at(0, column)) == (column >= 8));
      CHECK(std::isfinite(out.at(1, column)));
    }
  }
}

TEST_CASE("attention has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const AttentionShape& shape : attention_shapes()) {
        if (shape.dim > 20) continue;
        std::vector<NamedTensors> results;
        for (const int threads : backend.thread_counts()) {
          Runtime runtime = backend.runtime(threads);
          RandomMatrices random(2970);
          const AttentionCase c(runtime, random, shape, random_edges(random, 1033, backend.many(6007)),
                                dtype);
          const EdgeAttentionForward done = c.forward(runtime);
          backend.kernels->attention.edge_attention_forward(done, runtime.stream());
          const EdgeAttentionBackward back = c.backward(runtime, done, false);
          backend.kernels->attention.edge_attention_backward(back, runtime, runtime.stream());
          NamedTensors all{{"out", done.out}, {"log_sums", done.log_sums}};
          for (const auto& named : AttentionCase::gradients(back))
            if (named.second.defined()) all.push_back(named);
          results.push_back(all);
        }
        for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
      }
    }
  }
}

TEST_CASE("attention of a graph does not depend on its batch") {
  for (const Backend& backend : backends()) {
    for (const AttentionScore score : {AttentionScore::gat, AttentionScore::gatv2, AttentionScore::dot}) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(2980);
      const AttentionShape shape{
          .score = score, .heads = 4, .dim = 8, .self_edges = true, .own_keys = false, .rate = 0.5};
      const reference::Edges edges = random_edges(random, 17, 61);
      reference::Edges both{36, 36, {4, 0}, {1, 4}};  // 19 nodes before, most of them without edges
      for (size_t e = 0; e < edges.senders.size(); ++e) {
        both.senders.push_back(edges.senders[e] + 19);
        both.receivers.push_back(edges.receivers[e] + 19);
      }
      AttentionCase alone(runtime, random, shape, edges, DType::f32);
      AttentionCase batch(runtime, random, shape, both, DType::f32);
      // The second graph of the batch has the values, d_out and keys of the one that is alone.
      const auto moved = [&](const Matrix& from, Matrix& to) {
        std::copy(from.v.begin(), from.v.end(), to.v.end() - static_cast<int64_t>(from.v.size()));
        return to_tensor(runtime, to, DType::f32);
      };
      batch.inputs.values = moved(alone.ref.values, batch.ref.values);
      moved(alone.d_out, batch.d_out);
      if (score == AttentionScore::gat) {
        batch.inputs.sender_scores = moved(alone.ref.sender_scores, batch.ref.sender_scores);
        batch.inputs.receiver_scores = moved(alone.ref.receiver_scores, batch.ref.receiver_scores);
      } else {
        batch.inputs.queries = moved(alone.ref.queries, batch.ref.queries);
        batch.inputs.weight = alone.inputs.weight;
      }
      std::vector<int64_t> keys(17), batch_keys(36, 5);
      for (size_t i = 0; i < keys.size(); ++i) batch_keys[19 + i] = keys[i] = static_cast<int64_t>(1000 * i);
      const auto numbers = [&](const std::vector<int64_t>& values) {
        return Tensor::from<int64_t>(runtime, values, {static_cast<int64_t>(values.size())}, Tag::data);
      };
      alone.inputs.dropout.row_keys = numbers(keys);
      batch.inputs.dropout = alone.inputs.dropout;
      batch.inputs.dropout.row_keys = numbers(batch_keys);
      const auto run = [&](const AttentionCase& c) {
        const EdgeAttentionForward done = c.forward(runtime);
        backend.kernels->attention.edge_attention_forward(done, runtime.stream());
        EdgeAttentionBackward back = c.backward(runtime, done, false);
        backend.kernels->attention.edge_attention_backward(back, runtime, runtime.stream());
        const int64_t begin = c.graph.nodes - 17;
        NamedTensors all{{"out", done.out.row_range(begin, c.graph.nodes)}};
        for (const auto& [name, tensor] : AttentionCase::gradients(back)) {
          if (tensor.defined() && name != "d_weight")
            all.emplace_back(name, tensor.row_range(begin, c.graph.nodes));
        }
        return all;
      };
      check_equal_bits(run(alone), run(batch));
    }
  }
}

TEST_CASE("head scores agree with the reference") {
  uint64_t seed = 3000;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      const DType sums = accumulator_of(dtype);
      for (const auto& [heads, dim] :
           {std::pair<int64_t, int64_t>{8, 16}, {1, 7}, {16, 1}, {3, 5}, {2, 260}}) {
        for (const int64_t rows : backend.sizes()) {
          Runtime runtime = backend.runtime();
          RandomMatrices random(seed++);
          CAPTURE(name_of(dtype));
          CAPTURE(heads);
          CAPTURE(dim);
          CAPTURE(rows);
          const int64_t width = heads * dim;
          const Matrix x = stored_as(dtype, random.normal(rows, width));
          const Matrix weight = stored_as(sums, random.normal(1, width));
          const Matrix d_scores = stored_as(sums, random.normal(rows, heads));
          const HeadScoresForward args{.rows = rows,
                                       .heads = heads,
                                       .x = to_tensor(runtime, x, dtype),
                                       .weight = to_vector(runtime, weight, sums),
                                       .scores = unwritten(runtime, {rows, heads}, sums)};
          backend.kernels->attention.head_scores_forward(args, runtime.stream());
          CHECK(difference(args.scores, reference::head_scores(x, weight, heads), dim, 4.0) == "");
          const auto g = reference::head_scores_backward(x, weight, d_scores);
          for (const bool accumulate : {false, true}) {
            const Matrix start(rows, width, accumulate ? 0.5 : 0.0);
            const Matrix weight_start(1, width, 0.5);
            const HeadScoresBackward back{.rows = rows,
                                          .heads = heads,
                                          .x = args.x,
                                          .weight = args.weight,
                                          .d_scores = to_tensor(runtime, d_scores, sums),
                                          .d_x = accumulate ? to_tensor(runtime, start, dtype)
                                                            : unwritten(runtime, {rows, width}, dtype),
                                          .accumulate_d_x = accumulate,
                                          .d_weight = to_vector(runtime, weight_start, sums)};
            backend.kernels->attention.head_scores_backward(back, runtime, runtime.stream());
            CHECK(difference(back.d_x, sum(start, g.d_x), 2) == "");
            CHECK(difference(back.d_weight, sum(weight_start, g.d_weight), rows, 4.0, dtype) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("attention says which argument does not fit") {
  Runtime runtime = make_runtime();
  RandomMatrices random(3500);
  const AttentionCase gat(runtime, random, {.heads = 2, .dim = 3, .edge_scores = true},
                          {3, 3, {0, 1}, {1, 1}}, DType::f32);
  const AttentionCase dot(runtime, random, {.score = AttentionScore::dot, .heads = 2, .dim = 3},
                          {3, 3, {0, 1}, {1, 1}}, DType::f32);
  const auto error = [&](const AttentionCase& c, auto&& change) {
    EdgeAttentionForward args = c.forward(runtime);
    change(args.inputs);
    return invalid_argument_text([&] { kernels::edge_attention_forward(args, runtime.stream()); });
  };
  CHECK(error(gat, [](EdgeAttention&) {}) == "");
  CHECK(error(dot, [](EdgeAttention&) {}) == "");
  CHECK(contains(error(gat, [](EdgeAttention& a) { a.heads = 4; }), "got 4 heads, width 6"));
  CHECK(contains(error(gat, [](EdgeAttention& a) { a.heads = 0; }), "got 0 heads, width 6"));
  CHECK(
      contains(error(gat, [](EdgeAttention& a) { a.slope = 0.0; }), "slope] needed a number above 0, got 0"));
  CHECK(contains(error(gat, [](EdgeAttention& a) { a.sender_scores = {}; }), "sender_scores"));
  CHECK(contains(error(gat, [](EdgeAttention& a) { a.queries = a.values; }), "queries] needed no tensor"));
  CHECK(contains(error(gat, [](EdgeAttention& a) { a.edge_scores = a.values; }),
                 "edge_scores] needed f32[2, 2], got f32[3, 6]"));
  CHECK(contains(error(dot, [](EdgeAttention& a) { a.queries = {}; }), "queries"));
  CHECK(contains(error(dot, [](EdgeAttention& a) { a.weight = a.values; }), "weight] needed no tensor"));
  CHECK(
      contains(error(dot, [](EdgeAttention& a) { a.dropout.rate = 1.0; }), "needed a rate in [0, 1), got 1"));
  Graph wide = gat.graph;
  wide.owned_nodes = 4;
  CHECK(contains(error(gat,
                       [&](EdgeAttention& a) {
                         a.graph = &wide;
                         a.self_edges = true;
                       }),
                 "got 3 senders, 4 receivers"));
}

}  // namespace
}  // namespace meshgrad::test
