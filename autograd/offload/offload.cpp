// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/engine/runtime.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

/// States of a value:
///
///              start_write()             evict()
///    resident ----------------> writing ---------> offloaded
///        ^ ^                       |                   |
///        | +------ cancel() -------+                   | start_read()
///        |    (has other owners, or is needed)         v
///        +------------- make_resident() ----------- reading
///
/// It has device memory unless it is offloaded; its holders see that memory when it is resident or writing.
/// cancel() also ends the other states, when the value is no longer needed. A value is offloaded at most
/// once.
struct Offload::Value {
  enum class State : uint8_t { resident, writing, offloaded, reading };
  std::vector<Holder> holders;
  State state = State::resident;
  bool was_offloaded = false;
  int64_t number = -1;  // in the store
  Tensor tensor;        // while it is copied; without memory while it is offloaded

  const Tensor& held() const { return *holders.front().tensor; }
  bool has(const Holder& one) const {
    return std::any_of(holders.begin(), holders.end(),
                       [&](const Holder& holder) { return holder.tensor == one.tensor; });
  }
  /// Whether offloading frees memory: nothing but the holders owns the value's storage, and none forbids it.
  bool only_held_here() const {
    const bool stays = std::any_of(holders.begin(), holders.end(), [](const Holder& holder) {
      return holder.stays != nullptr && *holder.stays;
    });
    const auto known = static_cast<int64_t>(holders.size()) + (tensor.defined() ? 1 : 0);
    return !stays && held().storage().use_count() == known;
  }
};

Offload::~Offload() {
  for (const std::vector<ValuePtr>& values : segments_)
    for (const ValuePtr& value : values) cancel(*value);
}

void Offload::begin_segment(const std::vector<Holder>& inputs) {
  for (const std::vector<ValuePtr>& values : segments_) {
    for (const ValuePtr& value : values) {
      // It may be an earlier segment's input too, and offloaded since.
      const bool wanted =
          std::any_of(inputs.begin(), inputs.end(), [&](const Holder& input) { return value->has(input); });
      if (wanted) make_resident(*value);
      if (!wanted && value->state == Value::State::resident && !value->was_offloaded &&
          value->only_held_here())
        start_write(*value);
    }
  }
}

int64_t Offload::end_segment(const std::vector<Holder>& saved) {
  for (const std::vector<ValuePtr>& values : segments_)
    for (const ValuePtr& value : values) evict(*value);
  std::vector<ValuePtr> values;
  for (const Holder& holder : saved) {
    const Tensor& tensor = *holder.tensor;
    // A view: the rest of its storage would stay in memory.
    if (!tensor.defined() || tensor.bytes() == 0 || tensor.bytes() != tensor.storage()->bytes()) continue;
    if (holder.stays != nullptr && *holder.stays) continue;
    ValuePtr value = value_of(holder, values);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
  }
  segments_.push_back(std::move(values));
  return static_cast<int64_t>(segments_.size()) - 1;
}

/// The value of a holder; holders of the same storage share one.
Offload::ValuePtr Offload::value_of(const Holder& holder, const std::vector<ValuePtr>& more) const {
  const auto of_this = [&](const ValuePtr& value) {
    return value->held().defined() && value->held().storage() == holder.tensor->storage();
  };
  ValuePtr value;
  for (const std::vector<ValuePtr>& values : segments_) {
    const auto found = std::find_if(values.begin(), values.end(), of_this);
    if (found != values.end()) value = *found;
  }
  const auto found = std::find_if(more.begin(), more.end(), of_this);
  if (found != more.end()) value = *found;
  if (value == nullptr) value = std::make_shared<Value>();
  if (!value->has(holder)) value->holders.push_back(holder);
  return value;
}

void Offload::fetch(int64_t segment) {
  auto at = segments_.begin() + segment;
  for (const ValuePtr& value : *at) make_resident(*value);
  while (at != segments_.begin()) {
    --at;
    bool reading = false;
    for (const ValuePtr& value : *at) {
      if (value->state == Value::State::offloaded) start_read(*value);
      reading = reading || value->state == Value::State::reading;
    }
    if (reading) return;
  }
}

void Offload::release(int64_t segment) {
  std::vector<ValuePtr>& values = segments_[static_cast<size_t>(segment)];
  for (const ValuePtr& value : values)
    if (value.use_count() == 1) cancel(*value);
  values.clear();
}

void Offload::start_write(Value& value) {
  value.tensor = value.held();
  value.number = store_.write(value.tensor, runtime_.stream());
  value.state = Value::State::writing;
}

void Offload::evict(Value& value) {
  if (value.state != Value::State::writing) return;
  if (!value.only_held_here()) return cancel(value);  // freeing it would gain nothing
  store_.finish_write(value.number, runtime_.stream());
  value.tensor = Tensor::without_memory(value.tensor.shape(), value.tensor.dtype());
  for (const Holder& holder : value.holders) *holder.tensor = value.tensor;
  value.state = Value::State::offloaded;
  value.was_offloaded = true;
}

void Offload::start_read(Value& value) {
  value.tensor = Tensor::empty(runtime_, value.tensor.shape(), value.tensor.dtype(), Tag::activations,
                               "offloaded before");
  value.state = Value::State::reading;
  store_.read(value.number, value.tensor, runtime_.stream());
}

void Offload::make_resident(Value& value) {
  if (value.state == Value::State::writing) cancel(value);
  if (value.state == Value::State::offloaded) start_read(value);
  if (value.state != Value::State::reading) return;
  store_.finish_read(value.number, runtime_.stream());
  value.state = Value::State::resident;
  for (const Holder& holder : value.holders) *holder.tensor = value.tensor;
  value.tensor = {};
}

void Offload::cancel(Value& value) noexcept {
  if (value.state == Value::State::resident) return;
  store_.cancel(value.number, runtime_.stream());
  value.state = Value::State::resident;
  value.tensor = {};
}

}  // namespace meshgrad
