// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/tables.h>

namespace meshgrad {

const GpuTables* gpu_tables() {
  static constexpr GpuTables kTables{&cuda::linear_kernels,          &cuda::mlp_kernels,
                                     &cuda::message_passing_kernels, &cuda::segment_sum_kernels,
                                     &cuda::elementwise_kernels,     &cuda::reduction_kernels,
                                     &cuda::optimizer_kernels,       &cuda::unroll_kernels};
  return &kTables;
}

}  // namespace meshgrad
