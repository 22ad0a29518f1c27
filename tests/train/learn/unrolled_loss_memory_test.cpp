// SPDX-License-Identifier: Apache-2.0
// What unrolled training takes of memory: one model a step, or with segments one model and little more; and
// the same gradients whatever is recomputed.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <cmath>

#include "train/unroll_case.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;
using test::ScratchDirectory;
using test::UnrollCase;

constexpr SegmentUnit kUnits[] = {SegmentUnit::block, SegmentUnit::frame, SegmentUnit::sequence};

TEST_CASE("gradients are bit-identical whatever is recomputed") {
  for (const DType precision : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
      for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
        UnrollCase c({.predict = predict, .precision = precision, .path = path, .side = 3});
        for (const int64_t steps : {1, 2, 4, 7}) {
          const Batch batch = c.batch(steps, {{0, 2, 0}});
          const Tensor plain = c.gradients(batch, {}).values;
          CHECK(test::magnitude(test::to_matrix(plain)) > 0.0);
          for (const RecomputeConfig& mode :
               {RecomputeConfig{}, RecomputeConfig{.mode = RecomputeMode::block},
                RecomputeConfig{.mode = RecomputeMode::sqrt, .keep = {"linear", "mlp", "edge_update"}}}) {
            c.config.recompute = mode;
            for (const SegmentUnit unit : kUnits) {
              CAPTURE(name_of(precision));
              CAPTURE(steps);
              CAPTURE(static_cast<int>(mode.mode));
              CAPTURE(static_cast<int>(unit));
              const Recomputation again{
                  .stages = uniform_segments(c.config, c.model), .check = true, .segments = unit};
              CHECK(test::equal_bits(c.gradients(batch, again).values, plain));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("unrolled frames are recomputed twice, single ones once") {
  UnrollCase c({});
  // Of one more frame: what a forward pass runs, and what runs again where it is a segment.
  const auto counts = [&](int64_t steps, SegmentUnit unit) {
    return c.gradients(c.batch(steps), {.segments = unit}).counts;
  };
  const int64_t frame = counts(3, SegmentUnit::block).forwards - counts(2, SegmentUnit::block).forwards;
  const OpCounts two = counts(2, SegmentUnit::frame);
  const int64_t again = two.recomputed;
  CHECK(again > 0);
  CHECK(again < frame);
  for (const int64_t steps : {2, 3, 4, 6}) {
    CAPTURE(steps);
    const OpCounts block = counts(steps, SegmentUnit::block), frames = counts(steps, SegmentUnit::frame);
    CHECK(block.recomputed == 0);
    CHECK(block.segments == 0);
    CHECK(frames.forwards == block.forwards);
    CHECK(frames.segments == steps - 1);
    // A step after the first also shifts its inputs.
    CHECK(frames.recomputed == again * (steps - 1) + (steps - 2));
  }
  // 9 = 3 x 3: two sequences that run again, each of two segments and a last frame; then two segments.
  const OpCounts nine = counts(9, SegmentUnit::sequence);
  CHECK(nine.segments == 2 * (1 + 2) + 2);
  CHECK(nine.forwards == counts(9, SegmentUnit::block).forwards);
  CHECK(nine.recomputed > counts(9, SegmentUnit::frame).recomputed);
  CHECK(nine.recomputed < 2 * nine.forwards);
}

TEST_CASE("unrolled memory grows by a constant when recomputed") {
  UnrollCase c({.width = 32, .blocks = 3, .side = 12, .frames = 40});
  const int64_t nodes = c.batch(1).graph.nodes;
  const int64_t state = nodes * c.features.mesh().fields.outputs * size_of(DType::f32);
  const auto peak = [&](int64_t steps, SegmentUnit unit, RecomputeMode mode = RecomputeMode::off) {
    c.config.recompute.mode = mode;
    const Batch batch = c.batch(steps);
    return c.gradients(batch, {.stages = uniform_segments(c.config, c.model), .segments = unit}).peak;
  };
  // Of a call: what one more of them takes.
  const int64_t one = peak(1, SegmentUnit::block);
  const int64_t model = peak(3, SegmentUnit::block) - peak(2, SegmentUnit::block);
  CHECK(model > one / 2);
  const auto near = [](int64_t a, int64_t b) { return std::abs(a - b) * 50 <= b; };
  for (int64_t steps = 2; steps <= 6; ++steps) {
    CAPTURE(steps);
    CHECK(near(peak(steps, SegmentUnit::block) - one, model * (steps - 1)));
    // A step leaves its state and two scalars, rounded up; after the first there are inputs, too.
    const int64_t frames = peak(steps, SegmentUnit::frame),
                  inputs = nodes * c.features.mesh().fields.node_inputs;
    CHECK(frames <= one + (state + 1536) * steps + inputs * size_of(DType::f32));
    CHECK(peak(steps, SegmentUnit::sequence) <= frames);
    // Blocks within it bring that constant down.
    CHECK(peak(steps, SegmentUnit::frame, RecomputeMode::block) < 9 * frames / 10);
  }
  // With sequences even the states that are kept are as many as the root of the steps.
  CHECK(peak(25, SegmentUnit::sequence) - one < (peak(25, SegmentUnit::frame) - one) / 2);
}

TEST_CASE("a budget holds for all unrolled steps together") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 10));
  config.model.blocks = 6;
  config.unroll.steps = 4;
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  const Model model = make_model(config.model, task.sizes());
  Runtime runtime({.device = {}, .threads = 1});
  const auto choose = [&](SegmentUnit unit, int64_t budget) {
    config.recompute.mode = RecomputeMode::budget;
    config.recompute.segments = unit;
    config.recompute.budget = budget;
    return choose_recomputation(runtime, config, task, {.nodes = 200, .edges = 1100}, model);
  };
  const Recomputation roomy = choose(SegmentUnit::block, int64_t{1} << 30);
  CHECK(roomy.stages.empty());
  constexpr int64_t kBudget = int64_t{5} << 20;
  const Recomputation blocks = choose(SegmentUnit::block, kBudget);
  CHECK_FALSE(blocks.stages.empty());
  CHECK(blocks.predicted_bytes <= kBudget);
  CHECK(blocks.predicted_bytes > kBudget / 2);
  CHECK(choose(SegmentUnit::frame, kBudget).stages.size() < blocks.stages.size());
  const std::string message = message_of([&] { choose(SegmentUnit::block, 1 << 20); });
  CHECK_MESSAGE(contains(message, "or set recompute.segments = \"frame\""), message);
  CHECK(contains(describe({.segments = SegmentUnit::sequence}, model, 7),
                 "recomputing 6 of 7 frames in backward, in runs of 3"));
  CHECK(contains(describe({.stages = {{1, 2}}, .segments = SegmentUnit::frame}, model, 4),
                 "recomputing 3 of 4 frames in backward; within a frame, recomputing 1 of "));
  CHECK(describe({.segments = SegmentUnit::frame}, model, 1).empty());
}

}  // namespace
}  // namespace meshgrad
