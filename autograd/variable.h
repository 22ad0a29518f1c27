// SPDX-License-Identifier: Apache-2.0
// Variable: a value on the tape, with a slot for its gradient. Weight: a parameter as ops see it.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <memory>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The gradient of a value, with the value's shape, dtype and rows but not the value itself: a backward
/// function that holds only the slot does not keep the value in memory. A handle; copies share the slot. A
/// default-constructed slot belongs to an absent variable; calls other than the first two functions are then
/// undefined.
class GradientSlot {
 public:
  GradientSlot() = default;
  explicit operator bool() const { return state_ != nullptr; }
  bool needs_gradient() const { return state_ != nullptr && state_->needs_gradient; }
  const Shape& shape() const { return state_->shape; }
  DType dtype() const { return state_->dtype; }
  /// Rows of the value: its capacity, and the count of real ones.
  Rows rows() const { return {state_->shape.rows(), state_->count}; }
  /// Undefined until the backward pass reaches it, and again after the op that produced the value has
  /// consumed it.
  const Tensor& gradient() const { return state_->gradient; }

 private:
  friend class Variable;
  friend class Tape;
  friend class SegmentRun;
  struct State {
    Shape shape;
    DType dtype;
    bool needs_gradient;
    const int64_t* count;  // Rows::count
    Tensor gradient;
    std::string name;  // of an op's output, when the tape has an observer
  };
  explicit GradientSlot(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// A value on the tape. A handle; copies share value and slot. A default-constructed Variable is absent.
class Variable {
 public:
  Variable() = default;
  /// A leaf. `needs_gradient`: backward fills gradient(), of the value's shape and dtype.
  Variable(Tensor value, bool needs_gradient) : Variable(std::move(value), needs_gradient, Rows()) {}
  /// The same with a count of real rows; the rows after it are padding.
  Variable(Tensor value, bool needs_gradient, Rows rows)
      : slot_(std::make_shared<GradientSlot::State>(
            GradientSlot::State{value.shape(), value.dtype(), needs_gradient, rows.count, {}, {}})),
        state_(std::make_shared<State>(State{std::move(value)})) {}

  explicit operator bool() const { return state_ != nullptr; }
  /// [rows, width]. Has no memory (not defined()) while it is offloaded, or when recomputation does not need
  /// it.
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
    uint64_t id = 0;           // of an op's output inside segments, unique in a root tape; 0: made elsewhere
    bool read_outside = true;  // by an op outside of segments, so it must not be offloaded
    bool segment_input = false;  // of the segment that runs now
  };

  GradientSlot slot_;
  std::shared_ptr<State> state_;
};

/// A parameter. Not a Variable: its gradient lies in one arena with the others and is accumulated into over a
/// window of micro-batches. An undefined gradient marks a frozen weight; an undefined value an absent one.
struct Weight {
  Tensor value;     ///< storage dtype
  Tensor gradient;  ///< accumulator dtype, same shape
  /// Rows [begin, end) of both.
  Weight row_range(int64_t begin, int64_t end) const {
    return {value.row_range(begin, end), gradient.defined() ? gradient.row_range(begin, end) : Tensor()};
  }
};

}  // namespace meshgrad
#pragma GCC visibility pop
