// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/recompute/segment_plan.h>
#include <meshgrad/engine/random.h>

#include <algorithm>

namespace meshgrad {

void SegmentPlan::decide(uint64_t last_id) {
  last = last_id;
  std::vector<bool> needed(last - before, false);
  const auto need = [&](uint64_t id) {
    if (made(id)) needed[id - before - 1] = true;
  };
  for (const Op& op : ops) {
    if (op.backward_reads_inputs) std::for_each(op.inputs.begin(), op.inputs.end(), need);
    if (!op.backward_reads_outputs) continue;
    for (const Output& output : op.outputs) need(output.id);
  }
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    op->runs = op->nested != nullptr && op->prototypes.empty();
    for (Output& output : op->outputs) {
      const bool read = made(output.id) && needed[output.id - before - 1];
      if (!read) output.saved = {};
      output.needed = read && !output.saved.defined();
      op->runs = op->runs || output.needed;
    }
    if (op->runs) std::for_each(op->inputs.begin(), op->inputs.end(), need);
  }
}

void SegmentPlan::append_outside_inputs(std::vector<uint64_t>& ids) const {
  for (const Op& op : ops) {
    std::copy_if(op.inputs.begin(), op.inputs.end(), std::back_inserter(ids),
                 [&](uint64_t id) { return !made(id); });
  }
}

namespace {

InvalidArgument different_run(const SegmentPlan& plan, const std::string& needed, const std::string& got) {
  return invalid_argument("segment " + plan.name, needed + " in its second run, as in its first", got,
                          "let its ops depend on nothing that changes between the two");
}

std::string text_of(std::string_view op, size_t outputs) {
  return std::string(op) + " with " + std::to_string(outputs) + " outputs";
}

}  // namespace

const SegmentPlan::Op& SegmentPlan::op(size_t index) const {
  if (index < ops.size()) return ops[index];
  throw different_run(*this, std::to_string(ops.size()) + " ops", std::to_string(index + 1));
}

const SegmentPlan::Output& SegmentPlan::output(size_t of, size_t index) const {
  const Op& known = op(of);
  if (index < known.outputs.size()) return known.outputs[index];
  throw different_run(*this, text_of(known.name, known.outputs.size()), std::to_string(index + 1));
}

void SegmentPlan::check_op(size_t index, std::string_view now, size_t outputs) const {
  const Op& known = op(index);
  if (known.name == now && known.outputs.size() == outputs) return;
  throw different_run(*this, text_of(known.name, known.outputs.size()), text_of(now, outputs));
}

void SegmentPlan::check_end(size_t ops_seen, bool as_many_outputs) const {
  if (ops_seen == ops.size() && as_many_outputs) return;
  throw different_run(*this, std::to_string(ops.size()) + " ops and as many outputs",
                      std::to_string(ops_seen) + " ops");
}

void SegmentPlan::compare(size_t of, size_t index, uint64_t hash) const {
  const Op& known = op(of);
  if (known.outputs[index].hash == hash) return;
  throw internal_error("segment " + name + ", op " + std::to_string(of) + ", " + known.name + ": output " +
                       std::to_string(index) + " has other bits than in the first run");
}

void SegmentPlan::compare(const SegmentPlan& other) const {
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& another = other.op(i);
    if (ops[i].nested != nullptr && another.nested != nullptr) ops[i].nested->compare(*another.nested);
    for (size_t k = 0; k < std::min(ops[i].outputs.size(), another.outputs.size()); ++k) {
      if (ops[i].outputs[k].hash && another.outputs[k].hash) compare(i, k, *another.outputs[k].hash);
    }
  }
}

uint64_t hash_of(const Variable& variable, const Stream& stream) {
  const Tensor& value = variable.value();
  const Tensor host = to_host(value, stream);
  const int64_t elements = real_rows(variable.rows(), value.device(), stream) * host.width();
  return hash_of(
      {static_cast<const char*>(host.raw()), static_cast<size_t>(elements * size_of(host.dtype()))});
}

}  // namespace meshgrad
