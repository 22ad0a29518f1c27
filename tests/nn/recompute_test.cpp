// SPDX-License-Identifier: Apache-2.0
// A model with recomputed blocks: the same gradients for every way to cut it, in less memory.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include <algorithm>
#include <functional>
#include <future>

#include "model_case.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

/// A model, and two batches of one window.
struct Window {
  Runtime runtime = make_runtime();
  ModelCase options;
  Model model;
  std::vector<LossBatch> batches;
  Tensor seed;

  Window(const ModelCase& o, DType dtype, int64_t nodes, int64_t edges)
      : options(o), model(make_model(o, runtime, dtype, 7)) {
    for (uint64_t i = 0; i < 2; ++i)
      batches.push_back(batch(dtype, nodes + static_cast<int64_t>(i), edges, i));
    seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
    *seed.data<double>() = 0.125;
  }

  Tensor random(RandomMatrices& from, int64_t rows, int64_t width, DType dtype) {
    return to_tensor(runtime, stored_as(dtype, from.normal(rows, width)), dtype);
  }
  LossBatch batch(DType dtype, int64_t nodes, int64_t edges, uint64_t number) {
    RandomMatrices from(20 + number);
    LossBatch batch;
    batch.graph.nodes = nodes;
    for (size_t set = 0; set < options.edge_inputs.size(); ++set) {
      batch.graph.edge_sets.push_back(
          {options.edge_set_names[set],
           build_graph(runtime, nodes, from.indices(edges, nodes), from.indices(edges, nodes)),
           random(from, edges, options.edge_inputs[set], dtype)});
    }
    batch.graph.node_features = random(from, nodes, options.node_inputs, dtype);
    if (options.slices > 0) batch.graph.graph_starts = three_graphs(runtime, nodes);
    batch.target = random(from, nodes, options.outputs, accumulator_of(dtype));
    batch.mask = Tensor::empty(runtime, {nodes}, DType::u8, Tag::data);
    for (int64_t i = 0; i < nodes; ++i) batch.mask.data<uint8_t>()[i] = i % 3 != 0;
    return batch;
  }

  OpCounts add_gradients(const LossBatch& batch, const std::vector<RecomputedStages>& recomputed) {
    Tape tape(runtime);
    const LossSum loss =
        ops::masked_loss(tape, predict(model, tape, batch.graph, recomputed), batch.target, batch.mask);
    tape.backward(loss.sum, seed);
    return tape.counts();
  }
  /// Gradients of the window; both of its batches are cut another way.
  Tensor gradients(const std::vector<RecomputedStages>& first, const std::vector<RecomputedStages>& second) {
    fill_zero(model.parameters.gradients(), runtime.stream());
    add_gradients(batches[0], first);
    add_gradients(batches[1], second);
    return model.parameters.gradients();
  }
  Tensor plain() {
    const Tensor gradients_now = gradients({}, {});
    const Tensor copied = Tensor::empty(runtime, gradients_now.shape(), gradients_now.dtype(), Tag::data);
    copy(gradients_now, copied, runtime.stream());
    return copied;
  }
};

ModelCase options_of(int64_t blocks, int64_t width) {
  ModelCase options;
  options.node_inputs = 2;
  options.edge_inputs = {2};
  options.edge_set_names = {"mesh"};
  options.outputs = 1;
  options.width = width;
  options.blocks = blocks;
  options.hidden_layers = 1;
  return options;
}

/// Bit b of `cuts`: a segment ends after block b; the last one ends with the last block.
std::vector<RecomputedStages> segments(int64_t blocks, uint32_t cuts, SavePolicy keep = SavePolicy::inputs) {
  std::vector<RecomputedStages> result;
  int64_t begin = 1;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks && (cuts >> b & 1U) == 0) continue;
    result.push_back({begin, b + 2, keep});
    begin = b + 2;
  }
  return result;
}

