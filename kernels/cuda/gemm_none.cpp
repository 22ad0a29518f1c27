// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's place in a build without CUDA, which uses GPU kernels in dry runs only.
#include <meshgrad/kernels/cuda/gemm.h>

namespace meshgrad::cuda {

void gemm(const Gemm& args, Runtime& runtime, const Stream& stream) {
  if (has_no_products(args)) return;
  check_internal(stream.dry(), "a GPU's matrix multiplication in a build without CUDA");
  count_gemm_workspace(runtime);
}

}  // namespace meshgrad::cuda
