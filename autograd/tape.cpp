// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/autograd/recompute/segment_plan.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/kernels/elementwise.h>

#include <optional>
#include <utility>

namespace meshgrad {
namespace {

/// The spans of a backward pass: one around the ops of each stage, or rather of each MemoryScope of forward.
class StageSpans {
 public:
  void next(const std::string& scope) {
    if (stage_ && scope == scope_) return;
    stage_.reset();
    scope_ = scope;
    if (!scope.empty() && Span::wanted()) stage_.emplace(scope, "stage");
  }

 private:
  std::string scope_;
  std::optional<Span> stage_;
};

}  // namespace

Tape::Tape(Runtime& runtime, Mode mode)
    : runtime_(runtime),
      kind_(mode == Mode::evaluate ? Kind::evaluate : Kind::record),
      shared_(std::make_shared<Shared>()) {
  shared_->training = mode == Mode::train;
}

Tape::Tape(const Tape& outer, Kind kind, std::shared_ptr<SegmentPlan> plan)
    : runtime_(outer.runtime_),
      kind_(kind),
      tag_(kind == Kind::record ? Tag::recompute : outer.tag_),
      observer_(outer.observer_),
      shared_(outer.shared_),
      plan_(std::move(plan)) {}

Variable Tape::output(const Shape& shape, Rows rows, DType dtype, bool needs_gradient,
                      std::string_view name) {
  if (shared_->check_op) shared_->check_op();
  if (op_begin_ == 0 && records_spans()) op_begin_ = SpanRecorder::now();
  const SegmentPlan::Output* known = recomputes() ? &plan_->output(next_op_, outputs_.size()) : nullptr;
  const bool written = known == nullptr || known->needed;
  const Tensor value = written                  ? Tensor::empty(runtime_, shape, dtype, tag_, name)
                       : known->saved.defined() ? known->saved
                                                : Tensor::without_memory(shape, dtype);
  Variable result(value, needs_gradient && kind_ != Kind::evaluate, rows);
  result.state_->read_outside = false;
  if (plan_ != nullptr) result.state_->id = ++shared_->ids;
  if (kind_ != Kind::evaluate) outputs_.push_back(result);
  if (observer_) {
    result.slot_.state_->name = name;
    if (written && is_floating(dtype)) written_.push_back({std::string(name), value, rows});
  }
  return result;
}

bool Tape::runs() const { return !recomputes() || plan_->op(next_op_).runs; }

void Tape::leave_for_next(const Variable& value, std::shared_ptr<const NodeTermsAhead> terms) {
  left_of_ = value.slot_;
  left_ = std::move(terms);
}

std::shared_ptr<const NodeTermsAhead> Tape::take_from_last(const Variable& value) {
  if (left_of_.state_ != value.slot_.state_) return nullptr;
  return std::exchange(left_, nullptr);
}

void Tape::record(const OpUse& use, std::function<void(Tape&)> backward) {
  left_of_ = {};
  left_ = nullptr;
  if (op_begin_ != 0) record_span(use.op, "op", std::exchange(op_begin_, 0));
  if (kind_ == Kind::evaluate) return;
  note_op(use);
  if (kind_ == Kind::record) push(use.op, std::move(backward));
  if (observer_) notify_observer(use.op, runtime_.allocator().scope(), false);
}

void Tape::push(std::string_view op, std::function<void(Tape&)> backward, bool segment) {
  entries_.push_back({std::string(op), std::move(backward),
                      observer_ || Span::wanted() ? runtime_.allocator().scope() : std::string(), segment});
}

/// On inner tapes, ops are done with their weights when their segment is.
void Tape::begin_weights(int64_t first) {
  if (kind_ == Kind::evaluate || first <= shared_->weights_begun) return;
  shared_->weights_begun = first;
  if (weights_ready_) push("weight_gradients", [first](Tape& tape) { tape.weights_ready_(first); });
}

void Tape::note_op(const OpUse& use) {
  if (shared_->offload != nullptr) note_readers(use);
  if (runs()) ++(tag_ == Tag::recompute ? shared_->counts.recomputed : shared_->counts.forwards);
  if (plan_ != nullptr) recomputes() ? follow_plan(use) : add_to_plan(use);
  outputs_.clear();
}

void Tape::offload(OffloadStore& store) { shared_->offload = std::make_shared<Offload>(runtime_, store); }

/// Marks values that must stay in memory: those that the backward of an op outside of segments reads, and
/// those that a segment reads without having them as inputs.
void Tape::note_readers(const OpUse& use) const {
  if (plan_ == nullptr && use.backward_reads_outputs) {
    for (const Variable& output : outputs_) output.state_->read_outside = true;
  }
  const bool reads = plan_ == nullptr ? use.backward_reads_inputs : kind_ == Kind::first_run;
  if (!reads) return;
  for (const Variable& input : use.inputs) {
    // Inside a segment, values with an id are the segment's own.
    const bool outside = plan_ == nullptr || (input && input.state_->id == 0);
    if (input && outside && !input.state_->segment_input) input.state_->read_outside = true;
  }
}

/// In the first run of a segment.
void Tape::add_to_plan(const OpUse& use) {
  SegmentPlan::Op& op = plan_->ops.emplace_back(std::string(use.op));
  op.backward_reads_inputs = use.backward_reads_inputs;
  op.backward_reads_outputs = use.backward_reads_outputs;
  for (const Variable& input : use.inputs) {
    if (input && input.state_->id != 0) op.inputs.push_back(input.state_->id);
  }
  for (const Variable& variable : outputs_) {
    SegmentPlan::Output& output = op.outputs.emplace_back();
    output.id = variable.state_->id;
    if (plan_->saves.covers(use)) output.saved = variable.value();
    if (shared_->check) output.hash = hash_of(variable, stream());
  }
}

/// In the second run of a segment.
void Tape::follow_plan(const OpUse& use) {
  plan_->check_op(next_op_, use.op, outputs_.size());
  for (size_t i = 0; shared_->check && i < outputs_.size(); ++i) {
    if (plan_->output(next_op_, i).needed) plan_->compare(next_op_, i, hash_of(outputs_[i], stream()));
  }
  ++next_op_;
}

void Tape::backward(const Variable& sum, const Tensor& seed) { backward({&sum, 1}, {seed}); }

void Tape::backward(std::span<const Variable> values, std::vector<Tensor> gradients) {
  if (kind_ != Kind::record)
    throw invalid_argument("backward", "a tape that records", "a tape that evaluates");
  if (values.size() != gradients.size()) {
    throw invalid_argument("backward", std::to_string(values.size()) + " gradients, one for each value",
                           std::to_string(gradients.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor& value = values[i].value();
    if (gradients[i].dtype() != value.dtype() || !(gradients[i].shape() == value.shape())) {
      throw invalid_argument(
          "backward", "a seed like the sum: " + std::string(name_of(value.dtype())) + value.shape().text(),
          std::string(name_of(gradients[i].dtype())) + gradients[i].shape().text());
    }
    values[i].slot_.state_->gradient = std::move(gradients[i]);
  }
  const Span span("backward");
  walk();
}

void Tape::walk() {
  StageSpans stages;
  while (!entries_.empty()) {
    if (shared_->check_op) shared_->check_op();
    const Entry entry = std::move(entries_.back());
    entries_.pop_back();
    std::optional<MemoryScope> scope;  // a recomputed segment opens its own
    if (!entry.segment) scope.emplace(runtime_.allocator(), entry.op);
    stages.next(entry.scope);
    const Span span(entry.op, entry.segment ? "segment" : "op");
    entry.backward(*this);
    if (observer_) notify_observer(entry.op, entry.scope, true);
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

void Tape::add_gradient(const GradientSlot& slot, const Tensor& gradient) const {
  if (!slot.needs_gradient()) return;
  Tensor& sum = slot.state_->gradient;
  if (sum.defined()) {
    kernels::axpby({.a = 1.0, .x = gradient, .b = 1.0, .y = sum}, stream());
  } else {
    sum = gradient;
  }
  note_gradient(slot);
}

void Tape::note_gradient(const GradientSlot& slot) const {
  if (!observer_) return;
  written_.push_back({"gradient of " + slot.state_->name, slot.gradient(), slot.rows()});
}

void Tape::notify_observer(std::string_view op, std::string scope, bool backward) {
  observer_({std::string(op), std::move(scope), backward, std::exchange(written_, {})});
}

Tensor Tape::scratch(const Shape& shape, DType dtype, std::string_view name) const {
  return Tensor::empty(runtime_, shape, dtype, Tag::workspace, name);
}

}  // namespace meshgrad
