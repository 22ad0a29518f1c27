// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/host_memory.h>
#include <meshgrad/engine/runtime.h>

namespace meshgrad {

Runtime::Runtime(RuntimeOptions options)
    : pool_(options.threads),
      stream_(options.device, pool_),
      allocator_(CachingAllocator::create(
          options.memory ? std::move(options.memory) : std::make_shared<HostMemorySource>(),
          options.allocator)),
      seed_(options.seed),
      log_(std::move(options.log)) {}

}  // namespace meshgrad
