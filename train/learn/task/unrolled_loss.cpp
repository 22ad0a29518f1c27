// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/task/teacher.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <algorithm>
#include <string>

namespace meshgrad {
namespace {

/// What a frame begins with, each absent at first: the error of the state; with second changes, the error of
/// the fields; the loss so far, and the penalties in it.
struct State {
  Variable error, position;
  LossTerms loss;
};
// As segments take and return it.
Variables variables_of(const State& state) {
  return {state.error, state.position, state.loss.sum, state.loss.penalty};
}
State state_of(const Variables& variables) {
  return {variables[0], variables[1], {variables[2], variables[3]}};
}

/// Adds what the prediction itself costs. The penalty alone is for the log: nothing needs its gradient.
void add_penalty(Tape& tape, const std::optional<LossForm>& form, const Variable& prediction,
                 const Tensor& mask, LossTerms& loss) {
  if (!form) return;
  loss.sum = ops::masked_loss(tape, loss.sum, {prediction}, mask, *form).sum;
  loss.penalty = ops::masked_loss(tape, loss.penalty, {prediction}, mask, *form).sum;
}

/// Of targets on graphs, which are the second value.
Variable graph_error(Tape& tape, const Values& values, const Tensor& target, const Batch& batch) {
  return ops::accumulate_error(tape, {}, values[1], target, batch.tensor("graph_mask"));
}

/// Adds what their errors cost.
void add_graphs(Tape& tape, const std::optional<LossForm>& form, const Variable& error, const Batch& batch,
                LossTerms& loss) {
  if (form) loss.sum = ops::masked_loss(tape, loss.sum, {error}, batch.tensor("graph_mask"), *form).sum;
}

/// What a frame gives.
struct Predicted {
  Variable error;   ///< of the state after it
  Variable graphs;  ///< of targets on graphs, where there are any
  Variable output;  ///< of the model, where it has a penalty
};

/// The frames of a batch, by number. Segments hold copies; what those refer to outlives the tape's entries.
class FrameRuns {
 public:
  FrameRuns(const Model& model, const Batch& batch, const UnrolledFrames& frames,
            const Recomputation& recomputation)
      : model_(&model),
        batch_(&batch),
        stages_(&recomputation.stages),
        unit_(recomputation.segments),
        frames_(frames) {}

  /// Frames [begin, end), each followed by its loss, so that gradients are added in one order whatever the
  /// segments are. The last frame is not a segment, since its backward runs immediately.
  State run(Tape& tape, int64_t begin, int64_t end, State state,
            std::vector<Tensor>* errors = nullptr) const {
    const Tensor& mask = batch_->tensor("mask");
    for (int64_t k = begin; k < end; ++k) {
      const bool recomputed = unit_ != SegmentUnit::block && k + 1 < end;
      const Predicted predicted =
          recomputed ? predict_recomputed(tape, k, state.error) : predict(tape, k, state.error);
      state.error = predicted.error;
      Variable error = state.error;
      if (frames_.second_change) {
        // In the first frame velocity and position have the same error.
        if (state.position) error = ops::accumulate_error(tape, state.position, error, {}, mask);
        state.position = error;
      }
      state.loss.sum = ops::masked_loss(tape, state.loss.sum, {error}, mask, frames_.form).sum;
      add_graphs(tape, frames_.graphs, predicted.graphs, *batch_, state.loss);
      add_penalty(tape, frames_.penalty, predicted.output, mask, state.loss);
      if (errors != nullptr) errors->push_back(error.value());
    }
    return state;
  }

  /// The same as one segment.
  State run_recomputed(Tape& tape, int64_t begin, int64_t end, const State& state) const {
    return state_of(checkpoint(
        tape, "frames." + std::to_string(begin) + ".." + std::to_string(end - 1),
        [frames = *this, begin, end](Tape& inner, const Variables& inside) {
          return variables_of(frames.run(inner, begin, end, state_of(inside)));
        },
        variables_of(state)));
  }

 private:
  static std::string name(int64_t frame) { return "frame." + std::to_string(frame); }

