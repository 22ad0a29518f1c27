// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication by loops on the host, in place of a library's kernel on the simulated device.
#pragma once
#include <meshgrad/engine/dtype.h>

#include <cstdint>

namespace simt {

/// Steps in elements.
struct GemmOperand {
  const void* data;
  int64_t row_step, column_step;
};

/// c = a b (+ bias) (+ c), c row-major.
struct GemmLoops {
  GemmOperand a, b;
  const void* bias;  ///< null: none
  void* c;
  int64_t m, n, k;
  meshgrad::DType in, out;
  bool accumulate, tf32;
};
/// As a launch on the stream, whose accesses are not checked.
void start_gemm(const GemmLoops& what, void* stream);

}  // namespace simt
