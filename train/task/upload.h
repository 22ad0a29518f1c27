// SPDX-License-Identifier: Apache-2.0
// Uploader: how batches reach the device. The host writes into pinned pieces in turn, while the device still
// copies from those before.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <vector>

namespace meshgrad {

class Uploader {
 public:
  /// At most `pieces` - 1 are staged and not yet uploaded at once. Each is made for `largest` bytes at first:
  /// to make one anew would stop the device.
  Uploader(Runtime& runtime, size_t pieces, int64_t largest)
      : runtime_(runtime), largest_(largest), pieces_(pieces) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  /// Host memory to write a batch into, of `bytes` or more; on the CPU the very memory that is computed from.
  /// Waits while the device still copies from it.
  StoragePtr stage(int64_t bytes);
  /// What was staged, in device memory: `to` where it is given. Queued; the host goes on.
  StoragePtr upload(const StoragePtr& staged, int64_t bytes, const StoragePtr& to = {});

 private:
  struct Piece {
    StoragePtr memory;
    Event copied;
  };
  Runtime& runtime_;
  int64_t largest_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;
};

/// As stage() and upload(), for one batch now and then: from pageable memory, nothing kept.
StoragePtr batch_memory_to_write(Runtime& runtime, int64_t bytes);
StoragePtr device_batch_memory(Runtime& runtime, int64_t bytes);
StoragePtr to_device(Runtime& runtime, const StoragePtr& host, int64_t bytes);

}  // namespace meshgrad
