// SPDX-License-Identifier: Apache-2.0
// The memory of a CUDA device. Both sources leave the caller's current device and context as they find them,
// also where the caller has none. Their capacity is all the memory of the device, because what others hold
// now may become free: a mapping may be refused long before.
//
// While a stream capture is under way anywhere in the process, only reserve() and map() may be called. Events
// are cudaEvents on Stream::native(), a cudaStream_t; null is the default stream.
#pragma once
#include <meshgrad/engine/memory/source.h>

#include <memory>

namespace meshgrad {

/// Address ranges that grow: one physical handle a mapping. Throws DeviceError when there is no such device,
/// when it has no virtual memory management, or in a build without CUDA.
std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device);

/// Plain cudaMalloc and cudaFree: for libraries that cannot register mapped memory, and devices without
/// virtual memory management. Does not expand. Throws like make_cuda_virtual_memory.
std::shared_ptr<MemorySource> make_cuda_memory(int device);

}  // namespace meshgrad
