// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <meshgrad/kernels/gpu_tables.h>

namespace meshgrad::cuda {

extern const LinearKernels linear_kernels;
extern const MlpKernels mlp_kernels;
extern const MessagePassingKernels message_passing_kernels;
extern const SegmentSumKernels segment_sum_kernels;
extern const ElementwiseKernels elementwise_kernels;
extern const ReductionKernels reduction_kernels;
extern const OptimizerKernels optimizer_kernels;
extern const UnrollKernels unroll_kernels;

}  // namespace meshgrad::cuda
