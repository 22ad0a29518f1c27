// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/nn/gat.h>

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

/// A network, and a batch of three graphs, one of them without nodes.
struct GatCase {
  GatOptions options{.width = 4, .heads = 3, .blocks = 3, .hidden_layers = 1};
  ModelSizes sizes{.node_inputs = 5, .edge_inputs = {0}, .edge_set_names = {"mesh"}, .outputs = 2};
  std::string name;

  GatCase(std::string text, const std::function<void(GatOptions&, ModelSizes&)>& change)
      : name(std::move(text)) {
    change(options, sizes);
    sizes.graph_starts = sizes.pool.has_value();
  }
};

std::vector<GatCase> gat_cases() {
  return {
      {"plain", [](GatOptions&, ModelSizes&) {}},
      {"attention decoder",
       [](GatOptions& o, ModelSizes&) {
         o.blocks = 1, o.decoder = GatDecoder::attention, o.output_heads = 2;
       }},
      {"attention decoder alone",
       [](GatOptions& o, ModelSizes&) { o.blocks = 0, o.decoder = GatDecoder::attention; }},
      {"means, edge features, no self edges",
       [](GatOptions& o, ModelSizes& s) {
         o.concatenate = o.self_edges = false, s.edge_inputs = {3}, o.activation = Activation::silu;
       }},
      {"side by side, pooled",
       [](GatOptions& o, ModelSizes& s) { o.jumping = Jumping::concatenate, s.pool = GraphPool::mean; }},
      {"gatv2, maxima, pooled",
       [](GatOptions& o, ModelSizes& s) {
         o.score = AttentionScore::gatv2, o.jumping = Jumping::max, s.pool = GraphPool::max;
       }},
      {"dropout", [](GatOptions& o,
                     ModelSizes&) { o.dropout = 0.3, o.attention_dropout = 0.4, o.jumping = Jumping::max; }},
  };
}

struct GatRun {
  Runtime runtime = make_runtime();
  const GatCase& made;
  Model model;
  GraphBatch batch;
  Tensor target, mask, seed;

  GatRun(const GatCase& c, DType dtype) : made(c), model(make_gat(c.options, c.sizes)) {
    model.parameters.allocate(runtime, dtype, 7);
    set_biases();
    constexpr int64_t kNodes = 12;
    RandomMatrices random(31);
    const auto tensor = [&](int64_t rows, int64_t width, DType stored) {
      return to_tensor(runtime, stored_as(DType::bf16, random.normal(rows, width)), stored);
    };
    batch.nodes = kNodes;
    // Edges of two graphs, of nodes 0 to 4 and 5 to 11; node 11 has none.
    const std::vector<int32_t> senders{1, 2, 0, 4, 3, 3, 6, 7, 8, 5, 10, 9, 6, 6, 7};
    const std::vector<int32_t> receivers{0, 0, 1, 1, 2, 4, 5, 5, 5, 6, 7, 8, 9, 10, 10};
    batch.edge_sets.push_back({"mesh", build_graph(runtime, kNodes, senders, receivers), {}});
    batch.edge_sets[0].features = tensor(std::ssize(senders), c.sizes.edge_inputs[0], dtype);
    batch.node_features = tensor(kNodes, c.sizes.node_inputs, dtype);
    if (c.sizes.pool) batch.graph_starts = make_graph_starts(runtime, std::vector<int64_t>{5, 0, 7});
    set_keys(1000);
    const int64_t rows = c.sizes.pool ? 3 : kNodes;
    target = tensor(rows, c.sizes.outputs, accumulator_of(dtype));
    mask = Tensor::empty(runtime, {rows}, DType::u8, Tag::data);
    for (int64_t i = 0; i < rows; ++i) mask.data<uint8_t>()[i] = i % 3 != 1;
    seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
    *seed.data<double>() = 0.25;
  }

