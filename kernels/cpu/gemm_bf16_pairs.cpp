// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of pairs of bf16, by AVX-512 BF16 and AMX.
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>
#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm_bf16_pairs.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

// Highway 1.0 has no target with bfloat16 dot products: its AVX-512 target again, with avx512bf16 added. In a
// namespace of its own, so that nothing else takes these functions for those of plain AVX-512. clang 16 does
// not give lambdas the added instructions and, told to, recurses without end in its code generator: what it
// compiles widens bf16 to f32.
#if defined(__x86_64__) && !defined(__clang__) && HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR_AVX3 ",avx512bf16")
namespace meshgrad::cpu {
namespace HWY_NAMESPACE::pairs {
#define MESHGRAD_PAIRS 1
#include <meshgrad/kernels/cpu/gemm-inl.h>
#include <meshgrad/kernels/cpu/gemm_amx-inl.h>
#undef MESHGRAD_PAIRS
}  // namespace HWY_NAMESPACE::pairs
const GemmOps<bfloat16>* gemm_bf16_pairs() { return HWY_NAMESPACE::pairs::table<bfloat16>(); }
const GemmOps<bfloat16>* gemm_amx() {
  return HWY_NAMESPACE::pairs::table<bfloat16, HWY_NAMESPACE::pairs::AmxGemm>();
}
}  // namespace meshgrad::cpu
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
namespace meshgrad::cpu {
#if defined(__clang__) || !(HWY_TARGETS & HWY_AVX3)
bool multiplies_bf16_pairs() { return false; }
#else
const GemmOps<bfloat16>* gemm_bf16_pairs();
const GemmOps<bfloat16>* gemm_amx();

bool multiplies_bf16_pairs() { return isa() >= Isa::avx512_bf16; }
#endif

template <>
const GemmOps<bfloat16>& gemm_ops<bfloat16>() {
#if !defined(__clang__) && HWY_TARGETS & HWY_AVX3
  if (isa() == Isa::amx) return *gemm_amx();
  if (isa() == Isa::avx512_bf16) return *gemm_bf16_pairs();
#endif
  throw internal_error("this CPU does not multiply pairs of bfloat16");
}
}  // namespace meshgrad::cpu
#endif
