// SPDX-License-Identifier: Apache-2.0
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>
#include <array>

#include "kernels/amx_emulated.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/amx_emulated.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

#if defined(__x86_64__) && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu {
namespace HWY_NAMESPACE::plain {
#include <meshgrad/kernels/cpu/gemm-inl.h>
#include <meshgrad/kernels/cpu/gemm_amx-inl.h>
}  // namespace HWY_NAMESPACE::plain
const GemmOps<bfloat16>* emulated_amx() {
  return HWY_NAMESPACE::plain::table<bfloat16, HWY_NAMESPACE::plain::AmxGemm>();
}
}  // namespace meshgrad::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace meshgrad::cpu {
#if defined(__x86_64__)
const GemmOps<bfloat16>* emulated_amx();
#endif

const GemmOps<bfloat16>* emulated_amx_gemm() {
#if defined(__x86_64__)
  if (isa() >= Isa::avx512) return emulated_amx();
#endif
  return nullptr;
}
}  // namespace meshgrad::cpu
#endif
