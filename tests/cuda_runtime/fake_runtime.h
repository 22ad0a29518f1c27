// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime and driver without a GPU, for tests of the engine's *_cuda.cpp: they keep the rules about
// the current device, the last error and virtual memory, and do no work.
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
  int attribute_calls = 0;                  ///< of cudaFuncSetAttribute
  int carveout = -1;                        ///< that the last kernel asked for, in percent
  std::vector<std::string> calls;           ///< "cudaMalloc on 1": calls for which the current device counts
  bool virtual_memory = true;               ///< whether the devices have its management
  std::string failing_call;                 ///< the driver's function that fails, such as "cuMemMap"
  int handles = 0;                          ///< of physical memory that are not released
  int mappings = 0;
};
State& state();

}  // namespace fake_cuda
