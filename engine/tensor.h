// SPDX-License-Identifier: Apache-2.0
// Tensor: a typed, contiguous, row-major array on a device, and Rows, a row count that may live in device
// memory.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/memory/storage.h>
#include <meshgrad/engine/memory/tag.h>
#include <meshgrad/engine/stream.h>

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

class Runtime;

/// Up to 4 extents of 0 or more; most are [rows] or [rows, width]. The constructors throw InvalidArgument for
/// more extents, a negative one, or 2^63 bytes and above.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents);
  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[axis]; }
  int64_t elements() const;
  /// The first extent; 1 for a scalar (rank 0).
  int64_t rows() const { return rank_ == 0 ? 1 : extents_[0]; }
  /// Elements of one row: the product of the other extents.
  int64_t width() const;
  bool operator==(const Shape& other) const;
  std::string text() const;  ///< "[1849, 128]"

 private:
  int64_t extents_[kMaxRank] = {};
  int rank_ = 0;
};

/// A handle: copies and views share the reference-counted storage. There are no strides; a view is a row
/// range. Like a pointer it does not synchronize: reads and writes are ordered by the streams that do them.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised memory from the runtime's allocator, aligned to 64 bytes or more. Tag and name appear in
  /// memory reports. Throws OutOfMemory.
  static Tensor empty(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name = {});
  /// empty(), then fill_zero() on the runtime's stream.
  static Tensor zeros(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name = {});
  /// Memory of a host application, without a copy; `release` (may be empty) is called with the last view's
  /// end.
  static Tensor borrow(void* data, const Shape& shape, DType dtype, std::function<void()> release = {},
                       Device device = {});
  /// A view of part of a storage, from byte `offset`. Throws InternalError when it reaches past the end.
  static Tensor over(StoragePtr storage, int64_t offset, const Shape& shape, DType dtype);
  /// Shape and dtype only; defined() is false. For values that are not needed.
  static Tensor without_memory(const Shape& shape, DType dtype);
  /// A copy of host values, queued on the runtime's stream. Throws InvalidArgument when their number is not
  /// shape.elements().
  template <class T>
  static Tensor from(Runtime& runtime, std::span<const T> values, const Shape& shape, Tag tag,
                     std::string_view name = {}) {
    return from_host(runtime, values.data(), static_cast<int64_t>(values.size()), shape, dtype_of<T>(), tag,
                     name);
  }

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

  /// Address of the first element, on the tensor's device.
  void* raw() const { return static_cast<char*>(storage_->data()) + offset_; }
  /// The same, typed. Throws InternalError when T is not the dtype.
  template <class T>
  T* data() const {
    check_internal(dtype_ == dtype_of<T>(), "a tensor was read as another dtype");
    return static_cast<T*>(raw());
  }
  /// The same, or null when the tensor is not defined().
  template <class T>
  T* data_or_null() const {
    return defined() ? data<T>() : nullptr;
  }
  template <class T>
  std::span<T> values() const {
    return {data<T>(), static_cast<size_t>(elements())};
  }

  /// Rows [begin, end) as a view. Throws InvalidArgument outside of 0 <= begin <= end <= rows().
  Tensor row_range(int64_t begin, int64_t end) const;
  /// A view with another shape of as many elements. Throws InvalidArgument.
  Tensor reshaped(const Shape& shape) const;

 private:
  static Tensor from_host(Runtime& runtime, const void* values, int64_t count, const Shape& shape,
                          DType dtype, Tag tag, std::string_view name);

  StoragePtr storage_;
  int64_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::f32;
};

/// Queues setting every byte to zero.
void fill_zero(const Tensor& tensor, const Stream& stream);
/// Queues a copy between tensors of equal dtype and number of elements, which do not overlap, on any two
/// devices; `stream` belongs to the GPU if one side is on one. Throws InvalidArgument for different dtypes or
/// counts.
void copy(const Tensor& from, const Tensor& to, const Stream& stream);
/// Zeros in host memory, not from an allocator and not in its statistics.
Tensor host_tensor(const Shape& shape, DType dtype);
/// The values in host memory: the tensor itself on the CPU; else a copy, after which the stream is
/// synchronized.
Tensor to_host(const Tensor& tensor, const Stream& stream);

/// The number of rows that a kernel processes: `capacity`, known on the host, or fewer, when `count` points
/// to the real number in device memory. So one captured CUDA graph serves meshes of all sizes up to the
/// capacity.
struct Rows {
  int64_t capacity = 0;
  const int64_t* count = nullptr;  ///< on the kernel's device; null: all rows are real
  Rows() = default;
  Rows(int64_t rows)
      : capacity(rows) {}  // NOLINT(google-explicit-constructor): a plain count is the usual case
  Rows(int64_t rows, const int64_t* real) : capacity(rows), count(real) {}
  /// CPU only: the number of real rows.
  int64_t value() const { return count == nullptr ? capacity : *count; }
};
/// The number of real rows; synchronizes the stream when it is in the memory of a GPU.
int64_t real_rows(const Rows& rows, Device device, const Stream& stream);

}  // namespace meshgrad
#pragma GCC visibility pop
