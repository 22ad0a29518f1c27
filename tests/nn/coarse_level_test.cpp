// SPDX-License-Identifier: Apache-2.0
// A model whose batch has edges to nodes of its own making: it pools the nodes once, passes a message between
// the coarse nodes, and returns. Other models with levels do the same.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/mlp.h>

#include <algorithm>
#include <numeric>

#include "model_case.h"
#include "support.h"
#include "weight_check.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

constexpr int64_t kLevelWidth = 4, kFineInputs = 3, kFineOutputs = 2;
constexpr int64_t kFine = 11, kCoarse = 4;  // more nodes send down than receive; up the other way

/// Node i is pooled into node coarse_of(i).
int32_t coarse_of(int64_t i) { return static_cast<int32_t>((i * i + 1) % kCoarse); }

struct Level {
  std::vector<int32_t> fine = std::vector<int32_t>(kFine), coarse;
  std::vector<int32_t> senders, receivers;  // among the coarse nodes
  Level() {
    std::iota(fine.begin(), fine.end(), 0);
    for (const int32_t i : fine) coarse.push_back(coarse_of(i));
    for (int32_t to = 0; to < kCoarse; ++to) {
      senders.insert(senders.end(), {(to + 1) % static_cast<int32_t>(kCoarse), to});
      receivers.insert(receivers.end(), {to, to});
    }
  }
};

Tensor no_features(Runtime& runtime, const Graph& graph, DType dtype) {
  return Tensor::zeros(runtime, {graph.edges, 0}, dtype, Tag::data);
}

LossBatch level_batch(Runtime& runtime, DType dtype, uint64_t seed) {
  const Level level;
  RandomMatrices random(seed);
  const auto values = [&](int64_t width, DType stored) {
    return to_tensor(runtime, stored_as(stored, random.normal(kFine, width)), stored);
  };
  LossBatch batch;
  batch.graph.nodes = kFine;
  batch.graph.node_features = values(kFineInputs, dtype);
  const auto add = [&](const char* name, Graph graph, bool from_batch, bool to_batch) {
    const Tensor none = no_features(runtime, graph, dtype);
    batch.graph.edge_sets.push_back({.name = name,
                                     .graph = std::move(graph),
                                     .features = none,
                                     .from_batch = from_batch,
                                     .to_batch = to_batch});
  };
  // Not in the order of use, and the first one not between the batch's nodes: sets go by name.
  add("coarse", build_graph(runtime, kCoarse, level.senders, level.receivers), false, false);
  add("up", build_bipartite_graph(runtime, kCoarse, kFine, level.coarse, level.fine), false, true);
  add("down", build_bipartite_graph(runtime, kFine, kCoarse, level.fine, level.coarse), true, false);
  batch.target = values(kFineOutputs, accumulator_of(dtype));
  batch.mask = Tensor::empty(runtime, {kFine}, DType::u8, Tag::data);
  for (int64_t i = 0; i < kFine; ++i) batch.mask.data<uint8_t>()[i] = i % 4 != 0;
  return batch;
}

/// What an edge set brings its receivers: the sum over their edges of the senders' values.
Variable gathered(Tape& tape, const GraphBatch& batch, const char* edges, const Variable& senders) {
  const Graph& graph = batch.edges(edges).graph;
  return ops::segment_sum(tape, ops::concat(tape, {{senders, ConcatPart::Rows::sender}}, &graph), graph);
}

