// SPDX-License-Identifier: Apache-2.0
// The tape: what ran, in order, and what each op kept for its way back.
#pragma once
#include <meshgrad/autograd/variable.h>

#include <functional>
#include <string>
#include <vector>

namespace meshgrad {

/// Where an op's backward puts the gradient of an input: into `tensor`, added to what is there or written.
/// An undefined tensor: not wanted.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;
};

/// What an op just wrote, for those who look on.
struct OpWritten {
  struct Part {
    std::string name;  ///< "edges"; on the way back "gradient of edges"
    Tensor tensor;     ///< [rows, width]
    Rows rows;
  };
  std::string op;
  std::string scope;  ///< the MemoryScopes in which the op ran forward: "processor.3"
  bool backward = false;
  std::vector<Part> parts;  ///< but for gradients of weights and what an op keeps for itself
};

class Tape {
 public:
  using Observer = std::function<void(const OpWritten&)>;
  enum class Mode { record, evaluate };
  /// In Mode::evaluate ops keep nothing and backward has nothing to do.
  explicit Tape(Runtime& runtime, Mode mode = Mode::record)
      : runtime_(runtime), recording_(mode == Mode::record) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Runtime& runtime() const { return runtime_; }
  const Stream& stream() const { return runtime_.stream(); }
  bool recording() const { return recording_; }
  size_t size() const { return entries_.size(); }

  /// `observer` is called after each op of this recording tape, there and back, and may wait for the device.
  void observe(Observer observer) { observer_ = std::move(observer); }

  /// An op's output, [rows, width]: uninitialised, of the activations' tag.
  Variable output(Rows rows, int64_t width, DType dtype, bool needs_gradient, std::string_view name) const;
  /// Notes that an op ran. `backward` owns what the op saved; it is called once and destroyed right after.
  void record(std::string_view op, std::function<void(Tape&)> backward);

  /// Walks back once from `sum`, whose gradient is `seed`: f64 [1] in device memory (loss scale / window
  /// weight). Gradients of leaf variables and weights are accumulated; entries are gone afterwards.
  void backward(const Variable& sum, const Tensor& seed);

  // For the backward functions of ops:
  /// The gradient that reached an op's output, taken from its slot; undefined when nothing used the output.
  Tensor take_gradient(const Variable& variable) const;
  /// The slot of an input's gradient; the first request allocates it.
  GradientTarget gradient_for(const Variable& variable) const;
  /// Adds a finished gradient; an empty slot takes over the tensor itself, which the caller then no longer
  /// owns.
  void give_gradient(const Variable& variable, const Tensor& gradient) const;
  /// True when the slot holds nothing yet.
  static bool slot_empty(const Variable& variable) { return !variable.state_->gradient.defined(); }
  /// Scratch memory of an op.
  Tensor scratch(const Shape& shape, DType dtype, std::string_view name) const;

 private:
  struct Entry {
    std::string op;
    std::function<void(Tape&)> backward;
    std::string scope;  // if observed
  };
  void note_gradient(const Variable& variable) const;
  void tell(const std::string& op, const std::string& scope, bool backward);

  Runtime& runtime_;
  bool recording_;
  std::vector<Entry> entries_;
  Observer observer_;
  mutable std::vector<OpWritten::Part> written_;  // since the last op, if observed
};

}  // namespace meshgrad
