// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/history.h>

#include <chrono>

namespace meshgrad {
namespace {

// Names come from code, so they are few; the limit is for callers that generate names.
constexpr size_t kMaxNames = 1 << 16;

}  // namespace

NameTable::NameTable() {
  names_.emplace_back();
  parts_.emplace_back();
}

uint32_t NameTable::inside(uint32_t scope, std::string_view name) {
  if (name.empty()) return scope;
  const auto known = numbers_.find({scope, name});
  if (known != numbers_.end()) return known->second;
  if (names_.size() >= kMaxNames) return scope;
  const std::string& outer = names_[scope];
  names_.push_back(outer.empty() ? std::string(name) : outer + "/" + std::string(name));
  parts_.emplace_back(name);
  const auto number = static_cast<uint32_t>(names_.size() - 1);
  numbers_.emplace(Key{scope, parts_.back()}, number);
  return number;
}

int64_t MemoryRecorder::now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void MemoryRecorder::record(const MemoryEvent& event) {
  if (count_ < capacity_) {
    ring_.push_back(event);
  } else {
    ring_[static_cast<size_t>(count_ % capacity_)] = event;
  }
  ++count_;
}

MemoryHistory MemoryRecorder::history() const {
  MemoryHistory history;
  history.dropped = count_ - static_cast<int64_t>(ring_.size());
  const auto oldest = capacity_ > 0 && count_ > capacity_ ? static_cast<ptrdiff_t>(count_ % capacity_) : 0;
  history.events.assign(ring_.begin() + oldest, ring_.end());
  history.events.insert(history.events.end(), ring_.begin(), ring_.begin() + oldest);
  return history;
}

}  // namespace meshgrad
