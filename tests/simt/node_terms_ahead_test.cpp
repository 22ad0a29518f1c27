// SPDX-License-Identifier: Apache-2.0
// Node terms of the next block made in the launch that writes the nodes: the bits of a launch of their own,
// wherever blocks follow each other on a tape; and where they are not made, and what is said then.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model_run.h"

namespace meshgrad::test {
namespace {

using Segments = std::vector<RecomputedStages>;

struct Case {
  int64_t width = 64;
  DType dtype = DType::f16;
  Activation activation = Activation::relu;
  int64_t hidden_layers = 1;
  std::vector<std::string> sets{"mesh"};
};
constexpr int64_t kBlocks = 3, kNodes = 41;

/// A model of three blocks, a batch, and what a pass through it launches and says.
class Blocks {
 public:
  explicit Blocks(const Case& made)
      : runtime_({.device = {DeviceKind::cuda, 0},
                  .log = [this](LogLevel, std::string_view text) { messages_.emplace_back(text); }}) {
    ModelCase options = model_case(4, 2, made.width, kBlocks);
    options.edge_set_names = made.sets;
    options.edge_inputs.assign(made.sets.size(), 3);
    options.activation = made.activation;
    options.hidden_layers = made.hidden_layers;
    model_ = make_model(options, runtime_, made.dtype, 1);
    RandomMatrices random(31);
    const auto values = [&](int64_t rows, int64_t width, DType stored) {
      return to_tensor(runtime_, stored_as(stored, random.normal(rows, width)), stored);
    };
    batch_.nodes = kNodes;
    batch_.node_features = values(kNodes, 4, made.dtype);
    for (const std::string& name : made.sets) {
      EdgeSet set{name, to_graph(runtime_, random_edges(random, kNodes, 101)), {}};
      set.features = values(set.graph.edges, 3, made.dtype);
      batch_.edge_sets.push_back(std::move(set));
    }
    target_ = values(kNodes, 2, DType::f32);
    const std::vector<uint8_t> mask(static_cast<size_t>(kNodes), 1);
    mask_ = Tensor::from<uint8_t>(runtime_, mask, Shape{kNodes}, Tag::data);
    const double one[] = {1.0};
    seed_ = Tensor::from<double>(runtime_, one, Shape{1}, Tag::workspace);
  }

  struct Outcome {
    Tensor prediction, gradients;  ///< on the host
    int64_t forward = 0, all = 0;  ///< launches of node_terms_forward
  };
  /// Forward and backward; `apart`: stage after stage, so that no stage knows of the next.
  Outcome train(bool apart, const Segments& recomputed = {}) {
    fill_zero(model_.parameters.gradients(), runtime_.stream());
    launches();
    Tape tape(runtime_);
    const Variable prediction =
        apart ? stages(tape) : forward(model_, tape, batch_, input_values(tape, batch_), recomputed).front();
    Outcome outcome;
    outcome.prediction = to_host(prediction.value(), runtime_.stream());
    outcome.forward = launches();
    const LossSum loss = ops::masked_loss(tape, prediction, target_, mask_);
    tape.backward(loss.sum, seed_);
    outcome.gradients = to_host(model_.parameters.gradients(), runtime_.stream());
    outcome.all = outcome.forward + launches();
    return outcome;
  }
  Tensor predict_on(Runtime& runtime) {
    Tape tape(runtime, Tape::Mode::evaluate);
    return predict(model_, tape, batch_).value();
  }
  int64_t launches() {
    runtime_.stream().synchronize();
    const std::vector<simt::LaunchReport> reports = simt::take_reports();
    return std::count_if(reports.begin(), reports.end(), [](const simt::LaunchReport& report) {
      return report.name == "node_terms_forward";
    });
  }
  Runtime& runtime() { return runtime_; }
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  Variable stages(Tape& tape) const {
    Values values = input_values(tape, batch_);
    for (size_t s = 0; s < model_.stages.size(); ++s)
      values = run_stage(model_, tape, batch_, static_cast<int64_t>(s), values);
    return values.front();
  }

