// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/task/unrolled_loss.h>

#include <algorithm>
#include <string>

namespace meshgrad {
namespace {

/// What a frame begins with, each absent at first: the error of the state; with second changes, the error of
/// the fields; the loss so far.
struct State {
  Variable error, position, loss;
};
// As segments take and return it.
Variables variables_of(const State& state) { return {state.error, state.position, state.loss}; }
State state_of(const Variables& variables) { return {variables[0], variables[1], variables[2]}; }

/// The frames of a batch, by number. Segments hold copies; what those refer to outlives the tape's entries.
class FrameRuns {
 public:
  FrameRuns(const Model& model, const Batch& batch, bool second_change, const Recomputation& recomputation)
      : model_(&model),
        batch_(&batch),
        stages_(&recomputation.stages),
        unit_(recomputation.segments),
        second_change_(second_change) {}

  /// Frames [begin, end), each followed by its loss, so that gradients are added in one order whatever the
  /// segments are. The last frame is not a segment, since its backward runs immediately.
  State run(Tape& tape, int64_t begin, int64_t end, State state,
            std::vector<Tensor>* errors = nullptr) const {
    const Tensor& mask = batch_->tensor("mask");
    for (int64_t k = begin; k < end; ++k) {
      const bool recomputed = unit_ != SegmentUnit::block && k + 1 < end;
      state.error = recomputed ? predict_recomputed(tape, k, state.error) : predict(tape, k, state.error);
      Variable error = state.error;
      if (second_change_) {
        // In the first frame velocity and position have the same error.
        if (state.position) error = ops::accumulate_error(tape, state.position, error, {}, mask);
        state.position = error;
      }
      state.loss = ops::masked_loss(tape, state.loss, {error}, mask).sum;
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

  /// The state's error behind a frame from the one before it.
  Variable predict(Tape& tape, int64_t frame, const Variable& before) const {
    const MemoryScope scope(tape.runtime().allocator(), name(frame));
    const Tensor& mask = batch_->tensor("mask");
    if (frame == 0) {
      const Values values = forward(*model_, tape, batch_->graph, *stages_);
      return ops::accumulate_error(tape, {}, values.front(), batch_->tensor("target"), mask);
    }
    const UnrolledFrame data = unrolled_frame(*batch_, frame);
    Values inputs = input_values(tape, batch_->graph);
    inputs.front() = ops::add_columns(tape, data.nodes, before, batch_->tensor("unroll.source"),
                                      batch_->tensor("unroll.ratio"));
    const Values values = forward(*model_, tape, batch_->graph, inputs, *stages_);
    return ops::accumulate_error(tape, before, values.front(), data.target, mask);
  }
  Variable predict_recomputed(Tape& tape, int64_t frame, const Variable& before) const {
    const auto segment = [frames = *this, frame](Tape& inner, const Variables& inside) {
      return Variables{frames.predict(inner, frame, inside.front())};
    };
    return checkpoint(tape, name(frame), segment, {before}).front();
  }

  const Model* model_;
  const Batch* batch_;
  const std::vector<RecomputedStages>* stages_;
  SegmentUnit unit_;
  bool second_change_;
};

}  // namespace

int64_t unrolled_rows(int64_t nodes) {
  constexpr int64_t kMultiple = 128;  // of 2 bytes
  return (nodes + kMultiple - 1) / kMultiple * kMultiple;
}

UnrolledFrame unrolled_frame(const Batch& batch, int64_t frame) {
  const int64_t begin = (frame - 1) * unrolled_rows(batch.graph.nodes);
  const int64_t end = begin + batch.graph.nodes;
  return {batch.tensor("unroll.nodes").row_range(begin, end),
          batch.tensor("unroll.target").row_range(begin, end)};
}

Variable unrolled_loss(Tape& tape, const Model& model, const Batch& batch, const UnrolledFrames& frames,
                       const Recomputation& recomputation, std::vector<Tensor>* errors) {
  const bool sequences = recomputation.segments == SegmentUnit::sequence;
  check_internal(errors == nullptr || (frames.count > 1 && !sequences), "a batch without errors of frames");
  if (frames.count == 1) {
    const Values values = forward(model, tape, batch.graph, recomputation.stages);
    return ops::masked_loss(tape, values.front(), batch.tensor("target"), batch.tensor("mask")).sum;
  }
  const FrameRuns run(model, batch, frames.second_change, recomputation);
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
