// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

/// Where a value is:
///
///              start_write()            leave(), settled
///       here -----------------> leaving -----------------> away
///        ^ ^                       |                        |
///        | +--- drop(): others ----+                        | start_read()
///        |      hold it, or it is wanted                    v
///        +-------------------- arrive() ----------------- coming
///
/// It is in the device's memory but when it is away; its holders see it when it is here or leaving. drop()
/// also ends what is away or coming: nobody will read it. What was away once stays when it is back.
struct Offload::Value {
  enum class Where : uint8_t { here, leaving, away, coming };
  std::vector<Holder> holders;
  Where where = Where::here;
  bool was_away = false;
  int64_t number = -1;  // in the store
  Tensor tensor;        // while it is copied; without memory while it is away

  const Tensor& held() const { return *holders.front().tensor; }
  bool has(const Holder& one) const {
    return std::any_of(holders.begin(), holders.end(),
                       [&](const Holder& holder) { return holder.tensor == one.tensor; });
  }
  /// Whether the holders are all that keep the value in memory.
  bool alone() const {
    const bool stays = std::any_of(holders.begin(), holders.end(), [](const Holder& holder) {
      return holder.stays != nullptr && *holder.stays;
    });
    const auto known = static_cast<int64_t>(holders.size()) + (tensor.defined() ? 1 : 0);
    return !stays && held().storage().use_count() == known;
  }
};

Offload::~Offload() {
  for (const std::vector<ValuePtr>& values : segments_)
    for (const ValuePtr& value : values) drop(*value);
}

void Offload::begin_segment(const std::vector<Holder>& inputs) {
  for (const std::vector<ValuePtr>& values : segments_) {
    for (const ValuePtr& value : values) {
      // Another segment took it as an input before: it comes back for this one.
      const bool wanted =
          std::any_of(inputs.begin(), inputs.end(), [&](const Holder& input) { return value->has(input); });
      if (wanted) arrive(*value);
      if (!wanted && value->where == Value::Where::here && !value->was_away && value->alone())
        start_write(*value);
    }
  }
}

int64_t Offload::end_segment(const std::vector<Holder>& kept) {
  for (const std::vector<ValuePtr>& values : segments_)
    for (const ValuePtr& value : values) leave(*value);
  std::vector<ValuePtr> values;
  for (const Holder& holder : kept) {
    const Tensor& tensor = *holder.tensor;
    // Of a view, the rest of the memory would stay.
    if (!tensor.defined() || tensor.bytes() == 0 || tensor.bytes() != tensor.storage()->bytes()) continue;
    if (holder.stays != nullptr && *holder.stays) continue;
    ValuePtr value = value_of(holder, values);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
  }
  segments_.push_back(std::move(values));
  return static_cast<int64_t>(segments_.size()) - 1;
}

/// One value for all who hold the same memory.
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

void Offload::bring_back(int64_t segment) {
  auto at = segments_.begin() + segment;
  for (const ValuePtr& value : *at) arrive(*value);
  while (at != segments_.begin()) {
    --at;
    bool reading = false;
    for (const ValuePtr& value : *at) {
      if (value->where == Value::Where::away) start_read(*value);
      reading = reading || value->where == Value::Where::coming;
    }
    if (reading) return;
  }
}

void Offload::forget(int64_t segment) {
  std::vector<ValuePtr>& values = segments_[static_cast<size_t>(segment)];
  for (const ValuePtr& value : values)
    if (value.use_count() == 1) drop(*value);
  values.clear();
}

void Offload::start_write(Value& value) {
  value.tensor = value.held();
  value.number = store_.write(value.tensor, runtime_.stream());
  value.where = Value::Where::leaving;
}

void Offload::leave(Value& value) {
  if (value.where != Value::Where::leaving) return;
  if (!value.alone()) return drop(value);  // no memory would be gained
  store_.settle(value.number, runtime_.stream());
  value.tensor = Tensor::without_memory(value.tensor.shape(), value.tensor.dtype());
  for (const Holder& holder : value.holders) *holder.tensor = value.tensor;
  value.where = Value::Where::away;
  value.was_away = true;
}

void Offload::start_read(Value& value) {
  value.tensor = Tensor::empty(runtime_, value.tensor.shape(), value.tensor.dtype(), Tag::activations,
                               "offloaded before");
  value.where = Value::Where::coming;
  store_.read(value.number, value.tensor, runtime_.stream());
}

void Offload::arrive(Value& value) {
  if (value.where == Value::Where::leaving) drop(value);
  if (value.where == Value::Where::away) start_read(value);
  if (value.where != Value::Where::coming) return;
  store_.arrive(value.number, runtime_.stream());
  value.where = Value::Where::here;
  for (const Holder& holder : value.holders) *holder.tensor = value.tensor;
  value.tensor = {};
}

void Offload::drop(Value& value) noexcept {
  if (value.where == Value::Where::here) return;
  store_.drop(value.number, runtime_.stream());
  value.where = Value::Where::here;
  value.tensor = {};
}

}  // namespace meshgrad