/// Of how many ways to cut 15 blocks the gradients are others: both batches of a window together go through
/// all, one being cut where the other is not.
int64_t different_ways(DType dtype) {
  constexpr int64_t kBlocks = 15;
  constexpr uint32_t kWays = 1U << (kBlocks - 1);
  Window window(options_of(kBlocks, 2), dtype, 3, 4);
  const Tensor plain = window.plain();
  int64_t different = magnitude(to_matrix(plain)) > 0.0 ? 0 : kWays;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kStride = 34;  // a sample, where all would take minutes
#else
  constexpr uint32_t kStride = 2;
#endif
  for (uint32_t cuts = 0; cuts < kWays; cuts += kStride) {
    const Tensor cut = window.gradients(segments(kBlocks, cuts), segments(kBlocks, kWays - 1 - cuts));
    different += equal_bits(plain, cut) ? 0 : 1;
  }
  return different;
}

/// Each op with a chance of one half.
SavePolicy random_keep(uint64_t& draws) {
  SavePolicy keep;
  for (const std::string_view op : SavePolicy::names())
    if (uniform_below(11, 0, draws++, 2) == 1) keep = keep | SavePolicy::outputs_of(op);
  return keep;
}

int64_t peak_of(Runtime& runtime, Tag tag) {
  return runtime.allocator().stats().by_tag[static_cast<size_t>(tag)].requested.peak;
}

}  // namespace

TEST_CASE("gradients are the same for every cut of 15 blocks") {
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  std::vector<std::future<int64_t>> different;
  for (const DType dtype : dtypes)
    different.push_back(std::async(std::launch::async, [dtype] { return different_ways(dtype); }));
  for (size_t i = 0; i < different.size(); ++i) {
    CAPTURE(name_of(dtypes[i]));
    CHECK(different[i].get() == 0);
  }
}

TEST_CASE("gradients are the same on every path with segments") {
  uint64_t draws = 0;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      for (const Norm norm : {Norm::none, Norm::layer, Norm::rms}) {
        for (const bool keep_hidden : {true, false}) {
          ModelCase options = options_of(4, 9);
          options.path = path;
          options.norm = norm;
          options.keep_hidden = keep_hidden;
          options.hidden_layers = norm == Norm::layer ? 2 : 1;
          options.aggregate = keep_hidden ? AggregateOrder::before_residual : AggregateOrder::after_residual;
          options.activation = keep_hidden ? Activation::relu : Activation::gelu;
          if (norm == Norm::layer) {
            options.edge_inputs = {3, 2};
            options.edge_set_names = {"mesh", "world"};
          }
          Window window(options, dtype, 31, 97);
          const Tensor plain = window.plain();
          CAPTURE(name_of(dtype));
          CAPTURE(name_of(norm));
          for (const SavePolicy keep :
               {SavePolicy::inputs, SavePolicy::matmuls, random_keep(draws), random_keep(draws)}) {
            CHECK(equal_bits(plain, window.gradients(segments(4, 7, keep), segments(4, 2, keep))));
            CHECK(equal_bits(plain,
                             window.gradients({{0, 6, keep}}, {{0, 1, keep}, {1, 4, keep}, {5, 6, keep}})));
          }
        }
      }
    }
  }
}

TEST_CASE("segments with reduced edges keep the gradients") {
  uint64_t draws = 0;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const EdgeReduce reduce : {EdgeReduce::mean, EdgeReduce::max}) {
      ModelCase options = options_of(4, 9);
      options.reduce = reduce;
      Window window(options, dtype, 31, 97);
      const Tensor plain = window.plain();
      CAPTURE(name_of(dtype));
      CAPTURE(name_of(reduce));
      for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls, random_keep(draws)})
        CHECK(equal_bits(plain, window.gradients(segments(4, 7, keep), segments(4, 2, keep))));
    }
  }
}

TEST_CASE("segments with slices keep the gradients") {
  uint64_t draws = 0;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = options_of(3, 8);  // stages: encoder, five of blocks and slices, decoder
      options.path = path;
      options.slices = 5;
      options.slices_every = 1;
      options.slice_heads = 2;
      Window window(options, dtype, 31, 97);
      const Tensor plain = window.plain();
      CAPTURE(name_of(dtype));
      for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls, random_keep(draws)})
        CHECK(equal_bits(plain, window.gradients(segments(5, 7, keep), segments(5, 2, keep))));
      CHECK(equal_bits(plain, window.gradients({{0, 7}}, {{0, 1}, {1, 4}, {5, 7}})));
    }
  }
}

