// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/nn/model.h>

namespace meshgrad {
namespace {

void check_recomputed(std::span<const RecomputedStages> recomputed, const Model& model) {
  const auto stages = static_cast<int64_t>(model.stages.size());
  int64_t done = 0;
  for (const RecomputedStages& segment : recomputed) {
    if (segment.begin < done || segment.end <= segment.begin || segment.end > stages) {
      throw invalid_argument("forward: recomputed stages",
                             "segments in order within 0.." + std::to_string(stages),
                             std::to_string(segment.begin) + ".." + std::to_string(segment.end));
    }
    done = segment.end;
  }
}

Values recompute_stages(const Model& model, Tape& tape, const GraphBatch& batch,
                        const RecomputedStages& segment, const Values& before) {
  const auto name_of_stage = [&](int64_t stage) -> const std::string& {
    return model.stages[static_cast<size_t>(stage)].name;
  };
  std::string name = name_of_stage(segment.begin);
  if (segment.end - segment.begin > 1) name.append("..").append(name_of_stage(segment.end - 1));
  return checkpoint(
      tape, name,
      [&model, &batch, segment](Tape& inner, Values inside) {
        for (int64_t s = segment.begin; s < segment.end; ++s) {
          // Their gradients are final with the segment's; a later pass must not tell it for them.
          inner.begin_weights(model.stages[static_cast<size_t>(s)].first_weight);
          inner.set_stage_follows(s + 1 < segment.end);
          inside = run_stage(model, inner, batch, s, inside);
        }
        return inside;
      },
      before, segment.keep);
}

void check_arguments(const Model& model, const GraphBatch& batch) {
  if (!model.parameters.values().defined()) {
    throw invalid_argument("forward: model.parameters", "allocated parameters", "none",
                           "call model.parameters.allocate(runtime, dtype, seed) first");
  }
  batch.check();
}

}  // namespace

Values input_values(const Tape& tape, const GraphBatch& batch) {
  Values features{tape.input(batch.node_features, batch.node_rows())};
  for (const EdgeSet& set : batch.edge_sets)
    features.push_back(tape.input(set.features, set.graph.edge_rows()));
  return features;
}

Values run_stage(const Model& model, Tape& tape, const GraphBatch& batch, int64_t stage,
                 const Values& before) {
  const Stage& link = model.stages[static_cast<size_t>(stage)];
  const MemoryScope scope(tape.runtime().allocator(), link.name);
  const Span span(link.name, "stage");
  return link.run(tape, model.parameters, batch, before);
}

std::vector<int64_t> gradient_buckets(const Model& model, int64_t elements) {
  std::vector<int64_t> begins{0};
  for (const Stage& stage : model.stages)
    if (stage.first_weight >= begins.back() + elements) begins.push_back(stage.first_weight);
  return begins;
}

Values forward(const Model& model, Tape& tape, const GraphBatch& batch, const Values& inputs,
               std::span<const RecomputedStages> recomputed, const StageObserver& observer) {
  check_arguments(model, batch);
  check_recomputed(recomputed, model);
  if (observer && !recomputed.empty())
    throw invalid_argument("forward", "an observer, or stages to recompute",
                           "an observer and " + std::to_string(recomputed.size()) + " recomputed segments");
  Values values = inputs;
  int64_t stage = 0;
  const auto run_until = [&](int64_t end) {
    for (; stage < end; ++stage) {
      tape.begin_weights(model.stages[static_cast<size_t>(stage)].first_weight);
      tape.set_stage_follows(stage + 1 < end);
      values = run_stage(model, tape, batch, stage, values);
      if (observer) observer(stage, values);
    }
  };
  for (const RecomputedStages& segment : recomputed) {
    run_until(segment.begin);
    tape.begin_weights(model.stages[static_cast<size_t>(segment.begin)].first_weight);
    values = recompute_stages(model, tape, batch, segment, values);
    stage = segment.end;
  }
  run_until(static_cast<int64_t>(model.stages.size()));
  return values;
}

Values forward(const Model& model, Tape& tape, const GraphBatch& batch,
               std::span<const RecomputedStages> recomputed) {
  check_arguments(model, batch);  // before the features are read
  return forward(model, tape, batch, input_values(tape, batch), recomputed);
}

}  // namespace meshgrad
