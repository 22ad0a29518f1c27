// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace meshgrad {

Shape::Shape(std::span<const int64_t> extents) {
  if (extents.size() > kMaxRank)
    throw invalid_argument("shape", "at most 4 extents", std::to_string(extents.size()));
  for (const int64_t extent : extents) {
    if (extent < 0) throw invalid_argument("shape", "extents of 0 or more", std::to_string(extent));
    extents_[rank_++] = extent;
  }
  int64_t count = 1;
  for (const int64_t extent : extents) {
    // An element has at most 8 bytes.
    if (extent > 0 && count > std::numeric_limits<int64_t>::max() / 8 / extent) {
      throw invalid_argument("shape", "fewer bytes than 2^63", text());
    }
    count *= extent;
  }
}

int64_t Shape::elements() const { return rows() * width(); }

int64_t Shape::width() const {
  int64_t width = 1;
  for (int i = 1; i < rank_; ++i) width *= extents_[i];
  return width;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(extents_, extents_ + rank_, other.extents_);
}

std::string Shape::text() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string(extents_[i]);
  return text + "]";
}

Tensor Tensor::empty(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name) {
  StoragePtr storage =
      runtime.allocator().allocate(shape.elements() * size_of(dtype), 64, runtime.stream(), tag, name);
  return over(std::move(storage), 0, shape, dtype);
}

Tensor Tensor::zeros(Runtime& runtime, const Shape& shape, DType dtype, Tag tag, std::string_view name) {
  Tensor tensor = empty(runtime, shape, dtype, tag, name);
  fill_zero(tensor, runtime.stream());
  return tensor;
}

Tensor Tensor::from_host(Runtime& runtime, const void* values, int64_t count, const Shape& shape, DType dtype,
                         Tag tag, std::string_view name) {
  Tensor result = empty(runtime, shape, dtype, tag, name);
  copy(borrow(const_cast<void*>(values), Shape{count}, dtype), result, runtime.stream());
  return result;
}

Tensor Tensor::borrow(void* data, const Shape& shape, DType dtype, std::function<void()> release,
                      Device device) {
  return over(std::make_shared<Storage>(data, shape.elements() * size_of(dtype), device, std::move(release)),
              0, shape, dtype);
}

Tensor Tensor::without_memory(const Shape& shape, DType dtype) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::over(StoragePtr storage, int64_t offset, const Shape& shape, DType dtype) {
  check_internal(offset >= 0 && offset + shape.elements() * size_of(dtype) <= storage->bytes(),
                 "a tensor reaches past its storage");
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.offset_ = offset;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::row_range(int64_t begin, int64_t end) const {
  if (begin < 0 || end < begin || end > rows() || shape_.rank() == 0) {
    throw invalid_argument("row_range", "0 <= begin <= end <= " + std::to_string(rows()),
                           std::to_string(begin) + ".." + std::to_string(end));
  }
  int64_t extents[Shape::kMaxRank] = {end - begin, shape_[1], shape_[2], shape_[3]};
  const Shape shape(std::span<const int64_t>(extents, static_cast<size_t>(shape_.rank())));
  return over(storage_, offset_ + begin * width() * size_of(dtype_), shape, dtype_);
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.elements() != elements()) {
    throw invalid_argument("reshaped", std::to_string(elements()) + " elements", shape.text());
  }
  return over(storage_, offset_, shape, dtype_);
}

void fill_zero(const Tensor& tensor, const Stream& stream) {
  if (tensor.bytes() == 0 || stream.dry()) return;
  if (tensor.device().kind == DeviceKind::cuda) {
    gpu::fill(stream.device().index, tensor.raw(), 0, tensor.bytes(), stream.native());
  } else {
    // Each thread touches its share of the pages first, which places them in its NUMA node's memory.
    constexpr int64_t kSlab = int64_t{1} << 20;
    auto* const bytes = static_cast<char*>(tensor.raw());
    stream.parallel_for((tensor.bytes() + kSlab - 1) / kSlab, [&](int64_t slab) {
      const int64_t begin = slab * kSlab;
      std::memset(bytes + begin, 0, static_cast<size_t>(std::min(kSlab, tensor.bytes() - begin)));
    });
  }
}

void copy(const Tensor& from, const Tensor& to, const Stream& stream) {
  if (from.dtype() != to.dtype() || from.elements() != to.elements()) {
    throw invalid_argument("copy", std::string(name_of(to.dtype())) + to.shape().text(),
                           std::string(name_of(from.dtype())) + from.shape().text());
  }
  if (to.bytes() == 0 || stream.dry()) return;
  if (from.device().kind == DeviceKind::cuda || to.device().kind == DeviceKind::cuda) {
    gpu::copy(to.raw(), from.raw(), to.bytes(), stream.native());
  } else {
    std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes()));
  }
}

Tensor host_tensor(const Shape& shape, DType dtype) {
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(shape.elements() * size_of(dtype)));
  return Tensor::borrow(bytes->data(), shape, dtype, [bytes] {});
}

Tensor to_host(const Tensor& tensor, const Stream& stream) {
  check_internal(!stream.dry(), "values of a dry run were read");
  if (tensor.device().kind == DeviceKind::cpu) return tensor;
  Tensor host = host_tensor(tensor.shape(), tensor.dtype());
  copy(tensor, host, stream);
  stream.synchronize();
  return host;
}

int64_t real_rows(const Rows& rows, Device device, const Stream& stream) {
  if (rows.count == nullptr) return rows.capacity;
  const Tensor count = Tensor::borrow(const_cast<int64_t*>(rows.count), Shape{1}, DType::i64, {}, device);
  return std::min(rows.capacity, *to_host(count, stream).data<int64_t>());
}

}  // namespace meshgrad
