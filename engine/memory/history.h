// SPDX-License-Identifier: Apache-2.0
// Names of allocations, each stored once, and the ring of an allocator's last events.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <deque>
#include <unordered_map>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Joined names of scopes and allocations, by number. Looking up a known name allocates nothing.
class NameTable {
 public:
  NameTable();
  /// The number of `name` inside the scope of that number; 0 is the empty name, at the outside.
  uint32_t inside(uint32_t scope, std::string_view name);
  const std::string& operator[](uint32_t number) const { return names_[number]; }
  std::vector<std::string> all() const { return {names_.begin(), names_.end()}; }

 private:
  uint32_t find_or_add(uint32_t scope, std::string_view name);

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
  std::deque<std::string> parts_;  // of each, the part behind its scope: what the keys look at
  std::unordered_map<Key, uint32_t, Hash> numbers_;
  // Names are mostly literals: what was found last for an address is tried first.
  struct Recent {
    uint32_t scope = 0, number = 0;
  };
  std::array<Recent, 256> recent_{};
};

/// The last `capacity` events.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(int64_t capacity = 0) : capacity_(capacity) {
    ring_.reserve(static_cast<size_t>(capacity));
  }
  bool records() const { return capacity_ > 0; }
  /// Nanoseconds since the Unix epoch, for an event's stamp.
  static int64_t now();
  void record(const MemoryEvent& event);
  /// Events, oldest first; names are left to the caller.
  MemoryHistory history() const;

 private:
  int64_t capacity_;
  int64_t count_ = 0;  // of all events ever recorded
  std::vector<MemoryEvent> ring_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