/// Values between stages: those of nodes, then, between "down" and "up", those of coarse nodes.
Model level_model(ComputePath path) {
  Model model;
  const auto add = [&](const char* name, int64_t in, int64_t out, auto&& run) {
    const int64_t first = model.parameters.arena_elements();
    const Mlp mlp(model.parameters, name,
                  {.inputs = {in},
                   .file_order = {},
                   .hidden = kLevelWidth,
                   .out = out,
                   .hidden_layers = 1,
                   .activation = Activation::tanh,
                   .norm = Norm::none});
    model.stages.push_back({name, false,
                            [mlp, run, path](Tape& tape, const ParameterSet& parameters,
                                             const GraphBatch& batch, const Values& before) {
                              const auto apply = [&](const Variable& x) {
                                return mlp.forward(tape, parameters, {x}, {}, path, true);
                              };
                              return run(tape, batch, before, apply);
                            },
                            first});
  };
  add("encoder", kFineInputs, kLevelWidth,
      [](Tape&, const GraphBatch&, const Values& before, auto&& apply) { return Values{apply(before[0])}; });
  add("down", kLevelWidth, kLevelWidth,
      [](Tape& tape, const GraphBatch& batch, const Values& before, auto&& apply) {
        return Values{before[0], apply(gathered(tape, batch, "down", before[0]))};
      });
  add("coarse", kLevelWidth, kLevelWidth,
      [](Tape& tape, const GraphBatch& batch, const Values& before, auto&& apply) {
        return Values{before[0], apply(gathered(tape, batch, "coarse", before[1]))};
      });
  add("up", kLevelWidth, kLevelWidth,
      [](Tape& tape, const GraphBatch& batch, const Values& before, auto&& apply) {
        return Values{ops::add(tape, before[0], apply(gathered(tape, batch, "up", before[1])))};
      });
  add("decoder", kLevelWidth, kFineOutputs,
      [](Tape&, const GraphBatch&, const Values& before, auto&& apply) { return Values{apply(before[0])}; });
  return model;
}

TEST_CASE("pooling sums nodes, and returning spreads them") {
  Runtime runtime = make_runtime();
  const LossBatch batch = level_batch(runtime, DType::f64, 1);
  batch.graph.check();
  Tape tape(runtime, Tape::Mode::evaluate);
  const Variable x = tape.input(batch.graph.node_features, batch.graph.node_rows());
  const Variable pooled = gathered(tape, batch.graph, "down", x);
  const Matrix returned = to_matrix(gathered(tape, batch.graph, "up", pooled).value());
  CHECK(pooled.value().shape() == Shape{kCoarse, kFineInputs});
  const Matrix given = to_matrix(batch.graph.node_features);
  double largest = 0.0;
  for (int64_t i = 0; i < kFine; ++i) {
    for (int64_t c = 0; c < kFineInputs; ++c) {
      double sum = 0.0;
      for (int64_t j = 0; j < kFine; ++j)
        if (coarse_of(j) == coarse_of(i)) sum += given.at(j, c);
      largest = std::max(largest, std::abs(sum - returned.at(i, c)));
    }
  }
  CHECK(largest < 1e-12);
}

TEST_CASE("a pooling model has the gradients of finite differences") {
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    Runtime runtime = make_runtime();
    Model model = level_model(path);
    model.parameters.allocate(runtime, DType::f64, 5);
    CHECK(largest_gradient_error(runtime, model, level_batch(runtime, DType::f64, 2)) < 1e-7);
  }
}

TEST_CASE("recomputed levels give the same bits") {
  using Segments = std::vector<RecomputedStages>;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      Runtime runtime = make_runtime();
      Model model = level_model(path);
      model.parameters.allocate(runtime, dtype, 5);
      const LossBatch batch = level_batch(runtime, dtype, 3);
      const auto gradients = [&](const Segments& recomputed) {
        fill_zero(model.parameters.gradients(), runtime.stream());
        loss_of(runtime, model, batch, true, recomputed);
        const Tensor& all = model.parameters.gradients();
        const Tensor copied = Tensor::empty(runtime, all.shape(), all.dtype(), Tag::data);
        copy(all, copied, runtime.stream());
        return copied;
      };
      const Tensor plain = gradients({});
      CHECK(magnitude(to_matrix(plain)) > 0.0);
      for (const Segments& recomputed :
           {Segments{{0, 5}}, {{1, 4}}, {{0, 2}, {2, 3}, {3, 5}}, {{1, 2}, {3, 4}}}) {
        CHECK(equal_bits(plain, gradients(recomputed)));
      }
    }
  }
}

}  // namespace
