// SPDX-License-Identifier: Apache-2.0
// Kernel launches: one function, checked and counted. Compiled by nvcc it launches on the GPU, otherwise on
// the simulated device; a build without CUDA (MESHGRAD_PLAN_ONLY) launches nothing, and its streams are dry.
#pragma once
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/gpu_launch.h>
#include <meshgrad/engine/launch_trace.h>
#include <meshgrad/engine/stream.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <meshgrad/kernels/cuda/simt.h>
#endif

#include <algorithm>

namespace meshgrad::cuda {

/// A thread block has 48 KiB of static and dynamic shared memory together, unless the kernel opts in to more
/// (cudaFuncSetAttribute). The static size is not known here, so launch() opts in above 32 KiB of dynamic
/// memory; static arrays may take the 16 KiB that are left.
inline constexpr int kSharedOptInBytes = 32 * 1024;
inline constexpr int kDefaultSharedBytes = 48 * 1024;

struct LaunchShape {
  int64_t blocks = 1;
  int threads = 32;      ///< per block
  int shared_bytes = 0;  ///< dynamic shared memory per block
};

/// Starts `kernel(args)` on the stream; with no blocks, or on a dry-run stream, does nothing. Throws
/// DeviceError naming the kernel.
// Inlined, so that a build without CUDA keeps no reference to kernels, and no code of theirs.
template <class Args>
__forceinline__ void launch(const char* name, void (*kernel)(Args), const LaunchShape& shape,
                            const Stream& stream, const Args& args) {
  if (shape.blocks == 0 || stream.dry()) return;
#ifdef MESHGRAD_PLAN_ONLY
  static_cast<void>(kernel), static_cast<void>(args);
  check_internal(false, name);
#else
  const gpu::CurrentDevice current(stream.device().index);
  const TracedLaunch traced(name, stream);
#ifdef __CUDACC__
  Args copied = args;
  gpu::start_kernel({.name = name,
                     .kernel = reinterpret_cast<const void*>(kernel),
                     .blocks = shape.blocks,
                     .threads = shape.threads,
                     .shared_bytes = shape.shared_bytes,
                     .opts_in = shape.shared_bytes > kSharedOptInBytes,
                     .stream = stream.native()},
                    &copied);
#else
  simt::launch(name, shape.blocks, shape.threads, shape.shared_bytes, stream.native(),
               simt::Call<Args>(kernel, args));
#endif
  gpu::count_launch();
#endif
}

/// Blocks that cover `items` with `per_block` items each.
constexpr int64_t blocks_for(int64_t items, int64_t per_block) { return (items + per_block - 1) / per_block; }

/// Blocks of a kernel with a grid-stride loop: enough to cover the items, but at most `blocks_per_sm` per
/// multiprocessor, so that a large problem does not pay for block launches.
inline int64_t persistent_blocks(const Stream& stream, int64_t items, int64_t per_block, int blocks_per_sm) {
  const int64_t most = int64_t{gpu::multiprocessors(stream.device().index)} * blocks_per_sm;
  return std::min(blocks_for(items, per_block), most);
}

}  // namespace meshgrad::cuda
