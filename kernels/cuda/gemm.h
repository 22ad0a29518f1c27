// SPDX-License-Identifier: Apache-2.0
// gemm: the matrix products that are not fused, by cuBLASLt, which is loaded when the first one runs: a
// program starts without it. All rows of the arguments take part; real row counts are the caller's affair.
//
// f32 is computed in f32 (no TF32), 16-bit storage in f32 sums. The algorithm is the library's heuristic
// choice; with RuntimeOptions::autotune the fastest of its best candidates, measured once and kept on disk.
// The same algorithm gives the same bits in every run. Throws DeviceError when there is no cuBLASLt or it
// refuses.
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
                 "operands of a matrix product that fit");
  return sizes;
}

/// An empty c does nothing; an empty sum leaves an accumulating c as it is, and is not allowed otherwise.
void gemm(const Gemm& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
