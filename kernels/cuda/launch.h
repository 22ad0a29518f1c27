// SPDX-License-Identifier: Apache-2.0
// Starting kernels: one function, checked and counted; with nvcc on the GPU, otherwise on the simulated
// device.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/stream.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <simt.h>
#endif

#include <algorithm>

namespace meshgrad::cuda {

/// A device gives 48 KiB to fixed and dynamic shared memory together, unless it is asked for more; what is
/// fixed in the kernel is not known here, and may be the rest.
inline constexpr int kSharedWithoutAsking = 32 * 1024;
inline constexpr int kSharedUnasked = 48 * 1024;

struct LaunchShape {
  int64_t blocks = 1;
  int threads = 32;      ///< of a block
  int shared_bytes = 0;  ///< dynamic shared memory of a block
};

/// Starts `kernel(args)` on the stream. No blocks: does nothing. Throws DeviceError naming the kernel.
template <class Args>
void launch(const char* name, void (*kernel)(Args), const LaunchShape& shape, const Stream& stream,
            const Args& args) {
  if (shape.blocks == 0 || stream.dry()) return;
#ifdef __CUDACC__
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kSharedWithoutAsking) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  }
  if (error == cudaSuccess) {
    kernel<<<static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.threads),
             static_cast<size_t>(shape.shared_bytes), static_cast<cudaStream_t>(stream.native())>>>(args);
    error = cudaGetLastError();
  }
  if (error != cudaSuccess) {
    throw device_error(name, "a kernel that starts", cudaGetErrorString(error),
                       "see that this build has code for the device: -DCMAKE_CUDA_ARCHITECTURES");
  }
#else
  simt::launch(name, shape.blocks, shape.threads, shape.shared_bytes, stream.native(),
               [kernel, args] { kernel(args); });
#endif
  gpu::count_launch();
}

/// Blocks for `items`, `per_block` of them each.
constexpr int64_t blocks_for(int64_t items, int64_t per_block) { return (items + per_block - 1) / per_block; }

/// Blocks of a kernel that strides over its items: enough for all of them, but no more than keep the device
/// busy.
inline int64_t persistent_blocks(const Stream& stream, int64_t items, int64_t per_block, int blocks_per_sm) {
  const int64_t most = int64_t{gpu::multiprocessors(stream.device().index)} * blocks_per_sm;
  return std::min(blocks_for(items, per_block), most);
}

}  // namespace meshgrad::cuda
