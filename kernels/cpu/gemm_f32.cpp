// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of f32; each storage type is a source file of its own, so that they compile in
// parallel.
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm_f32.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace plain {
#include <meshgrad/kernels/cpu/gemm-inl.h>
}  // namespace plain
const GemmOps<float>* gemm_f32() { return plain::table<float>(); }
}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(gemm_f32);

template <>
const GemmOps<float>& gemm_ops<float>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(gemm_f32)());  // isa() must run first: it limits the targets
}
}  // namespace meshgrad::cpu
#endif
