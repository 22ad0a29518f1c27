// SPDX-License-Identifier: Apache-2.0
// Storage: a reference-counted piece of memory, from an allocator or borrowed from a host application.
#pragma once
#include <meshgrad/engine/device.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>

#pragma GCC visibility push(default)
namespace meshgrad {

class CachingAllocator;
struct Block;

/// Returns its memory when the last owner goes. Keeps its allocator alive.
class Storage {
 public:
  /// Borrowed memory; `release`, which may be empty, is called at the end.
  Storage(void* data, int64_t bytes, Device device, std::function<void()> release)
      : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}
  /// For CachingAllocator::allocate(): of one block, or of two that follow one another.
  Storage(void* data, int64_t bytes, std::shared_ptr<CachingAllocator> allocator,
          std::array<Block*, 2> blocks);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  friend class CachingAllocator;
  void* data_;
  int64_t bytes_;
  Device device_;
  std::array<Block*, 2> blocks_{};
  std::shared_ptr<CachingAllocator> allocator_;
  std::function<void()> release_;
};
using StoragePtr = std::shared_ptr<Storage>;

}  // namespace meshgrad
#pragma GCC visibility pop
