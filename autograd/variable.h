// SPDX-License-Identifier: Apache-2.0
// Variable: a value on the tape, with a slot for its gradient. Weight: a parameter as ops see it.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <memory>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Where the gradient of a value is gathered. It knows the value's shape, dtype and rows, and does not keep
/// the value: that is all a backward needs of what it does not read. A handle; copies share the slot. A
/// default-constructed one is of an absent variable.
class GradientSlot {
 public:
  GradientSlot() = default;
  explicit operator bool() const { return state_ != nullptr; }
  bool needs_gradient() const { return state_ != nullptr && state_->needs_gradient; }
  const Shape& shape() const { return state_->shape; }
  DType dtype() const { return state_->dtype; }
  /// Those of the value, and how many of them are real.
  Rows rows() const { return {state_->shape.rows(), state_->count}; }
  /// Undefined until a backward pass reached it, and again after the op that made the value consumed it.
  const Tensor& gradient() const { return state_->gradient; }

 private:
  friend class Variable;
  friend class Tape;
  friend class SegmentRun;
  struct State {
    Shape shape;
    DType dtype;
    bool needs_gradient;
    const int64_t* count;  // of the rows, in device memory; null: all of them
    Tensor gradient;
    std::string name;  // of an op's output, if observed
  };
  explicit GradientSlot(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// A handle; copies share the value and the slot. A default-constructed Variable is absent.
class Variable {
 public:
  Variable() = default;
  /// `needs_gradient`: backward fills `gradient()`, of the value's shape and dtype.
  Variable(Tensor value, bool needs_gradient) : Variable(std::move(value), needs_gradient, Rows()) {}
  /// As the above; only the rows that `rows` counts are real.
  Variable(Tensor value, bool needs_gradient, Rows rows)
      : Variable(std::move(value), needs_gradient, rows, std::allocator<std::byte>()) {}

  explicit operator bool() const { return state_ != nullptr; }
  const Tensor& value() const { return state_->value; }
  const GradientSlot& slot() const { return slot_; }
  bool needs_gradient() const { return slot_.needs_gradient(); }
  Rows rows() const { return slot_.rows(); }
  const Tensor& gradient() const { return slot_.gradient(); }

 private:
  friend class Tape;
  friend class SegmentRun;
  struct State {
    Tensor value;
    uint64_t id = 0;    // of an op's output, in a root tape and all its inner ones; 0: made elsewhere
    bool stays = true;  // in memory: somebody reads the value who is no segment
    bool lent = false;  // to the segment that runs now, as an input
  };
  template <class Allocator>
  Variable(Tensor value, bool needs_gradient, Rows rows, const Allocator& memory)
      : slot_(std::allocate_shared<GradientSlot::State>(
            memory, GradientSlot::State{value.shape(), value.dtype(), needs_gradient, rows.count, {}, {}})),
        state_(std::allocate_shared<State>(memory, State{std::move(value)})) {}

  GradientSlot slot_;
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
#pragma GCC visibility pop
