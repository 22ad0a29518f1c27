// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of bf16 that is widened to f32.
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm_wide_bf16.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace plain {
#include <meshgrad/kernels/cpu/gemm-inl.h>
}  // namespace plain
const GemmOps<WideBfloat16>* gemm_wide_bf16() { return plain::table<WideBfloat16>(); }
}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(gemm_wide_bf16);

template <>
const GemmOps<WideBfloat16>& gemm_ops<WideBfloat16>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(gemm_wide_bf16)());  // isa() must run first: it limits the targets
}
}  // namespace meshgrad::cpu
#endif
