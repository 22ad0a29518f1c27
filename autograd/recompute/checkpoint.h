// SPDX-License-Identifier: Apache-2.0
// Segments of a forward pass that are computed again on the way back instead of being kept. Source of the
// method: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost" (2016).
#pragma once
#include <meshgrad/autograd/recompute/keep.h>
#include <meshgrad/kernels/mlp.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What goes into a segment, and what comes out of it: kMaxMlpInputs at most, or InvalidArgument is thrown.
using Variables = PerInput<Variable>;

/// A segment's function. It lies in memory that is used again.
class Segment {
 public:
  template <class Run>
  Segment(const Recycling<std::byte>& memory, Run run)
      : run_(make_recycled<Run>(memory, std::move(run))),
        call_([](const void* held, Tape& tape, const Variables& inputs) -> Variables {
          return (*static_cast<const Run*>(held))(tape, inputs);
        }) {}
  Variables operator()(Tape& tape, const Variables& inputs) const { return call_(run_.get(), tape, inputs); }

 private:
  std::shared_ptr<const void> run_;
  Variables (*call_)(const void*, Tape&, const Variables&);
};

/// As checkpoint(), on a tape that records.
Variables run_segment(Tape& tape, std::string_view name, Segment segment, const Variables& inputs, Keep keep);

/// Calls `run(Tape&, const Variables&)`, which returns Variables, and keeps its inputs, and what `keep` says.
/// Backward runs it again, on an inner tape and on the same variables, but for the ops whose outputs neither
/// a backward function nor such an op reads; then it walks back through it. Gradients are added where, and in
/// the order in which, they would be without: they are the same to the last bit. A fused op that is not run
/// again redoes its hidden activations in the tile.
///
/// `run` does ops on the tape it is given, from the variables it is given: the same ones whenever it is
/// called. What it captures by reference must outlive the tape's entries. It may read other variables of the
/// outer tape, weights and anything else; absent variables are allowed on either side.
///
/// Segments nest. On a tape that evaluates, this is a plain call.
template <class Run>
Variables checkpoint(Tape& tape, std::string_view name, const Run& run, const Variables& inputs,
                     Keep keep = Keep::inputs) {
  if (tape.evaluating()) return run(tape, inputs);
  return run_segment(tape, name, Segment(tape.runtime().allocator().recycling(), run), inputs, keep);
}

}  // namespace meshgrad
#pragma GCC visibility pop
