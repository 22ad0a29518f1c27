// SPDX-License-Identifier: Apache-2.0
// gemm on the simulated device of a machine without cuBLASLt's header.
#include <meshgrad/kernels/cuda/plain_gemm.h>

namespace meshgrad::cuda {

void gemm(const Gemm& args, Runtime&, const Stream& stream) {
  if (!has_no_products(args)) plain_gemm(args, stream);
}

}  // namespace meshgrad::cuda
