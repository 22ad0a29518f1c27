// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/vgae.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support.h"
#include "weight_check.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

struct VgaeCase {
  std::string name;
  VgaeOptions options{.width = 6, .blocks = 1, .activation = Activation::silu};
  ModelSizes sizes{.node_inputs = 5,
                   .edge_inputs = {0},
                   .edge_set_names = {"mesh"},
                   .outputs = 3,
                   .graph_starts = true,
                   .edge_weights = true};

  VgaeCase(std::string text, const std::function<void(VgaeOptions&, ModelSizes&)>& change)
      : name(std::move(text)) {
    change(options, sizes);
  }
};

std::vector<VgaeCase> vgae_cases() {
  return {
      {"links alone", [](VgaeOptions&, ModelSizes&) {}},
      {"no layer in front", [](VgaeOptions& o, ModelSizes&) { o.blocks = 0; }},
      {"features, deep", [](VgaeOptions& o, ModelSizes&) { o.blocks = 3, o.features = true; }},
      {"attention, no layer in front",
       [](VgaeOptions& o, ModelSizes&) { o.encoder = VgaeEncoder::attention, o.heads = 2, o.blocks = 0; }},
      {"attention, features, deep",
       [](VgaeOptions& o, ModelSizes& s) {
         o.encoder = VgaeEncoder::attention, o.heads = 3, o.blocks = 2, o.features = true;
         s.edge_weights = false;
       }},
      {"features, op by op", [](VgaeOptions& o, ModelSizes&) {
         o.features = true, o.hidden_layers = 2, o.path = ComputePath::op_by_op, o.keep_hidden = false;
       }}};
}

/// A batch of graphs of 5, 0 and 7 nodes; the last node has only the edge to itself.
struct VgaeRun {
  static constexpr int64_t kNodes = 12;
  Runtime runtime = make_runtime();
  Model model;
  GraphBatch batch;
  bool features;
  Tensor kl_weights, feature_weights, target, mask, seed;
  NodePairs pairs;

  VgaeRun(const VgaeCase& made, DType dtype)
      : model(make_vgae(made.options, made.sizes)), features(made.options.features) {
    model.parameters.allocate(runtime, dtype, 7);
    RandomMatrices random(31);
    const auto tensor = [&](int64_t rows, int64_t width, DType stored) {
      return to_tensor(runtime, stored_as(DType::bf16, random.normal(rows, width)), stored);
    };
    const auto positive = [&](int64_t count, double scale, DType stored) {
      Matrix values = random.normal(1, count);
      for (double& value : values.v) value = scale * (0.5 + std::abs(value));
      return to_vector(runtime, values, stored);
    };
    const std::vector<int32_t> first{0, 0, 1, 3, 5, 5, 6, 8, 9}, second{1, 2, 4, 4, 6, 7, 8, 9, 10};
    std::vector<int32_t> senders, receivers;
    for (size_t i = 0; i < first.size(); ++i) {
      senders.insert(senders.end(), {first[i], second[i]});
      receivers.insert(receivers.end(), {second[i], first[i]});
    }
    for (int32_t i = 0; i < kNodes; ++i) senders.push_back(i), receivers.push_back(i);
    batch.nodes = kNodes;
    batch.edge_sets.push_back({"mesh", build_graph(runtime, kNodes, senders, receivers), {}});
    EdgeSet& edges = batch.edge_sets[0];
    edges.features = Tensor::empty(runtime, {edges.graph.edges, 0}, dtype, Tag::data);
    if (made.sizes.edge_weights) edges.weights = positive(edges.graph.edges, 0.4, DType::f32);
    batch.node_features = tensor(kNodes, made.sizes.node_inputs, dtype);
    batch.graph_starts = make_graph_starts(runtime, std::vector<int64_t>{5, 0, 7});
    set_keys(1000);
    kl_weights = positive(kNodes, 0.05, DType::f32);
    feature_weights = positive(kNodes, 0.05, accumulator_of(dtype));
    target = tensor(kNodes, made.sizes.node_inputs, accumulator_of(dtype));
    mask = mask_tensor(runtime, std::vector<uint8_t>(kNodes, 1));
    pairs = {.graph_starts = batch.graph_starts,
             .offsets = edges.graph.receiver_offsets,
             .others = edges.graph.senders,
             .weights = to_tensor(runtime, Matrix(3, 2, {0.06, 0.04, 0.0, 0.0, 0.05, 0.02}), DType::f32),
             .all_pairs = true};
    seed = to_vector(runtime, Matrix(1, 1, {0.25}), DType::f64);
  }
  void set_keys(int64_t first) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < kNodes; ++i) keys.push_back(first + i);
    batch.node_keys = Tensor::from<int64_t>(runtime, keys, {kNodes}, Tag::data, "keys");
  }
  Variable sum(Tape& tape, const std::vector<RecomputedStages>& recomputed = {}) {
    const Values values = forward(model, tape, batch, recomputed);
    Variable all = ops::latent_loss(tape, {}, values[1], kl_weights);
    if (features) {
      const Variable error = ops::accumulate_error(tape, {}, values[2], target, mask);
      all = ops::masked_loss(tape, all, {error}, mask, {.row_weights = feature_weights}).sum;
    }
    return ops::pair_loss(tape, all, values[0], pairs);
  }
  double loss() {
    Tape tape(runtime, Tape::Mode::train);
    return *sum(tape).value().data<double>() * 0.25;
  }
  Tensor gradients(const std::vector<RecomputedStages>& recomputed = {}) {
    fill_zero(model.parameters.gradients(), runtime.stream());
    Tape tape(runtime, Tape::Mode::train);
    if (!recomputed.empty()) tape.check_recomputation();
    tape.backward(sum(tape, recomputed), seed);
    const Tensor& all = model.parameters.gradients();
    const Tensor copied = Tensor::empty(runtime, all.shape(), all.dtype(), Tag::data);
    copy(all, copied, runtime.stream());
    return copied;
  }
  Matrix latent(Tape::Mode mode) {
    Tape tape(runtime, mode);
    return to_matrix(forward(model, tape, batch).front().value());
  }
};

}  // namespace

