// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/autograd/recompute/segment_plan.h>
#include <meshgrad/kernels/elementwise.h>

#include <utility>

namespace meshgrad {

Tape::Tape(const Tape& outer, Kind kind, std::shared_ptr<SegmentPlan> plan)
    : runtime_(outer.runtime_),
      kind_(kind),
      tag_(kind == Kind::record ? Tag::recompute : outer.tag_),
      entries_(outer.recycling()),
      observer_(outer.observer_),
      shared_(outer.shared_),
      plan_(std::move(plan)),
      made_(outer.recycling()) {}

Variable Tape::output(const Shape& shape, Rows rows, DType dtype, bool needs_gradient,
                      std::string_view name) {
  const SegmentPlan::Output* known = follows() ? &plan_->output(next_op_, made_.size()) : nullptr;
  const bool written = known == nullptr || known->needed;
  const Tensor value = written                 ? Tensor::empty(runtime_, shape, dtype, tag_, name)
                       : known->kept.defined() ? known->kept
                                               : Tensor::without_memory(shape, dtype);
  Variable result(value, needs_gradient && kind_ != Kind::evaluate, rows, recycling());
  result.state_->stays = false;
  if (plan_ != nullptr) result.state_->id = ++shared_->ids;
  if (kind_ != Kind::evaluate) made_.push_back(result);
  if (observer_) {
    result.slot_.state_->name = name;
    if (written) written_.push_back({std::string(name), value, rows});
  }
  return result;
}

bool Tape::runs() const { return !follows() || plan_->op(next_op_).runs; }

void Tape::note_op(const OpUse& use) {
  if (shared_->offload != nullptr) note_readers(use);
  if (runs()) ++(tag_ == Tag::recompute ? shared_->counts.recomputed : shared_->counts.forwards);
  if (plan_ != nullptr) follows() ? follow(use) : note(use);
  made_.clear();
}

void Tape::offload(OffloadStore& store) { shared_->offload = std::make_shared<Offload>(runtime_, store); }

/// What an op outside of segments will read again stays; so does what a segment reads that is no input of it.
void Tape::note_readers(const OpUse& use) const {
  if (plan_ == nullptr && use.rereads_outputs) {
    for (const Variable& made : made_) made.state_->stays = true;
  }
  const bool reads = plan_ == nullptr ? use.rereads_inputs : kind_ == Kind::forget;
  if (!reads) return;
  for (const Variable& input : use.inputs) {
    // Outputs of segments have numbers, too; within one they mean values of its own.
    const bool outside = plan_ == nullptr || (input && input.state_->id == 0);
    if (input && outside && !input.state_->lent) input.state_->stays = true;
  }
}

/// The first run of a segment.
void Tape::note(const OpUse& use) {
  SegmentPlan::Op& op = plan_->add_op(use.op);
  op.rereads_inputs = use.rereads_inputs;
  op.rereads_outputs = use.rereads_outputs;
  for (const Variable& input : use.inputs) {
    if (input && input.state_->id != 0) op.inputs.push_back(input.state_->id);
  }
  for (const Variable& made : made_) {
    SegmentPlan::Output& output = op.outputs.emplace_back();
    output.id = made.state_->id;
    if (plan_->keep.covers(use)) output.kept = made.value();
    if (shared_->check) output.hash = hash_of(made, stream());
  }
}

/// The second run.
void Tape::follow(const OpUse& use) {
  plan_->check_op(next_op_, use.op, made_.size());
  for (size_t i = 0; shared_->check && i < made_.size(); ++i) {
    if (plan_->output(next_op_, i).needed) plan_->compare(next_op_, i, hash_of(made_[i], stream()));
  }
  ++next_op_;
}

void Tape::backward(const Variable& sum, const Tensor& seed) {
  if (kind_ != Kind::record) throw invalid_argument("backward", "a tape that records", "one that evaluates");
  if (seed.dtype() != sum.value().dtype() || !(seed.shape() == sum.value().shape())) {
    throw invalid_argument(
        "backward",
        "a seed like the sum: " + std::string(name_of(sum.value().dtype())) + sum.value().shape().text(),
        std::string(name_of(seed.dtype())) + seed.shape().text());
  }
  sum.slot_.state_->gradient = seed;
  walk();
}

void Tape::walk() {
  while (!entries_.empty()) {
    const Entry entry = std::move(entries_.back());
    entries_.pop_back();
    std::optional<MemoryScope> scope;  // a segment opens its own as it runs again
    if (!entry.segment) scope.emplace(runtime_.allocator(), entry.op);
    entry.backward(entry.saved.get(), *this);
    if (observer_) tell(entry.op, entry.scope, true);
  }
}

Tensor Tape::take_gradient(const GradientSlot& slot) const {
  return std::exchange(slot.state_->gradient, Tensor());
}

GradientTarget Tape::gradient_for(const GradientSlot& slot) const {
  if (!slot.needs_gradient()) return {};
  Tensor& gradient = slot.state_->gradient;
  const bool accumulate = gradient.defined();
  if (!accumulate)
    gradient = Tensor::empty(runtime_, slot.shape(), slot.dtype(), Tag::activations, "gradient");
  note_gradient(slot);
  return {gradient, accumulate};
}

void Tape::give_gradient(const GradientSlot& slot, const Tensor& gradient) const {
  if (!slot.needs_gradient()) return;
  Tensor& sum = slot.state_->gradient;
  if (sum.defined()) {
    axpby({.a = 1.0, .x = gradient, .b = 1.0, .y = sum}, stream());
  } else {
    sum = gradient;
  }
  note_gradient(slot);
}

void Tape::note_gradient(const GradientSlot& slot) const {
  if (!observer_) return;
  written_.push_back({"gradient of " + slot.state_->name, slot.gradient(), slot.rows()});
}

void Tape::tell(std::string_view op, std::string scope, bool backward) {
  observer_({std::string(op), std::move(scope), backward, std::exchange(written_, {})});
}

Tensor Tape::scratch(const Shape& shape, DType dtype, std::string_view name) const {
  return Tensor::empty(runtime_, shape, dtype, Tag::workspace, name);
}

}  // namespace meshgrad