  std::vector<std::string> messages_;
  Runtime runtime_;
  Model model_;
  GraphBatch batch_;
  Tensor target_, mask_, seed_;
};

TEST_CASE("a block makes the next block's node terms") {
  for (const Case& made : {Case{}, Case{64, DType::bf16, Activation::silu, 2}}) {
    CAPTURE(made.width);
    CAPTURE(name_of(made.activation));
    Blocks blocks(made);
    const Blocks::Outcome apart = blocks.train(true), ahead = blocks.train(false);
    CHECK(apart.forward == kBlocks);
    CHECK(ahead.forward == 1);
    CHECK(ahead.all == 1 + kBlocks);  // backward recomputes them
    CHECK(equal_bits(ahead.prediction, apart.prediction));
    CHECK(equal_bits(ahead.gradients, apart.gradients));
    CHECK(magnitude(to_matrix(ahead.gradients)) > 0.0);
    CHECK(blocks.messages().empty());
  }
}

TEST_CASE("recomputed segments make node terms ahead inside") {
  Blocks blocks({});
  const Blocks::Outcome apart = blocks.train(true);
  const Blocks::Outcome whole = blocks.train(false, {{1, 4}}), two = blocks.train(false, {{1, 3}, {3, 4}}),
                        inner = blocks.train(false, {{2, 3}});
  CHECK(whole.forward == 1);
  CHECK(two.forward == 2);
  CHECK(inner.forward == 3);
  CHECK(whole.all == 1 + 1 + kBlocks);
  for (const Blocks::Outcome& outcome : {whole, two, inner}) {
    CHECK(equal_bits(outcome.prediction, apart.prediction));
    CHECK(equal_bits(outcome.gradients, apart.gradients));
  }
}

TEST_CASE("a captured prediction makes node terms ahead") {
  Blocks blocks({});
  const Tensor plain = to_host(blocks.train(true).prediction, blocks.runtime().stream());
  Tensor out = unwritten(blocks.runtime(), plain.shape(), plain.dtype());
  CapturedWork captured(blocks.runtime(), "prediction",
                        [&](Runtime& own) { copy(blocks.predict_on(own), out, own.stream()); });
  for (int run = 0; run < 3; ++run) {
    captured.run();
    CHECK(equal_bits(to_host(out, blocks.runtime().stream()), plain));
  }
  CHECK(captured.recorded());
}

TEST_CASE("node terms that cannot be made ahead are logged once") {
  const auto launches = [](Blocks& blocks) {
    blocks.launches();
    blocks.predict_on(blocks.runtime());
    return blocks.launches();
  };
  Blocks deep(Case{.hidden_layers = 3});
  for (int i = 0; i < 2; ++i) CHECK(launches(deep) == kBlocks);
  CHECK(deep.messages() == std::vector<std::string>{"node terms have a launch of their own: 4 layers and 2 "
                                                    "inputs leave no place for two more weights"});
  // A multiprocessor of compute capability 8.6 or 8.9 has 100 KiB: two blocks of 34,304 bytes at width 64,
  // and one of 50,688 with node terms. One of 8.0 has 164 KiB.
  for (const int kibibytes : {99, 163}) {
    CAPTURE(kibibytes);
    Blocks narrow(Case{.hidden_layers = 2});
    const Tensor usual = to_host(narrow.predict_on(narrow.runtime()), narrow.runtime().stream());
    simt::set_shared_bytes(kibibytes * 1024);
    for (int i = 0; i < 2; ++i) CHECK(launches(narrow) == (kibibytes == 99 ? kBlocks : 1));
    const Tensor now = to_host(narrow.predict_on(narrow.runtime()), narrow.runtime().stream());
    simt::set_shared_bytes(0);
    CHECK(equal_bits(now, usual));
    std::vector<std::string> expected;
    if (kibibytes == 99)
      expected.push_back(
          "node terms have a launch of their own: with them, 1 instead of 2 thread blocks "
          "fit into the 102400 bytes of shared memory of a multiprocessor");
    CHECK(narrow.messages() == expected);
  }
  Blocks two(Case{.sets = {"mesh", "world"}});
  CHECK(launches(two) == 2 * kBlocks);
}

}  // namespace
}  // namespace meshgrad::test
