// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of f16.
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm_f16.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace plain {
#include <meshgrad/kernels/cpu/gemm-inl.h>
}  // namespace plain
const GemmOps<half>* gemm_f16() { return plain::table<half>(); }
}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(gemm_f16);

template <>
const GemmOps<half>& gemm_ops<half>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(gemm_f16)());  // isa() must run first: it limits the targets
}
}  // namespace meshgrad::cpu
#endif
