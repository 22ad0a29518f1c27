// SPDX-License-Identifier: Apache-2.0
// Memory for the small pieces of a step's bookkeeping: owner counts, tape entries. What is freed is handed
// out again, so that a step that came before asks the heap for nothing.
#pragma once
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace meshgrad {

/// An allocator for containers and shared pointers. Copies share the memory, which goes with the last of
/// them: pieces keep it alive. Thread-safe. A default-constructed one starts a memory of its own.
template <class T>
class Recycling {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard library asks for it
  Recycling() : memory_(make_memory()) {}
  template <class U>
  Recycling(const Recycling<U>& other) : memory_(other.memory_) {}  // NOLINT(google-explicit-constructor)
  T* allocate(size_t n) { return static_cast<T*>(memory_->allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* pieces, size_t n) noexcept { memory_->deallocate(pieces, n * sizeof(T), alignof(T)); }
  template <class U>
  bool operator==(const Recycling<U>& other) const {
    return memory_ == other.memory_;
  }

 private:
  template <class U>
  friend class Recycling;
  static std::shared_ptr<std::pmr::memory_resource> make_memory() {
#if defined(__SANITIZE_ADDRESS__)
    // What is used after it was freed shall be seen.
    return {std::pmr::new_delete_resource(), [](std::pmr::memory_resource*) {}};
#else
    constexpr size_t kLargest = size_t{1} << 18;  // larger ones come from the heap
    return std::make_shared<std::pmr::synchronized_pool_resource>(
        std::pmr::pool_options{.max_blocks_per_chunk = 0, .largest_required_pool_block = kLargest});
#endif
  }
  std::shared_ptr<std::pmr::memory_resource> memory_;
};

using RecycledString = std::basic_string<char, std::char_traits<char>, Recycling<char>>;

/// As std::make_shared.
template <class T, class... Arguments>
std::shared_ptr<T> make_recycled(const Recycling<std::byte>& memory, Arguments&&... arguments) {
  return std::allocate_shared<T>(Recycling<T>(memory), std::forward<Arguments>(arguments)...);
}

}  // namespace meshgrad
#pragma GCC visibility pop
