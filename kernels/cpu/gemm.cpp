// SPDX-License-Identifier: Apache-2.0
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
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

// Each variant in a namespace of its own: argument-dependent lookup must not find the other's functions.
HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace plain {
#define MESHGRAD_PAIRS 0
#include <meshgrad/kernels/cpu/gemm-inl.h>
#if HWY_TARGET == HWY_AVX3
#include <meshgrad/kernels/cpu/gemm_amx-inl.h>
#endif
#undef MESHGRAD_PAIRS
}  // namespace plain
const Products<float>* products_f32() { return plain::table<float>(); }
const Products<double>* products_f64() { return plain::table<double>(); }
const Products<half>* products_f16() { return plain::table<half>(); }
const Products<WideBfloat16>* products_wide_bf16() { return plain::table<WideBfloat16>(); }
}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// Highway 1.0 has no target with bfloat16 dot products: its AVX-512 target again, with avx512bf16 added.
#if defined(__x86_64__) && HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR_AVX3 ",avx512bf16")
namespace meshgrad::cpu {
namespace HWY_NAMESPACE::pairs {
#define MESHGRAD_PAIRS 1
#include <meshgrad/kernels/cpu/gemm-inl.h>
#include <meshgrad/kernels/cpu/gemm_amx-inl.h>
#undef MESHGRAD_PAIRS
}  // namespace HWY_NAMESPACE::pairs
const Products<bfloat16>* products_of_pairs() { return HWY_NAMESPACE::pairs::table<bfloat16>(); }
const Products<bfloat16>* products_of_amx() {
  return HWY_NAMESPACE::pairs::table<bfloat16, HWY_NAMESPACE::pairs::InAmx>();
}
const Products<bfloat16>* emulated_amx() {
  return HWY_NAMESPACE::plain::table<bfloat16, HWY_NAMESPACE::plain::InAmx>();
}
}  // namespace meshgrad::cpu
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(products_f32);
HWY_EXPORT(products_f64);
HWY_EXPORT(products_f16);
HWY_EXPORT(products_wide_bf16);
#if defined(__x86_64__)
const Products<bfloat16>* products_of_pairs();
const Products<bfloat16>* products_of_amx();
const Products<bfloat16>* emulated_amx();
#endif

// isa() must run first: it limits the targets that the dispatch may choose.
template <>
const Products<float>& products<float>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(products_f32)());
}
template <>
const Products<double>& products<double>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(products_f64)());
}
template <>
const Products<half>& products<half>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(products_f16)());
}
template <>
const Products<WideBfloat16>& products<WideBfloat16>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(products_wide_bf16)());
}

bool multiplies_pairs() { return isa() >= Isa::avx512_bf16; }

template <>
const Products<bfloat16>& products<bfloat16>() {
#if defined(__x86_64__)
  if (isa() == Isa::amx) return *products_of_amx();
  if (isa() == Isa::avx512_bf16) return *products_of_pairs();
#endif
  throw internal_error("this CPU does not multiply pairs of bfloat16");
}

const Products<bfloat16>* emulated_amx_products() {
#if defined(__x86_64__)
  if (isa() >= Isa::avx512) return emulated_amx();
#endif
  return nullptr;
}
}  // namespace meshgrad::cpu
#endif
