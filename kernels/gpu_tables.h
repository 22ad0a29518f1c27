// SPDX-License-Identifier: Apache-2.0
// The kernel tables of the GPU side that this program was linked with (see engine/gpu.h). Not for use outside
// kernels/ and its tests.
#pragma once
#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/message_passing.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/segment_sum.h>
#include <meshgrad/kernels/state_error.h>

namespace meshgrad {

struct GpuTables {
  const LinearKernels* linear;
  const MlpKernels* mlp;
  const MessagePassingKernels* message_passing;
  const SegmentSumKernels* segment_sum;
  const ElementwiseKernels* elementwise;
  const ReductionKernels* reduction;
  const OptimizerKernels* optimizer;
  const UnrollKernels* unroll;
};

/// Null in a build without CUDA.
const GpuTables* gpu_tables();

}  // namespace meshgrad
