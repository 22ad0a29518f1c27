// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/cuda_memory.h>
#include <meshgrad/engine/host_memory.h>
#include <meshgrad/engine/runtime.h>

namespace meshgrad {
namespace {

std::shared_ptr<MemorySource> memory_of(const Device& device, const AllocatorOptions& options) {
  if (device.kind == DeviceKind::cpu) return std::make_shared<HostMemorySource>();
  return options.expandable_segments ? make_cuda_virtual_memory(device.index)
                                     : make_cuda_memory(device.index);
}

}  // namespace

Runtime::Runtime(RuntimeOptions options)
    : pool_(options.threads),
      stream_(options.device, pool_),
      allocator_(CachingAllocator::create(
          options.memory ? std::move(options.memory) : memory_of(options.device, options.allocator),
          options.allocator)),
      seed_(options.seed),
      log_(std::move(options.log)) {}

}  // namespace meshgrad
