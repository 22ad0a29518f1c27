// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/task/unrolled_loss.h>

#include <algorithm>
#include <string>

namespace meshgrad {
namespace {

/// What a frame begins with, each absent at first: how far the state is off; with second changes, how far the
/// fields are off; the loss so far.
struct State {
  Variable deviation, position, loss;
};
// As segments take and return it.
Variables variables_of(const State& state) { return {state.deviation, state.position, state.loss}; }
State state_of(const Variables& variables) { return {variables[0], variables[1], variables[2]}; }

/// The frames of a batch, by number. Segments hold copies; what those refer to outlives the tape's entries.
class Frames {
 public:
  Frames(const MeshGraphNet& model, const Batch& batch, const Recomputation& recomputation)
      : model_(&model), batch_(&batch), stages_(&recomputation.stages), unit_(recomputation.segments) {}

  /// Frames [begin, end), each with its loss behind it, so that gradients meet in one order whatever the
  /// segments are. The last one's backward comes at once: it is none.
  State run(Tape& tape, int64_t begin, int64_t end, State state,
            std::vector<Tensor>* values = nullptr) const {
    for (int64_t k = begin; k < end; ++k) {
      const bool again = unit_ != SegmentUnit::block && k + 1 < end;
      state.deviation = again ? predict_twice(tape, k, state.deviation) : predict(tape, k, state.deviation);
      Variable error = state.deviation;
      if (batch_->unroll.second_change) {
        // The first frame's velocity is off by what its position is.
        if (state.position) error = ops::accumulate_error(tape, state.position, error, {}, batch_->mask);
        state.position = error;
      }
      state.loss = ops::masked_loss(tape, state.loss, {error}, batch_->mask).sum;
      if (values != nullptr) values->push_back(error.value());
    }
    return state;
  }

  /// The same as one segment.
  State run_twice(Tape& tape, int64_t begin, int64_t end, const State& state) const {
    return state_of(checkpoint(
        tape, "frames." + std::to_string(begin) + ".." + std::to_string(end - 1),
        [frames = *this, begin, end](Tape& inner, const Variables& inside) {
          return variables_of(frames.run(inner, begin, end, state_of(inside)));
        },
        variables_of(state)));
  }

 private:
  static std::string name(int64_t frame) { return "frame." + std::to_string(frame); }

  /// The deviation behind a frame from the one before it.
  Variable predict(Tape& tape, int64_t frame, const Variable& before) const {
    const MemoryScope scope(tape.runtime().allocator(), name(frame));
    const Unroll& unroll = batch_->unroll;
    if (frame == 0)
      return ops::accumulate_error(tape, {}, model_->forward(tape, *batch_, *stages_), batch_->target,
                                   batch_->mask);
    const Unroll::Step data = unroll.step(frame - 1, batch_->nodes);
    const Variable nodes = ops::add_columns(tape, data.node_features, before, unroll.source, unroll.ratio);
    return ops::accumulate_error(tape, before, model_->forward(tape, *batch_, *stages_, nodes), data.target,
                                 batch_->mask);
  }
  Variable predict_twice(Tape& tape, int64_t frame, const Variable& before) const {
    const auto segment = [frames = *this, frame](Tape& inner, const Variables& inside) {
      return Variables{frames.predict(inner, frame, inside.front())};
    };
    return checkpoint(tape, name(frame), segment, {before}).front();
  }

  const MeshGraphNet* model_;
  const Batch* batch_;
  const std::vector<RecomputedStages>* stages_;
  SegmentUnit unit_;
};

}  // namespace

Variable batch_loss(Tape& tape, const MeshGraphNet& model, const Batch& batch,
                    const Recomputation& recomputation, std::vector<Tensor>* errors) {
  const int64_t count = batch.unroll.further + 1;
  const bool sequences = recomputation.segments == SegmentUnit::sequence;
  check_internal(errors == nullptr || (count > 1 && !sequences), "a batch whose errors cannot be had");
  if (count == 1)
    return ops::masked_loss(tape, model.forward(tape, batch, recomputation.stages), batch.target, batch.mask)
        .sum;
  const Frames frames(model, batch, recomputation);
  const int64_t length = sequences ? sequence_length(count) : count;
  State state;
  for (int64_t begin = 0; begin < count; begin += length) {
    const int64_t end = std::min(begin + length, count);
    state = end < count ? frames.run_twice(tape, begin, end, state)
                        : frames.run(tape, begin, end, std::move(state), errors);
  }
  return state.loss;
}

}  // namespace meshgrad
