// SPDX-License-Identifier: Apache-2.0
// A kernel launch by the CUDA runtime, for launch() of kernels/cuda/launch.h. It is in gpu_cuda.cpp and not
// in a template, so that its error handling is tested without a GPU.
#pragma once
#include <cstdint>

namespace meshgrad::gpu {

struct KernelLaunch {
  const char* name = "";         ///< for messages
  const void* kernel = nullptr;  ///< the host's address of a __global__ function of one argument
  int64_t blocks = 1;
  int threads = 32;        ///< per block
  int shared_bytes = 0;    ///< dynamic shared memory per block
  bool opts_in = false;    ///< to more than 48 KiB of shared memory
  void* stream = nullptr;  ///< of the current device
};

/// `arguments` points to the kernel's argument. Throws DeviceError that names the kernel and says what
/// refused it; no error of this call is left for cudaGetLastError, and none of an earlier call is reported
/// here, except that of a kernel which failed: then no call on the device succeeds any more.
void start_kernel(const KernelLaunch& launch, void* arguments);

}  // namespace meshgrad::gpu
