// SPDX-License-Identifier: Apache-2.0
// gemm: the matrix multiplications that are not fused, by cuBLASLt. The library is loaded at the first call,
// so that a program starts without it. All rows of the arguments take part: callers handle real row counts.
//
// f32 is multiplied in f32 or, with RuntimeOptions::tf32, rounded to TF32; all accumulate in f32. The
// algorithm is the library's heuristic choice or, with RuntimeOptions::autotune, the fastest of its best
// candidates, measured once and cached on disk. The same algorithm gives the same bits in every run. Where
// the library has no algorithm, plain_gemm multiplies, and the Runtime's log says so. Throws DeviceError when
// cuBLASLt is missing or returns an error.
#pragma once
#include <meshgrad/engine/runtime.h>
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

/// What cuBLASLt may use at most per call; NVIDIA recommends it for Hopper.
inline constexpr int64_t kMaxGemmWorkspaceBytes = int64_t{32} << 20;

/// True when a call leaves c as it is.
inline bool has_no_products(const Gemm& args) {
  const GemmSizes sizes = sizes_of(args);
  if (sizes.m == 0 || sizes.n == 0) return true;
  check_internal(sizes.k > 0 || args.accumulate, "a matrix multiplication with k > 0");
  return sizes.k == 0;
}
/// Without a library to ask, a memory plan counts the largest workspace.
inline void count_gemm_workspace(Runtime& runtime) {
  Tensor::empty(runtime, Shape{kMaxGemmWorkspaceBytes}, DType::u8, Tag::workspace, "cuBLASLt");
}

/// An empty c is a no-op. k = 0 leaves c unchanged when accumulating and is not allowed otherwise.
void gemm(const Gemm& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
