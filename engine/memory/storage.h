// SPDX-License-Identifier: Apache-2.0
// A piece of memory with one owner count.
#pragma once
#include <meshgrad/engine/device.h>

#include <functional>
#include <memory>

#pragma GCC visibility push(default)
namespace meshgrad {

class CachingAllocator;
struct Block;

/// Handed back to its allocator or its lender when the last holder goes. An allocator lives as long as the
/// storages it handed out.
class Storage {
 public:
  /// Lent by somebody else; `release` may be empty.
  Storage(void* data, int64_t bytes, Device device, std::function<void()> release)
      : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}
  Storage(void* data, int64_t bytes, std::shared_ptr<CachingAllocator> allocator, Block* block);
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
  Block* block_ = nullptr;
  std::shared_ptr<CachingAllocator> allocator_;
  std::function<void()> release_;
};
using StoragePtr = std::shared_ptr<Storage>;

}  // namespace meshgrad
#pragma GCC visibility pop
