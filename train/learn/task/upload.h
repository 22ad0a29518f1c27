// SPDX-License-Identifier: Apache-2.0
// Uploader: copies batches to the device through a ring of pinned buffers, so that the host writes one while
// the device still copies from others.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <vector>

namespace meshgrad {

class Uploader {
 public:
  /// At most `buffers` - 1 batches are staged and not yet uploaded. Each buffer is allocated with `largest`
  /// bytes at first, because reallocating pinned memory synchronises the device.
  Uploader(Runtime& runtime, size_t buffers, int64_t largest)
      : runtime_(runtime), largest_(largest), buffers_(buffers) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  /// Host memory to write a batch into, of `bytes` or more; on the CPU the memory that kernels read. Waits
  /// while the device still copies from it.
  StoragePtr stage(int64_t bytes);
  /// Queues the copy of staged memory to the device, into `to` where it is given, and returns that memory.
  StoragePtr upload(const StoragePtr& staged, int64_t bytes, const StoragePtr& to = {});

 private:
  struct StagingBuffer {
    StoragePtr memory;
    Event copied;
  };
  Runtime& runtime_;
  int64_t largest_;
  std::vector<StagingBuffer> buffers_;
  size_t next_ = 0;
};

/// stage() and upload() for single batches: pageable memory, no buffers that stay.
StoragePtr batch_memory_to_write(Runtime& runtime, int64_t bytes);
StoragePtr device_batch_memory(Runtime& runtime, int64_t bytes);
StoragePtr to_device(Runtime& runtime, const StoragePtr& host, int64_t bytes, const StoragePtr& to = {});

}  // namespace meshgrad
