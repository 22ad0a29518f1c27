// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA answers; the rest is in cuda_memory_cuda.cpp.
#ifndef MESHGRAD_HAVE_CUDA
#include <meshgrad/engine/cuda_memory.h>
#include <meshgrad/engine/error.h>

namespace meshgrad {
namespace {

DeviceError no_cuda(int device) {
  return device_error("cuda memory", name_of({DeviceKind::cuda, device}), "a build without CUDA",
                      "build with -DMESHGRAD_CUDA=ON, or use the CPU");
}

}  // namespace

std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device) { throw no_cuda(device); }

std::shared_ptr<MemorySource> make_cuda_memory(int device) { throw no_cuda(device); }

}  // namespace meshgrad
#endif