  /// Others than 0: where all edges of two layers are dropped, their values would be equal.
  void set_biases() {
    const ParameterSet& set = model.parameters;
    const Tensor host = to_host(set.values(), runtime.stream());
    dispatch_storage(host.dtype(), [&]<class T>() {
      for (const ParameterInfo& info : set.parameters()) {
        if (info.initial != Initial::zero) continue;
        for (int64_t i = info.offset; i < info.offset + info.shape.elements(); ++i)
          host.data<T>()[i] = static_cast<T>(0.2 * normal(5, 0, static_cast<uint64_t>(i)));
      }
    });
    set.set(set.values(), host, runtime.stream());
  }
  void set_keys(int64_t first) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < batch.nodes; ++i) keys.push_back(first + i);
    batch.node_keys = Tensor::from<int64_t>(runtime, keys, {batch.nodes}, Tag::data, "keys");
  }
  Matrix predict(Tape::Mode mode) {
    Tape tape(runtime, mode);
    return to_matrix(forward(model, tape, batch).front().value());
  }
  double loss(Tape::Mode mode) {
    Tape tape(runtime, mode);
    const Values values = forward(model, tape, batch);
    return *ops::masked_loss(tape, values.front(), target, mask).sum.value().data<double>() * 0.25;
  }
  Tensor gradients(Tape::Mode mode, const std::vector<RecomputedStages>& recomputed = {}) {
    fill_zero(model.parameters.gradients(), runtime.stream());
    Tape tape(runtime, mode);
    if (!recomputed.empty()) tape.check_recomputation();
    const Values values = forward(model, tape, batch, recomputed);
    tape.backward(ops::masked_loss(tape, values.front(), target, mask).sum, seed);
    const Tensor& all = model.parameters.gradients();
    const Tensor copied = Tensor::empty(runtime, all.shape(), all.dtype(), Tag::data);
    copy(all, copied, runtime.stream());
    return copied;
  }
};

double relative_difference(const Matrix& a, const Matrix& b) {
  REQUIRE(a.v.size() == b.v.size());
  double difference = 0.0, total = 0.0;
  for (size_t i = 0; i < a.v.size(); ++i) {
    difference += (a.v[i] - b.v[i]) * (a.v[i] - b.v[i]);
    total += b.v[i] * b.v[i];
  }
  return std::sqrt(difference / total);
}

}  // namespace

TEST_CASE("gat: gradients are the finite differences") {
  for (const GatCase& made : gat_cases()) {
    CAPTURE(made.name);
    GatRun run(made, DType::f64);
    const WeightCheck check = check_weights(run.model.parameters, run.gradients(Tape::Mode::train),
                                            [&] { return run.loss(Tape::Mode::train); });
    CHECK(check.error < 1e-7);
    CHECK(check.largest > 0.01);
  }
}

TEST_CASE("gat: recomputed stages have the same bits") {
  for (const GatCase& made : gat_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(made.name);
      CAPTURE(name_of(dtype));
      GatRun run(made, dtype);
      const Tensor plain = run.gradients(Tape::Mode::train);
      const auto stages = std::ssize(run.model.stages);
      for (int64_t begin = 0; begin < stages; ++begin) {
        for (int64_t end = begin + 1; end <= stages; ++end) {
          for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls})
            CHECK(equal_bits(plain, run.gradients(Tape::Mode::train, {{begin, end, keep}})));
        }
      }
    }
  }
}

TEST_CASE("gat: in 16 bits it predicts and learns as in f64") {
  for (const GatCase& made : gat_cases()) {
    if (made.options.jumping == Jumping::max) continue;  // rounding may choose another maximum
    GatRun exact(made, DType::f64);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(made.name);
      CAPTURE(name_of(dtype));
      const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
      GatRun stored(made, dtype);
      CHECK(relative_difference(stored.predict(Tape::Mode::train), exact.predict(Tape::Mode::train)) <
            8.0 * unit);
      CHECK(relative_difference(to_matrix(stored.gradients(Tape::Mode::train)),
                                to_matrix(exact.gradients(Tape::Mode::train))) < 16.0 * unit);
    }
  }
}