TEST_CASE("segments without edge features keep the gradients") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = options_of(4, 9);
      options.path = path;
      options.edge_inputs = {0, 2};
      options.edge_set_names = {"mesh", "world"};
      Window window(options, dtype, 31, 97);
      const Tensor plain = window.plain();
      CAPTURE(name_of(dtype));
      CHECK(equal_bits(plain, window.gradients(segments(4, 7), segments(4, 2))));
      CHECK(equal_bits(plain, window.gradients({{0, 6}}, {{0, 1}, {1, 4}, {5, 6}})));
    }
  }
}

TEST_CASE("a recomputed block runs only the ops that it needs") {
  ModelCase options = options_of(3, 8);
  options.hidden_layers = 2;
  const auto counts = [&](ComputePath path, const std::vector<RecomputedStages>& recomputed) {
    options.path = path;
    Window window(options, DType::f32, 10, 30);
    return window.add_gradients(window.batches[0], recomputed);
  };
  // Fused: edge_update gives the node update its input; the node update is not run again.
  const OpCounts fused = counts(ComputePath::fused, segments(3, 3));
  CHECK(fused.forwards == 2 + 3 * 2 + 1 + 1);
  CHECK(fused.segments == 3);
  CHECK(fused.recomputed == 3);
  CHECK(counts(ComputePath::fused, segments(3, 0)).recomputed == 5);
  CHECK(counts(ComputePath::fused, {}).recomputed == 0);
  CHECK(counts(ComputePath::fused, segments(3, 3, SavePolicy::matmuls)).recomputed == 0);
  // Op by op: concat, 3 linear, 2 activations and norm of the edges, their sum; concat, 3 linear, 2
  // activations of the nodes. Not the new edges, nor the nodes' norm and residual.
  const OpCounts single = counts(ComputePath::op_by_op, segments(3, 3));
  CHECK(single.segments == 3);
  CHECK(single.recomputed == 3 * (8 + 6));
  CHECK(counts(ComputePath::op_by_op, segments(3, 3, SavePolicy::matmuls)).recomputed == 3 * (8 - 3 + 6 - 3));
  const auto named = [](std::initializer_list<const char*> ops) {
    SavePolicy keep;
    for (const char* op : ops) keep = keep | SavePolicy::outputs_of(op);
    return segments(3, 3, keep);
  };
  CHECK(counts(ComputePath::op_by_op, named({"linear"})).recomputed == 3 * (8 - 3 + 6 - 3));
  CHECK(counts(ComputePath::op_by_op, named({"linear", "activation"})).recomputed == 3 * (8 - 5 + 6 - 5));
  // relu's inputs are unused in backward.
  CHECK(counts(ComputePath::op_by_op, named({"activation"})).recomputed == 3 * (8 - 4 + 6 - 4));
  // With the nodes' concat there, the aggregate is not needed either.
  CHECK(counts(ComputePath::op_by_op, named({"concat"})).recomputed == 3 * (8 - 3 + 6 - 1));
  // The nodes' concat needs the aggregate, which needs the edges' norm and all before it.
  CHECK(counts(ComputePath::op_by_op, named({"segment_sum"})).recomputed == 3 * (8 - 2 + 6));
  CHECK(counts(ComputePath::fused, named({"edge_update"})).recomputed == 0);
  CHECK(counts(ComputePath::fused, named({"mlp"})).recomputed == 3);
}

TEST_CASE("a cut step needs the memory of boundaries and one segment") {
  ModelCase options = options_of(12, 32);
  options.hidden_layers = 2;
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    options.path = path;
    int64_t data = 0;  // no graph is copied
    const auto peak = [&](const std::vector<RecomputedStages>& recomputed) {
      Window window(options, DType::f32, 200, 1200);
      window.runtime.allocator().reset_peak();
      window.add_gradients(window.batches[0], recomputed);
      CHECK((data == 0 || data == peak_of(window.runtime, Tag::data)));
      data = peak_of(window.runtime, Tag::data);
      return peak_of(window.runtime, Tag::activations) + peak_of(window.runtime, Tag::recompute);
    };
    const int64_t all = peak({});
    const int64_t boundary = (1200 + 200) * options.width * size_of(DType::f32);
    const auto bound = [&](int64_t number, int64_t longest) {
      return number * boundary + (2 * longest + 3) * all / (2 * options.blocks);  // gradients: 3/2 of a block
    };
    CHECK(peak(segments(12, 0x7ff)) < bound(12, 1));
    CHECK(peak(segments(12, 0x444)) < bound(4, 4));
  }
}

