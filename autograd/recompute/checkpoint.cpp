// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/autograd/recompute/segment_plan.h>
#include <meshgrad/engine/span.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

/// A segment from its first run to its second.
class SegmentRun {
 public:
  static Variables first(Tape& tape, std::string_view name, Segment segment, const Variables& inputs,
                         SavePolicy saves);

 private:
  SegmentRun(Segment segment, const Variables& inputs) : segment_(std::move(segment)), inputs_(inputs) {}
  Variables run(Tape& tape, std::string_view name, SavePolicy saves);
  Variables placeholders(Tape& tape);
  void add_to_outer_plan(Tape& tape, std::string_view name, const Variables& outputs) const;
  void second(Tape& tape);
  std::vector<Offload::Holder> input_values(bool running) const;
  std::vector<Offload::Holder> saved_values() const;

  Segment segment_;
  Variables inputs_;
  PerInput<GradientSlot> outputs_;
  PerInput<bool> made_here_;  // per output: false for an input passed through
  std::shared_ptr<SegmentPlan> plan_;
  int64_t offload_id_ = -1;  // if the values that it saves may be offloaded
};

Variables SegmentRun::first(Tape& tape, std::string_view name, Segment segment, const Variables& inputs,
                            SavePolicy saves) {
  SegmentRun self(std::move(segment), inputs);
  Offload* const offload = tape.root_offload();
  if (offload != nullptr) offload->begin_segment(self.input_values(true));
  const Variables outputs = tape.runs() ? self.run(tape, name, saves) : self.placeholders(tape);
  for (const Variable& output : outputs) self.outputs_.push_back(output.slot());
  self.add_to_outer_plan(tape, name, outputs);
  if (offload != nullptr) self.offload_id_ = offload->end_segment(self.saved_values());
  if (tape.kind_ == Tape::Kind::record)
    tape.push(
        name, [self = std::move(self)](Tape& back) mutable { self.second(back); }, true);
  return outputs;
}

/// `running`: the segment reads its inputs from now on; otherwise no longer.
std::vector<Offload::Holder> SegmentRun::input_values(bool running) const {
  std::vector<Offload::Holder> held;
  for (const Variable& input : inputs_) {
    if (!input) continue;
    input.state_->segment_input = running;
    held.push_back({{input.state_, &input.state_->value}, &input.state_->read_outside});
  }
  return held;
}

/// Inputs, and saved outputs of ops.
std::vector<Offload::Holder> SegmentRun::saved_values() const {
  std::vector<Offload::Holder> held = input_values(false);
  for (SegmentPlan::Op& op : plan_->ops) {
    for (SegmentPlan::Output& output : op.outputs)
      if (output.saved.defined()) held.push_back({{plan_, &output.saved}, nullptr});
  }
  return held;
}

Variables SegmentRun::run(Tape& tape, std::string_view name, SavePolicy saves) {
  plan_ = std::make_shared<SegmentPlan>(name, tape.shared_->ids);
  // In the first run of an outer segment nothing is saved.
  if (tape.kind_ == Tape::Kind::record) plan_->saves = saves;
  Tape first_run(tape, Tape::Kind::first_run, plan_);
  const Variables outputs = segment_(first_run, inputs_);
  // Inside the second run of an outer segment, this is the second of three runs; the third is compared with
  // this one, so this one is compared with the first.
  if (tape.shared_->check && tape.recomputes()) {
    const std::shared_ptr<SegmentPlan>& known = tape.plan_->op(tape.next_op_).nested;
    if (known != nullptr) known->compare(*plan_);
  }
  plan_->decide(tape.shared_->ids);
  for (const Variable& output : outputs) made_here_.push_back(output && plan_->made(output.state_->id));
  return outputs;
}

/// The outputs of a nested segment that the outer one need not recompute: without memory, like those of its
/// first run.
Variables SegmentRun::placeholders(Tape& tape) {
  const SegmentPlan::Op& known = tape.plan_->op(tape.next_op_);
  plan_ = known.nested;
  Variables outputs;
  for (const GradientSlot& like : known.prototypes) {
    made_here_.push_back(static_cast<bool>(like));
    outputs.push_back({});
    if (!like) continue;
    Variable& output = outputs.back();
    output = Variable(Tensor::without_memory(like.shape(), like.dtype()), like.needs_gradient(), like.rows());
    output.slot_.state_->name = like.state_->name;
    output.state_->id = ++tape.shared_->ids;
  }
  return outputs;
}

/// Enters this segment into the plan of an outer one, as an op.
void SegmentRun::add_to_outer_plan(Tape& tape, std::string_view name, const Variables& outputs) const {
  if (tape.plan_ == nullptr) return;
  if (tape.recomputes()) return tape.plan_->check_op(tape.next_op_++, name, outputs.size());
  SegmentPlan::Op& op = tape.plan_->ops.emplace_back(std::string(name));
  plan_->append_outside_inputs(op.inputs);
  op.backward_reads_inputs = true;
  op.nested = plan_;
  bool distinct = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    op.prototypes.push_back(outputs_[i]);
    const uint64_t id = made_here_[i] ? outputs[i].state_->id : 0;
    // Two prototypes of one value would have two slots for its gradient.
    const auto same = [id](const SegmentPlan::Output& other) { return other.id == id; };
    const bool again = std::any_of(op.outputs.begin(), op.outputs.end(), same);
    if (outputs[i]) distinct = distinct && made_here_[i] && !again;
    op.outputs.push_back({.id = id, .saved = {}, .hash = {}});
  }
  if (!distinct) op.prototypes.clear();
}

void SegmentRun::second(Tape& tape) {
  PerInput<Tensor> gradients;
  bool reached = false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    gradients.push_back(made_here_[i] ? tape.take_gradient(outputs_[i]) : Tensor());
    reached = reached || gradients[i].defined();
  }
  outputs_.clear();
  Offload* const offload = offload_id_ >= 0 ? tape.shared_->offload.get() : nullptr;
  if (!reached) {
    if (offload != nullptr) offload->release(offload_id_);
    return;
  }
  if (offload != nullptr) offload->fetch(offload_id_);
  ++tape.shared_->counts.segments;
  Tape again(tape, Tape::Kind::record, plan_);
  {
    const Variables outputs = [&] {
      const Span span("recompute", "recompute");
      return segment_(again, inputs_);
    }();
    plan_->check_end(again.next_op_, outputs.size() == gradients.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined()) outputs[i].slot_.state_->gradient = std::move(gradients[i]);
    }
  }
  // From here on only the entries hold values, and each frees its own when it is done.
  segment_ = nullptr;
  inputs_.clear();
  again.plan_.reset();
  plan_.reset();
  if (offload != nullptr) offload->release(offload_id_);
  again.walk();
}

Variables checkpoint(Tape& tape, std::string_view name, const Segment& segment, const Variables& inputs,
                     SavePolicy saves) {
  if (tape.evaluating()) return segment(tape, inputs);
  return SegmentRun::first(tape, name, segment, inputs, saves);
}

}  // namespace meshgrad
