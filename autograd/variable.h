// SPDX-License-Identifier: Apache-2.0
// Variable: a value on the tape, with a slot for its gradient. Weight: a parameter as ops see it.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <memory>
#include <string>

namespace meshgrad {

/// A handle; copies share the value and the slot. A default-constructed Variable is absent.
class Variable {
 public:
  Variable() = default;
  /// `needs_gradient`: backward fills `gradient()`, of dtype `gradient_dtype` (the value's, unless said).
  Variable(Tensor value, bool needs_gradient) : Variable(value, needs_gradient, value.dtype()) {}
  Variable(Tensor value, bool needs_gradient, DType gradient_dtype)
      : state_(std::make_shared<State>(
            State{std::move(value), {}, gradient_dtype, needs_gradient, nullptr, {}, 0})) {}
  /// As the above; only the rows that `rows` counts are real.
  Variable(Tensor value, bool needs_gradient, Rows rows) : Variable(std::move(value), needs_gradient) {
    state_->count = rows.count;
  }

  explicit operator bool() const { return state_ != nullptr; }
  const Tensor& value() const { return state_->value; }
  bool needs_gradient() const { return state_ != nullptr && state_->needs_gradient; }
  DType gradient_dtype() const { return state_->gradient_dtype; }
  /// Those of the value, and how many of them are real.
  Rows rows() const { return {state_->value.rows(), state_->count}; }
  /// Undefined until a backward pass reached it, and again after the op that made this value consumed it.
  const Tensor& gradient() const { return state_->gradient; }

 private:
  friend class Tape;
  friend class SegmentRun;
  struct State {
    Tensor value;
    Tensor gradient;
    DType gradient_dtype;
    bool needs_gradient;
    const int64_t* count;  // of the rows, in device memory; null: all of them
    std::string name;      // of an op's output
    uint64_t id;           // of an op's output, in a root tape and all its inner ones; 0: made elsewhere
    bool stays = true;     // in memory: somebody reads the value who is no segment
    bool lent = false;     // to the segment that runs now, as an input
  };
  std::shared_ptr<State> state_;
};

/// Parameters are no Variables: their gradients live in one arena and are accumulated into, over a whole
/// window of micro-batches. An undefined gradient marks a frozen weight; an undefined value an absent one.
struct Weight {
  Tensor value;
  Tensor gradient;
  Weight row_range(int64_t begin, int64_t end) const {
    return {value.row_range(begin, end), gradient.defined() ? gradient.row_range(begin, end) : Tensor()};
  }
};

}  // namespace meshgrad
