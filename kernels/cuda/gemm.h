// SPDX-License-Identifier: Apache-2.0
// gemm: the matrix multiplications that are not fused, by cuBLASLt. The library is loaded at the first call,
// so that a program starts without it. All rows of the arguments take part: callers handle real row counts.
//
// f32 is multiplied in f32 (no TF32); 16-bit operands accumulate in f32. The algorithm is the library's
// heuristic choice or, with RuntimeOptions::autotune, the fastest of its best candidates, measured once and
// cached on disk. The same algorithm gives the same bits in every run. Throws DeviceError when cuBLASLt is
// missing or returns an error.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad::cuda {

/// c = a b (+ c) (+ bias), row-major.
struct Gemm {
  Tensor a;  ///< [m, k], or [k, m] when transposed
  Tensor b;  ///< [k, n], or [n, k] when transposed; a's dtype
  Tensor c;  ///< [m, n], a's dtype or f32
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  Tensor bias;  ///< [n] of c's dtype, or undefined
};

struct GemmSizes {
  int64_t m, n, k;
};
inline GemmSizes sizes_of(const Gemm& args) {
  const Tensor &a = args.a, &b = args.b;
  const GemmSizes sizes{args.transpose_a ? a.width() : a.rows(), args.transpose_b ? b.rows() : b.width(),
                        args.transpose_a ? a.rows() : a.width()};
  check_internal((args.transpose_b ? b.width() : b.rows()) == sizes.k && args.c.rows() == sizes.m &&
                     args.c.width() == sizes.n && a.dtype() == b.dtype(),
                 "matching sizes of a matrix multiplication");
  return sizes;
}

/// An empty c is a no-op. k = 0 leaves c unchanged when accumulating and is not allowed otherwise.
void gemm(const Gemm& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
