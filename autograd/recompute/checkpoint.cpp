// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/autograd/recompute/segment_plan.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

/// A segment between its first run and its second.
class SegmentRun {
 public:
  static Variables first(Tape& tape, std::string_view name, Segment segment, const Variables& inputs,
                         Keep keep);

 private:
  SegmentRun(Segment segment, const Variables& inputs) : segment_(std::move(segment)), inputs_(inputs) {}
  Variables run(Tape& tape, std::string_view name, Keep keep);
  Variables stand_in(Tape& tape);
  void note(Tape& tape, std::string_view name, const Variables& outputs) const;
  void second(Tape& tape);
  std::vector<Offload::Holder> inputs_held(bool lend) const;
  std::vector<Offload::Holder> all_held() const;

  std::optional<Segment> segment_;
  Variables inputs_;
  PerInput<GradientSlot> outputs_;
  PerInput<bool> fresh_;  // per output: made by the segment, not handed through
  std::shared_ptr<SegmentPlan> plan_;
  int64_t number_ = -1;  // if what it keeps may leave the device's memory
};

Variables SegmentRun::first(Tape& tape, std::string_view name, Segment segment, const Variables& inputs,
                            Keep keep) {
  SegmentRun self(std::move(segment), inputs);
  Offload* const offload = tape.root_offload();
  if (offload != nullptr) offload->begin_segment(self.inputs_held(true));
  const Variables outputs = tape.runs() ? self.run(tape, name, keep) : self.stand_in(tape);
  for (const Variable& output : outputs) self.outputs_.push_back(output.slot());
  self.note(tape, name, outputs);
  if (offload != nullptr) self.number_ = offload->end_segment(self.all_held());
  if (tape.kind_ == Tape::Kind::record)
    tape.push(
        name, [self = std::move(self)](Tape& back) mutable { self.second(back); }, true);
  return outputs;
}

/// `lend`: the segment may read them from now on; else no longer.
std::vector<Offload::Holder> SegmentRun::inputs_held(bool lend) const {
  std::vector<Offload::Holder> held;
  for (const Variable& input : inputs_) {
    if (!input) continue;
    input.state_->lent = lend;
    held.push_back({{input.state_, &input.state_->value}, &input.state_->stays});
  }
  return held;
}

/// Inputs, and outputs of ops.
std::vector<Offload::Holder> SegmentRun::all_held() const {
  std::vector<Offload::Holder> held = inputs_held(false);
  for (SegmentPlan::Op& op : plan_->ops) {
    for (SegmentPlan::Output& output : op.outputs)
      if (output.kept.defined()) held.push_back({{plan_, &output.kept}, nullptr});
  }
  return held;
}

Variables SegmentRun::run(Tape& tape, std::string_view name, Keep keep) {
  plan_ = make_recycled<SegmentPlan>(tape.recycling(), tape.recycling(), name, tape.shared_->ids);
  // Within a segment that forgets everything nothing is kept.
  if (tape.kind_ == Tape::Kind::record) plan_->keep = keep;
  Tape forgetful(tape, Tape::Kind::forget, plan_);
  const Variables outputs = (*segment_)(forgetful, inputs_);
  // Within a segment that runs again this is the second run: what the third is compared to must be the first.
  if (tape.shared_->check && tape.follows()) {
    const std::shared_ptr<SegmentPlan>& known = tape.plan_->op(tape.next_op_).nested;
    if (known != nullptr) known->compare(*plan_);
  }
  plan_->decide(tape.shared_->ids);
  for (const Variable& output : outputs) fresh_.push_back(output && plan_->made(output.state_->id));
  return outputs;
}

/// Nobody reads the outputs of this inner segment: it waits for its own backward.
Variables SegmentRun::stand_in(Tape& tape) {
  const SegmentPlan::Op& known = tape.plan_->op(tape.next_op_);
  plan_ = known.nested;
  Variables outputs;
  for (const GradientSlot& like : known.prototypes) {
    fresh_.push_back(static_cast<bool>(like));
    outputs.push_back({});
    if (!like) continue;
    Variable& output = outputs.back();
    output = Variable(Tensor::without_memory(like.shape(), like.dtype()), like.needs_gradient(), like.rows(),
                      tape.recycling());
    output.slot_.state_->name = like.state_->name;
    output.state_->id = ++tape.shared_->ids;
  }
  return outputs;
}

/// What the plan of an outer segment has to know of this one.
void SegmentRun::note(Tape& tape, std::string_view name, const Variables& outputs) const {
  if (tape.plan_ == nullptr) return;
  if (tape.follows()) return tape.plan_->check_op(tape.next_op_++, name, outputs.size());
  SegmentPlan::Op& op = tape.plan_->add_op(name);
  plan_->add_outside(op.inputs);
  op.rereads_inputs = true;
  op.nested = plan_;
  bool stands_alone = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    op.prototypes.push_back(outputs_[i]);
    const uint64_t id = fresh_[i] ? outputs[i].state_->id : 0;
    // Two prototypes of one value would be two slots for its gradient.
    const auto same = [id](const SegmentPlan::Output& other) { return other.id == id; };
    const bool again = std::any_of(op.outputs.begin(), op.outputs.end(), same);
    if (outputs[i]) stands_alone = stands_alone && fresh_[i] && !again;
    op.outputs.push_back({.id = id, .kept = {}, .hash = {}});
  }
  if (!stands_alone) op.prototypes.clear();
}

void SegmentRun::second(Tape& tape) {
  PerInput<Tensor> gradients;
  bool reached = false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    gradients.push_back(fresh_[i] ? tape.take_gradient(outputs_[i]) : Tensor());
    reached = reached || gradients[i].defined();
  }
  outputs_.clear();
  Offload* const offload = number_ >= 0 ? tape.shared_->offload.get() : nullptr;
  if (!reached) {
    if (offload != nullptr) offload->forget(number_);
    return;
  }
  if (offload != nullptr) offload->bring_back(number_);
  ++tape.shared_->counts.segments;
  Tape again(tape, Tape::Kind::record, plan_);
  {
    const Variables outputs = (*segment_)(again, inputs_);
    plan_->check_end(again.next_op_, outputs.size() == gradients.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined()) outputs[i].slot_.state_->gradient = std::move(gradients[i]);
    }
  }
  // From here on entries alone hold what they need, and let go of it one by one.
  segment_.reset();
  inputs_.clear();
  again.plan_.reset();
  plan_.reset();
  if (offload != nullptr) offload->forget(number_);
  again.walk();
}

Variables run_segment(Tape& tape, std::string_view name, Segment segment, const Variables& inputs,
                      Keep keep) {
  return SegmentRun::first(tape, name, std::move(segment), inputs, keep);
}

}  // namespace meshgrad
