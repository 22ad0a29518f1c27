// SPDX-License-Identifier: Apache-2.0
// InlineVector: a vector of fixed capacity stored inside the object, so that short lists (an op's inputs, a
// model's layers) need no heap allocation.
#pragma once
#include <meshgrad/engine/error.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The interface is the part of std::vector's that is used here; unlike std::array it has a size of its own.
/// Adding a value beyond `capacity` throws InvalidArgument. T needs a default constructor: unused elements
/// exist.
template <class T, size_t capacity>
class InlineVector {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): as in std::vector
  InlineVector() = default;
  InlineVector(const InlineVector&) = default;
  InlineVector& operator=(const InlineVector&) = default;
  InlineVector(InlineVector&& from) noexcept
      : values_(std::move(from.values_)), size_(std::exchange(from.size_, 0)) {}
  InlineVector& operator=(InlineVector&& from) noexcept {
    values_ = std::move(from.values_);
    size_ = std::exchange(from.size_, 0);
    return *this;
  }
  InlineVector(std::initializer_list<T> values)
      : InlineVector(std::span<const T>(values.begin(), values.size())) {}
  InlineVector(const std::vector<T>& values)  // NOLINT(google-explicit-constructor): converts like one
      : InlineVector(std::span<const T>(values)) {}
  explicit InlineVector(std::span<const T> values) {
    for (const T& value : values) push_back(value);
  }
  operator std::vector<T>() const { return {begin(), end()}; }  // NOLINT(google-explicit-constructor)

  void push_back(T value) {
    if (size_ == capacity) {
      throw invalid_argument("InlineVector", "at most " + std::to_string(capacity) + " values",
                             std::to_string(capacity + 1));
    }
    values_[size_++] = std::move(value);
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  T& front() { return values_.front(); }
  const T& front() const { return values_.front(); }
  T& back() { return values_[size_ - 1]; }
  const T& back() const { return values_[size_ - 1]; }
  T* begin() { return values_.data(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return begin() + size_; }
  void clear() { *this = InlineVector(); }

 private:
  std::array<T, capacity> values_{};
  size_t size_ = 0;
};

}  // namespace meshgrad
#pragma GCC visibility pop
