// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/tape.h>
#include <meshgrad/kernels/elementwise.h>

#include <utility>

namespace meshgrad {

Variable Tape::output(Rows rows, int64_t width, DType dtype, bool needs_gradient,
                      std::string_view name) const {
  const Variable result(Tensor::empty(runtime_, Shape{rows.capacity, width}, dtype, Tag::activations, name),
                        needs_gradient && recording_, rows);
  if (observer_) {
    result.state_->name = name;
    written_.push_back({std::string(name), result.value(), rows});
  }
  return result;
}

void Tape::record(std::string_view op, std::function<void(Tape&)> backward) {
  if (!recording_) return;
  Entry& entry = entries_.emplace_back(Entry{std::string(op), std::move(backward), {}});
  if (!observer_) return;
  entry.scope = runtime_.allocator().scope();
  tell(entry.op, entry.scope, false);
}

void Tape::backward(const Variable& sum, const Tensor& seed) {
  if (!recording_) throw invalid_argument("backward", "a tape that records", "one that evaluates");
  if (seed.dtype() != sum.value().dtype() || !(seed.shape() == sum.value().shape())) {
    throw invalid_argument(
        "backward",
        "a seed like the sum: " + std::string(name_of(sum.value().dtype())) + sum.value().shape().text(),
        std::string(name_of(seed.dtype())) + seed.shape().text());
  }
  sum.state_->gradient = seed;
  while (!entries_.empty()) {
    const Entry entry = std::move(entries_.back());
    entries_.pop_back();
    const MemoryScope scope(runtime_.allocator(), entry.op);
    entry.backward(*this);
    if (observer_) tell(entry.op, entry.scope, true);
  }
}

Tensor Tape::take_gradient(const Variable& variable) const {
  return std::exchange(variable.state_->gradient, Tensor());
}

GradientTarget Tape::gradient_for(const Variable& variable) const {
  if (!variable.needs_gradient()) return {};
  Tensor& slot = variable.state_->gradient;
  if (slot.defined()) {
    note_gradient(variable);
    return {slot, true};
  }
  slot = Tensor::empty(runtime_, variable.value().shape(), variable.gradient_dtype(), Tag::activations,
                       "gradient");
  note_gradient(variable);
  return {slot, false};
}

void Tape::give_gradient(const Variable& variable, const Tensor& gradient) const {
  if (!variable.needs_gradient()) return;
  Tensor& slot = variable.state_->gradient;
  if (slot.defined()) {
    axpby({.a = 1.0, .x = gradient, .b = 1.0, .y = slot}, stream());
  } else {
    slot = gradient;
  }
  note_gradient(variable);
}

void Tape::note_gradient(const Variable& variable) const {
  if (!observer_) return;
  written_.push_back({"gradient of " + variable.state_->name, variable.gradient(), variable.rows()});
}

void Tape::tell(const std::string& op, const std::string& scope, bool backward) {
  observer_({op, scope, backward, std::exchange(written_, {})});
}

Tensor Tape::scratch(const Shape& shape, DType dtype, std::string_view name) const {
  return Tensor::empty(runtime_, shape, dtype, Tag::workspace, name);
}

}  // namespace meshgrad
