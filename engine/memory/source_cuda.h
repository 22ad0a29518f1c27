// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device. Both sources leave the calling thread's current device and context unchanged, even
// when it has none. Their capacity is the device's total memory, since memory of other programs may become
// free; so map() may fail long before.
//
// During a stream capture anywhere in the process, only reserve() and map() may be called. Events are
// cudaEvents on Stream::native(), a cudaStream_t; null is the default stream.
#pragma once
#include <meshgrad/engine/memory/source.h>

#include <memory>

namespace meshgrad {

/// CUDA virtual memory (cuMemMap): expandable, one physical handle per mapping. Null when the device has
/// none, as in some virtual machines. Throws DeviceError when there is no such device, or in a build without
/// CUDA.
std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device);

/// Plain cudaMalloc and cudaFree, not expandable: for libraries that cannot register mapped memory, and
/// devices without virtual memory management. Throws like make_cuda_virtual_memory.
std::shared_ptr<MemorySource> make_cuda_memory(int device);

}  // namespace meshgrad
