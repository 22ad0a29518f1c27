// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/pinned_tensor.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/upload.h>

#include <algorithm>

namespace meshgrad {
namespace {

Tensor bytes_of(const StoragePtr& storage, int64_t bytes) {
  return Tensor::over(storage, 0, Shape{bytes}, DType::u8);
}

}  // namespace

StoragePtr device_batch_memory(Runtime& runtime, int64_t bytes) {
  return runtime.allocator().allocate(bytes, BatchLayout::kAlignment, runtime.stream(), Tag::data, "batch");
}

/// The device may still be copying.
Uploader::~Uploader() {
  try {
    for (const StagingBuffer& buffer : buffers_) buffer.copied.await();
  } catch (const Error&) {
    // A device that failed copies no more.
  }
}

StoragePtr Uploader::stage(int64_t bytes) {
  if (!runtime_.stream().on_gpu()) return device_batch_memory(runtime_, bytes);
  StagingBuffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  buffer.copied.await();
  if (buffer.memory == nullptr || buffer.memory->bytes() < bytes) {
    buffer.memory = nullptr;
    buffer.memory = pinned_tensor(runtime_.device(), Shape{std::max(bytes, largest_)}, DType::u8).storage();
  }
  return buffer.memory;
}

StoragePtr Uploader::upload(const StoragePtr& staged, int64_t bytes, const StoragePtr& to) {
  if (!runtime_.stream().on_gpu()) return staged;
  const StoragePtr device = to != nullptr ? to : device_batch_memory(runtime_, bytes);
  copy(bytes_of(staged, bytes), bytes_of(device, bytes), runtime_.stream());
  for (StagingBuffer& buffer : buffers_) {
    if (buffer.memory == staged) buffer.copied.record(runtime_.stream());
  }
  return device;
}

StoragePtr batch_memory_to_write(Runtime& runtime, int64_t bytes) {
  return runtime.stream().on_gpu() ? host_tensor(Shape{bytes}, DType::u8).storage()
                                   : device_batch_memory(runtime, bytes);
}

StoragePtr to_device(Runtime& runtime, const StoragePtr& host, int64_t bytes, const StoragePtr& to) {
  if (!runtime.stream().on_gpu()) return host;
  const StoragePtr device = to != nullptr ? to : device_batch_memory(runtime, bytes);
  copy(bytes_of(host, bytes), bytes_of(device, bytes), runtime.stream());
  return device;
}

}  // namespace meshgrad
