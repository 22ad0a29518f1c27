// SPDX-License-Identifier: Apache-2.0
// Tensor: a typed, contiguous, row-major array on a device, sharing its storage with its views.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <initializer_list>
#include <span>
#include <string>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Up to 4 extents; the first is the rows. A GNN's arrays are [rows] or [rows, width].
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents);
  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[axis]; }
  int64_t elements() const;
  /// First extent; 1 for a scalar (rank 0).
  int64_t rows() const { return rank_ == 0 ? 1 : extents_[0]; }
  /// Elements of one row.
  int64_t width() const;
  bool operator==(const Shape& other) const;
  std::string text() const;  ///< "[1849, 128]"

 private:
  int64_t extents_[kMaxRank] = {};
  int rank_ = 0;
};

/// Copies share the storage. There are no strides: a view is a row range.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised memory from the runtime's allocator, tagged and named for the memory report.
  static Tensor empty(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name = {});
  static Tensor zeros(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name = {});
  /// Memory of a host application; `release` (may be empty) is called when the last view goes.
  static Tensor borrow(void* data, const Shape& shape, DType dtype, std::function<void()> release = {},
                       Device device = {});
  /// A tensor over a storage that is already there, from byte `offset`.
  static Tensor over(StoragePtr storage, int64_t offset, const Shape& shape, DType dtype);
  /// Shape and dtype alone, of a value that nobody reads: not defined().
  static Tensor without_memory(const Shape& shape, DType dtype);
  /// A copy of host values.
  template <class T>
  static Tensor from(Runtime& runtime, std::span<const T> values, const Shape& shape, Tag tag,
                     std::string_view name = {});

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  int64_t rows() const { return shape_.rows(); }
  int64_t width() const { return shape_.width(); }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  const StoragePtr& storage() const { return storage_; }

  void* raw() const { return static_cast<char*>(storage_->data()) + offset_; }
  /// Pointer to the first element; throws InternalError when T is not the dtype.
  template <class T>
  T* data() const {
    check_internal(dtype_ == dtype_of<T>(), "a tensor was read as another dtype");
    return static_cast<T*>(raw());
  }
  /// The same, or null where the tensor is undefined.
  template <class T>
  T* data_or_null() const {
    return defined() ? data<T>() : nullptr;
  }
  template <class T>
  std::span<T> values() const {
    return {data<T>(), static_cast<size_t>(elements())};
  }

  /// Rows [begin, end), sharing the storage.
  Tensor row_range(int64_t begin, int64_t end) const;
  /// The same elements under another shape of as many elements.
  Tensor reshaped(const Shape& shape) const;

 private:
  StoragePtr storage_;
  int64_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::f32;
};

/// Sets every byte to zero.
void fill_zero(const Tensor& tensor, const Stream& stream);
/// Copies elements of the same dtype and count, between any two devices; the two do not overlap. `stream` is
/// the device's where one side is on one.
void copy(const Tensor& from, const Tensor& to, const Stream& stream);
/// Zeros in the host's memory, beside any device and no part of its allocator's books.
Tensor host_tensor(const Shape& shape, DType dtype);
/// The values where the host can read them: the tensor itself on the CPU; else a copy, after waiting for it.
Tensor to_host(const Tensor& tensor, const Stream& stream);

template <class T>
Tensor Tensor::from(Runtime& runtime, std::span<const T> values, const Shape& shape, Tag tag,
                    std::string_view name) {
  Tensor result = empty(runtime, shape, dtype_of<T>(), tag, name);
  copy(borrow(const_cast<T*>(values.data()), Shape{static_cast<int64_t>(values.size())}, dtype_of<T>()),
       result, runtime.stream());
  return result;
}

/// Rows of a kernel argument: a capacity known on the host and, where the real count lives in device memory,
/// a pointer to it. Null means that every row counts.
struct Rows {
  int64_t capacity = 0;
  const int64_t* count = nullptr;
  Rows() = default;
  Rows(int64_t rows)
      : capacity(rows) {}  // NOLINT(google-explicit-constructor): a plain count is the usual case
  Rows(int64_t rows, const int64_t* real) : capacity(rows), count(real) {}
  /// CPU only: the rows to process.
  int64_t value() const { return count == nullptr ? capacity : *count; }
};
/// How many rows are real; waits where their count lies on a device.
int64_t real_rows(const Rows& rows, Device device, const Stream& stream);

}  // namespace meshgrad
#pragma GCC visibility pop
