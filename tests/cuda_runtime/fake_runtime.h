// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime without a GPU, for tests of engine/gpu_cuda.cpp: it keeps the rules about the current device
// and about the last error, and does no work.
#pragma once
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace fake_cuda {

struct State {
  int devices = 2;
  int driver = CUDART_VERSION;                ///< version of the driver; 0: there is none
  cudaError_t pending = cudaSuccess;          ///< what cudaGetLastError returns next
  cudaError_t attribute_error = cudaSuccess;  ///< of cudaFuncSetAttribute
  cudaError_t launch_error = cudaSuccess;
  cudaError_t destroy_error = cudaSuccess;  ///< of everything that frees or destroys
  int carveout = -1;                        ///< that the last kernel asked for, in percent
  std::vector<std::string> calls;           ///< "cudaMalloc on 1": calls for which the current device counts
};
State& state();

}  // namespace fake_cuda