  /// The state's error after a frame from the one before it.
  Predicted predict(Tape& tape, int64_t frame, const Variable& before) const {
    const MemoryScope scope(tape.runtime().allocator(), name(frame));
    const Span span(name(frame), "stage");
    if (frame == 0) {
      const Values values = forward(*model_, tape, batch_->graph, *stages_);
      return predicted(tape, {}, values, batch_->tensor("target"),
                       frames_.graphs ? batch_->tensor("graph_target") : Tensor());
    }
    const UnrolledFrame data = unrolled_frame(*batch_, frame);
    Values inputs = input_values(tape, batch_->graph);
    inputs.front() = ops::add_columns(tape, data.nodes, before, batch_->tensor("unroll.source"),
                                      batch_->tensor("unroll.ratio"));
    const Values values = forward(*model_, tape, batch_->graph, inputs, *stages_);
    return predicted(tape, before, values, data.target, data.graph_target);
  }
  /// An output that nothing reads is not kept.
  Predicted predicted(Tape& tape, const Variable& before, const Values& values, const Tensor& target,
                      const Tensor& graph_target) const {
    return {ops::accumulate_error(tape, before, values.front(), target, batch_->tensor("mask")),
            frames_.graphs ? graph_error(tape, values, graph_target, *batch_) : Variable(),
            frames_.penalty ? values.front() : Variable()};
  }
  Predicted predict_recomputed(Tape& tape, int64_t frame, const Variable& before) const {
    const auto segment = [frames = *this, frame](Tape& inner, const Variables& inside) {
      const Predicted predicted = frames.predict(inner, frame, inside.front());
      return Variables{predicted.error, predicted.graphs, predicted.output};
    };
    const Variables outputs = checkpoint(tape, name(frame), segment, {before});
    return {outputs[0], outputs[1], outputs[2]};
  }

  const Model* model_;
  const Batch* batch_;
  const std::vector<RecomputedStages>* stages_;
  SegmentUnit unit_;
  UnrolledFrames frames_;
};

}  // namespace

int64_t unrolled_rows(int64_t nodes) {
  constexpr int64_t kMultiple = 128;  // of 2 bytes
  return (nodes + kMultiple - 1) / kMultiple * kMultiple;
}

UnrolledFrame unrolled_frame(const Batch& batch, int64_t frame) {
  const int64_t begin = (frame - 1) * unrolled_rows(batch.graph.nodes);
  const int64_t end = begin + batch.graph.nodes;
  UnrolledFrame data{batch.tensor("unroll.nodes").row_range(begin, end),
                     batch.tensor("unroll.target").row_range(begin, end)};
  if (batch.has("unroll.graph_target")) {
    const int64_t graphs = batch.tensor("graph_target").rows(), first = (frame - 1) * unrolled_rows(graphs);
    data.graph_target = batch.tensor("unroll.graph_target").row_range(first, first + graphs);
  }
  return data;
}

LossTerms unrolled_loss(Tape& tape, const Model& model, const Batch& batch, const UnrolledFrames& frames,
                        const Recomputation& recomputation, std::vector<Tensor>* errors) {
  const bool sequences = recomputation.segments == SegmentUnit::sequence;
  check_internal(errors == nullptr || (frames.count > 1 && !sequences), "a batch without errors of frames");
  if (frames.count == 1) {
    const Values values = forward(model, tape, batch.graph, recomputation.stages);
    const Tensor& mask = batch.tensor("mask");
    LossTerms loss;
    if (batch.tensor("target").width() > 0)
      loss.sum = field_loss(tape, values.front(), batch, frames.form, frames.teacher);
    if (frames.graphs)
      add_graphs(tape, frames.graphs, graph_error(tape, values, batch.tensor("graph_target"), batch), batch,
                 loss);
    add_penalty(tape, frames.penalty, values.front(), mask, loss);
    return loss;
  }
  const FrameRuns run(model, batch, frames, recomputation);
  const int64_t length = sequences ? sequence_length(frames.count) : frames.count;
  State state;
  for (int64_t begin = 0; begin < frames.count; begin += length) {
    const int64_t end = std::min(begin + length, frames.count);
    state = end < frames.count ? run.run_recomputed(tape, begin, end, state)
                               : run.run(tape, begin, end, std::move(state), errors);
  }
  return state.loss;
}

}  // namespace meshgrad
