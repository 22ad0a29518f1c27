// SPDX-License-Identifier: Apache-2.0
// Names of allocations, each stored once, and a ring buffer of an allocator's last events. Not thread-safe:
// the allocator uses both under its lock.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <deque>
#include <functional>
#include <unordered_map>

namespace meshgrad {

/// Maps names of allocations, with their scopes, to small numbers. Looking up a known name makes no heap
/// allocation.
class NameTable {
 public:
  NameTable();
  /// The number of `name` inside of `scope` (itself such a number): of "scope/name". 0 is the empty name.
  /// Holds 65,536 names; after that, new ones get the number of their scope.
  uint32_t inside(uint32_t scope, std::string_view name);
  const std::string& operator[](uint32_t number) const { return names_[number]; }
  std::vector<std::string> all() const { return {names_.begin(), names_.end()}; }

 private:
  struct Key {
    uint32_t scope;
    std::string_view name;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.name) ^ (size_t{key.scope} * 0x9E3779B97F4A7C15ULL);
    }
  };
  std::deque<std::string> names_;
  std::deque<std::string> parts_;  // the last part of each name, which the keys point to
  std::unordered_map<Key, uint32_t, Hash> numbers_;
};

/// A ring buffer of the last `capacity` events.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(int64_t capacity = 0) : capacity_(capacity) {
    ring_.reserve(static_cast<size_t>(capacity));
  }
  bool records() const { return capacity_ > 0; }
  /// Nanoseconds since the Unix epoch, for MemoryEvent::nanoseconds.
  static int64_t now();
  void record(const MemoryEvent& event);
  /// Events, oldest first, without names.
  MemoryHistory history() const;

 private:
  int64_t capacity_;
  int64_t count_ = 0;  // events recorded so far
  std::vector<MemoryEvent> ring_;
};

}  // namespace meshgrad
