// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/loaded_library.h>
#include <meshgrad/kernels/cuda/cublaslt_library.h>

namespace meshgrad::cuda {
namespace {

constexpr int kCudaMajor = CUDART_VERSION / 1000;  // cuBLASLt of another one has another interface

CublasLtLibrary load_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", kCudaMajor);
  LoadedLibrary file({name, "/usr/local/cuda/lib64/" + name});
  CublasLtLibrary library;
  file.load(library.version, "cublasLtGetVersion");
  file.load(library.create, "cublasLtCreate");
  file.load(library.destroy, "cublasLtDestroy");
  file.load(library.create_description, "cublasLtMatmulDescCreate");
  file.load(library.destroy_description, "cublasLtMatmulDescDestroy");
  file.load(library.set_attribute, "cublasLtMatmulDescSetAttribute");
  file.load(library.create_layout, "cublasLtMatrixLayoutCreate");
  file.load(library.destroy_layout, "cublasLtMatrixLayoutDestroy");
  file.load(library.create_preference, "cublasLtMatmulPreferenceCreate");
  file.load(library.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  file.load(library.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  file.load(library.candidates, "cublasLtMatmulAlgoGetHeuristic");
  file.load(library.check, "cublasLtMatmulAlgoCheck");
  file.load(library.multiply, "cublasLtMatmul");
  if (!file.missing().empty())
    throw device_error(
        "gemm", name, file.missing(),
        fmt::format("install cuBLAS of CUDA {}, or put its folder on LD_LIBRARY_PATH", kCudaMajor));
  return library;
}

}  // namespace

const CublasLtLibrary& cublaslt_library() {
  static const CublasLtLibrary loaded = load_library();
  return loaded;
}

}  // namespace meshgrad::cuda
