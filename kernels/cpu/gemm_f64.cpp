// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication of f64.
#include <hwy/cache_control.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm_f64.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace plain {
#include <meshgrad/kernels/cpu/gemm-inl.h>
}  // namespace plain
const GemmOps<double>* gemm_f64() { return plain::table<double>(); }
}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(gemm_f64);

template <>
const GemmOps<double>& gemm_ops<double>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(gemm_f64)());  // isa() must run first: it limits the targets
}
}  // namespace meshgrad::cpu
#endif