TEST_CASE("gat: dropout is for training alone, and its mask the keys'") {
  const std::vector<GatCase> cases = gat_cases();
  const GatCase& made = cases.back();
  GatRun run(made, DType::f64);
  GatCase without = made;
  without.options.dropout = without.options.attention_dropout = 0.0;
  GatRun plain(without, DType::f64);
  const Matrix expected = plain.predict(Tape::Mode::evaluate);
  CHECK(run.predict(Tape::Mode::evaluate).v == expected.v);
  CHECK(run.predict(Tape::Mode::record).v == expected.v);
  CHECK(plain.predict(Tape::Mode::train).v == expected.v);
  const Matrix trained = run.predict(Tape::Mode::train);
  CHECK(relative_difference(trained, expected) > 0.1);
  CHECK(run.predict(Tape::Mode::train).v == trained.v);
  run.set_keys(2000);
  CHECK(relative_difference(run.predict(Tape::Mode::train), trained) > 0.1);
  for (const bool inputs : {false, true}) {
    GatCase one = without;
    (inputs ? one.options.dropout : one.options.attention_dropout) = 0.5;
    CHECK(relative_difference(GatRun(one, DType::f64).predict(Tape::Mode::train), expected) > 0.1);
  }
  // The mean over many masks comes near the prediction of one layer without dropout, which is linear in them.
  GatCase linear = without;
  linear.options = {.blocks = 0, .dropout = 0.0, .attention_dropout = 0.4};
  linear.options.decoder = GatDecoder::attention;
  GatRun many(linear, DType::f64);
  const Matrix whole = many.predict(Tape::Mode::evaluate);
  Matrix mean(whole.rows, whole.cols);
  constexpr int kMasks = 2000;
  for (int i = 0; i < kMasks; ++i) {
    many.set_keys(1'000'000 * i);
    mean = reference::sum(mean, many.predict(Tape::Mode::train));
  }
  for (double& value : mean.v) value /= kMasks;
  CHECK(relative_difference(mean, whole) < 0.05);
}

TEST_CASE("gat says which sizes and batches do not fit") {
  const auto refused = [](const std::function<void(GatOptions&, ModelSizes&)>& change) {
    const GatCase made("", change);
    return invalid_argument_text([&] { make_gat(made.options, made.sizes); });
  };
  using O = GatOptions;
  using S = ModelSizes;
  CHECK(refused([](O&, S&) {}) == "");
  CHECK(contains(refused([](O& o, S&) { o.heads = 0; }), "[Gat: heads] needed 1 or more, got 0"));
  CHECK(contains(refused([](O& o, S&) { o.heads = 17; }), "[Gat: heads] needed at most 16, got 17"));
  CHECK(contains(refused([](O& o, S&) { o.blocks = 0; }), "[Gat: blocks] needed 1 or more, got 0"));
  CHECK(contains(refused([](O&, S& s) { s.edge_inputs = {0, 0}; }), "[Gat: edge sets] needed one, got 2"));
  CHECK(contains(refused([](O& o, S&) { o.score = AttentionScore::dot; }), "needed gat or gatv2, got dot"));
  CHECK(contains(refused([](O& o, S& s) { o.score = AttentionScore::gatv2, s.edge_inputs = {3}; }),
                 "[Gat: edge_features] needed false with the score gatv2"));
  CHECK(contains(refused([](O& o, S&) { o.decoder = GatDecoder::attention, o.jumping = Jumping::max; }),
                 "[Gat: decoder] needed an MLP with jumping"));
  CHECK(contains(refused([](O& o, S& s) { o.decoder = GatDecoder::attention, s.pool = GraphPool::sum; }),
                 "[Gat: decoder] needed an MLP where nodes are pooled"));
  CHECK(contains(refused([](O& o, S&) { o.blocks = 8, o.jumping = Jumping::concatenate; }),
                 "[Gat: blocks] needed at most 7 with jumping, got 8"));
  CHECK(contains(refused([](O& o, S&) { o.dropout = 1.0; }), "[Gat: dropout] needed a rate in [0, 1)"));
  GatRun run(gat_cases().back(), DType::f32);
  run.batch.node_keys = {};
  CHECK(contains(invalid_argument_text([&] { run.predict(Tape::Mode::train); }),
                 "[AttentionLayer: batch] needed node_keys for dropout on a tape that trains, got none"));
  CHECK(invalid_argument_text([&] { run.predict(Tape::Mode::record); }) == "");
  run.batch.edge_sets.push_back(run.batch.edge_sets[0]);
  CHECK(contains(invalid_argument_text([&] { run.predict(Tape::Mode::record); }),
                 "[Gat: batch] needed one edge set, got 2"));
}
