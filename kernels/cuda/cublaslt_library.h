// SPDX-License-Identifier: Apache-2.0
// The functions of cuBLASLt that gemm calls. For the sources that a build with its header has.
#pragma once
#include <cublasLt.h>

namespace meshgrad::cuda {

struct CublasLtLibrary {
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_description = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_description = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) candidates = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};
/// Opened by name at the first call, once a process: programs without a GPU run without it. Throws
/// DeviceError where it is missing.
const CublasLtLibrary& cublaslt_library();

}  // namespace meshgrad::cuda