TEST_CASE("vgae: gradients are the finite differences") {
  for (const VgaeCase& made : vgae_cases()) {
    CAPTURE(made.name);
    VgaeRun run(made, DType::f64);
    const WeightCheck check =
        check_weights(run.model.parameters, run.gradients(), [&] { return run.loss(); });
    CHECK(check.error < 1e-7);
    CHECK(check.largest > 0.01);
  }
}

TEST_CASE("vgae: recomputed stages have the same bits") {
  for (const VgaeCase& made : vgae_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(made.name);
      CAPTURE(name_of(dtype));
      VgaeRun run(made, dtype);
      const Tensor plain = run.gradients();
      const auto stages = std::ssize(run.model.stages);
      for (int64_t begin = 0; begin < stages; ++begin)
        for (int64_t end = begin + 1; end <= stages; ++end)
          for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls})
            CHECK(equal_bits(plain, run.gradients({{begin, end, keep}})));
    }
  }
}

TEST_CASE("vgae: latent values are drawn in training alone, by keys") {
  const std::vector<VgaeCase> cases = vgae_cases();
  VgaeRun run(cases.front(), DType::f64);
  const Matrix means = run.latent(Tape::Mode::evaluate);
  CHECK(run.latent(Tape::Mode::record).v == means.v);
  const Matrix drawn = run.latent(Tape::Mode::train);
  CHECK(drawn.v != means.v);
  CHECK(run.latent(Tape::Mode::train).v == drawn.v);
  run.set_keys(2000);
  CHECK(run.latent(Tape::Mode::train).v != drawn.v);
  CHECK(run.latent(Tape::Mode::evaluate).v == means.v);
}

TEST_CASE("vgae says which sizes and batches do not fit") {
  const auto refused = [](const std::function<void(VgaeOptions&, ModelSizes&)>& change) {
    const VgaeCase made("", change);
    return invalid_argument_text([&] { make_vgae(made.options, made.sizes); });
  };
  using O = VgaeOptions;
  using S = ModelSizes;
  CHECK(refused([](O&, S&) {}) == "");
  CHECK(contains(refused([](O& o, S&) { o.width = 0; }), "[Vgae: width] needed 1 or more, got 0"));
  CHECK(contains(refused([](O& o, S&) { o.blocks = -1; }), "[Vgae: blocks] needed 0 or more, got -1"));
  const auto attends = [&](const std::function<void(O&, S&)>& change) {
    return refused([&](O& o, S& s) {
      o.encoder = VgaeEncoder::attention;
      s.edge_weights = false;
      o.heads = 2;
      change(o, s);
    });
  };
  CHECK(attends([](O&, S&) {}) == "");
  CHECK(contains(attends([](O& o, S&) { o.heads = 4; }),
                 "[Vgae: heads] needed a divisor of the width 6, got 4"));
  CHECK(contains(attends([](O& o, S&) { o.heads = 0; }), "[Vgae: heads] needed 1 or more, got 0"));
  CHECK(contains(attends([](O& o, S&) { o.width = 32, o.heads = 32; }), "[Vgae: heads] needed at most 16"));
  CHECK(contains(refused([](O&, S& s) { s.outputs = 0; }), "[Vgae: outputs] needed 1 or more, got 0"));
  CHECK(contains(refused([](O& o, S&) { o.hidden_layers = 8; }), "[Vgae: hidden_layers] needed at most 7"));
  CHECK(contains(refused([](O&, S& s) { s.edge_inputs = {0, 0}; }), "[Vgae: edge sets] needed one, got 2"));
  CHECK(
      contains(refused([](O&, S& s) { s.edge_weights = false; }), "[Vgae: sizes: edge_weights] needed true"));
  CHECK(contains(refused([](O&, S& s) { s.pool = GraphPool::sum; }), "[Vgae: sizes: pool] needed no value"));
  VgaeRun run(vgae_cases().front(), DType::f32);
  run.batch.node_keys = {};
  CHECK(contains(invalid_argument_text([&] { run.latent(Tape::Mode::train); }),
                 "[Vgae: batch] needed node_keys for latent values on a tape that trains, got none"));
  CHECK(invalid_argument_text([&] { run.latent(Tape::Mode::evaluate); }) == "");
  run.batch.edge_sets[0].weights = {};
  CHECK(contains(invalid_argument_text([&] { run.latent(Tape::Mode::evaluate); }),
                 "[Vgae: batch] needed an edge set with weights, got no weights in mesh"));
}