TEST_CASE("recomputed stages that overlap are an error") {
  Window window(options_of(3, 4), DType::f32, 5, 9);
  for (const std::vector<RecomputedStages>& bad :
       {std::vector<RecomputedStages>{{1, 3}, {2, 4}}, {{2, 2}}, {{4, 6}}, {{-1, 2}}}) {
    CHECK(contains(invalid_argument_text([&] { window.add_gradients(window.batches[0], bad); }),
                   "segments in order within 0..5"));
  }
}

/// Whether what is told to be final is final, in a tape with several forward passes; how often it is told.
int64_t told(Window& window, const std::function<std::vector<Variable>(Tape&)>& record) {
  const Tensor& gradients = window.model.parameters.gradients();
  fill_zero(gradients, window.runtime.stream());
  std::vector<std::pair<int64_t, std::vector<float>>> seen;
  Tape tape(window.runtime);
  tape.on_weight_gradients([&](int64_t first) {
    const float* const begin = gradients.data<float>();
    seen.emplace_back(first, std::vector<float>(begin + first, begin + gradients.elements()));
  });
  const std::vector<Variable> losses = record(tape);
  tape.backward(losses, std::vector<Tensor>(losses.size(), window.seed));
  int64_t before = gradients.elements();
  for (const auto& [first, values] : seen) {
    CHECK(first < before);
    before = first;
    CHECK(std::equal(values.begin(), values.end(), gradients.data<float>() + first));
    CHECK(std::any_of(values.begin(), values.end(), [](float value) { return value != 0.0f; }));
  }
  CHECK(before == 0);
  return static_cast<int64_t>(seen.size());
}

TEST_CASE("backward tells when gradients are final") {
  Window window(options_of(4, 8), DType::f32, 20, 60);
  const auto loss = [&](Tape& tape, const Variable& prediction, size_t batch) {
    return ops::masked_loss(tape, prediction, window.batches[batch].target, window.batches[batch].mask).sum;
  };
  const auto run = [&](Tape& tape, size_t batch, const std::vector<RecomputedStages>& recomputed) {
    return loss(tape, predict(window.model, tape, window.batches[batch].graph, recomputed), batch);
  };
  CHECK(gradient_buckets(window.model, 1).size() == 6);  // stages
  CHECK(gradient_buckets(window.model, int64_t{1} << 30) == std::vector<int64_t>{0});
  CHECK(told(window, [&](Tape& tape) { return std::vector{run(tape, 0, {})}; }) == 6);
  CHECK(told(window, [&](Tape& tape) { return std::vector{run(tape, 0, segments(4, 7))}; }) == 6);
  CHECK(told(window, [&](Tape& tape) { return std::vector{run(tape, 0, segments(4, 2))}; }) == 4);
  // Two passes: gradients are final when both are done.
  CHECK(told(window, [&](Tape& tape) {
          return std::vector{run(tape, 0, {}), run(tape, 1, segments(4, 2))};
        }) == 6);
  // The first pass is segments; the last of them has weights that the second pass begins, and ends after it.
  CHECK(told(window, [&](Tape& tape) {
          return std::vector{run(tape, 0, {{0, 3}, {3, 6}}), run(tape, 1, {})};
        }) == 2);
  // The first pass is one segment, which ends last.
  CHECK(told(window, [&](Tape& tape) {
          tape.begin_weights(0);
          const Variables first = checkpoint(
              tape, "first pass",
              [&](Tape& inner, const Variables& inputs) {
                return Variables{
                    forward(window.model, inner, window.batches[0].graph, {inputs[0], inputs[1]}).front()};
              },
              input_values(tape, window.batches[0].graph));
          return std::vector{loss(tape, first.front(), 0), run(tape, 1, {})};
        }) == 1);
}
