// SPDX-License-Identifier: Apache-2.0
// Shared vector code: rows split into vectors, conversions between storage and accumulation types,
// activations. Included once per instruction set by the sources that Highway compiles
// (g3doc/quick_reference.md); hence the toggled include guard.
#if defined(MESHGRAD_KERNELS_CPU_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHGRAD_KERNELS_CPU_VECTOR_INL_H
#undef MESHGRAD_KERNELS_CPU_VECTOR_INL_H
#else
#define MESHGRAD_KERNELS_CPU_VECTOR_INL_H
#endif

#include <hwy/highway.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/cpu/activation_math.h>
#include <meshgrad/kernels/cpu/row_ops.h>

#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A full vector of T.
template <class T>
using Wide = hn::ScalableTag<T>;

/// The lanes of a vector that belong to the row: all, except in a row's last vector.
template <class T>
struct Part {
  hn::Mask<Wide<T>> mask;
  size_t count;
  bool whole;
};

/// Calls `body(offset, part)` for each vector of a row.
template <class T, class Body>
HWY_INLINE void over_row(int64_t width, Body&& body) {
  const Wide<T> d;
  const size_t lanes = hn::Lanes(d);
  int64_t j = 0;
  const Part<T> all{hn::FirstN(d, lanes), lanes, true};
  for (; j + static_cast<int64_t>(lanes) <= width; j += static_cast<int64_t>(lanes)) body(j, all);
  if (j < width) {
    const auto count = static_cast<size_t>(width - j);
    body(j, Part<T>{hn::FirstN(d, count), count, false});
  }
}

// Masked accesses only for the last vector of a row: on some CPUs AVX2's masked stores are slow, loads less
// so.
template <class T>
HWY_INLINE hn::Vec<Wide<T>> load(const Part<T>& part, const T* x) {
  return part.whole ? hn::LoadU(Wide<T>(), x) : hn::MaskedLoad(part.mask, Wide<T>(), x);
}
template <class T>
HWY_INLINE void store(const Part<T>& part, hn::Vec<Wide<T>> value, T* y) {
  part.whole ? hn::StoreU(value, Wide<T>(), y) : hn::BlendedStore(value, part.mask, Wide<T>(), y);
}

using Floats = hn::Vec<Wide<float>>;
using Bits = hn::RebindToUnsigned<Wide<float>>;
using HalfBits = hn::Rebind<uint16_t, Wide<float>>;

/// The bits of bfloat16(x) in the lower half of each lane: rounded to nearest even by adding 0x7fff plus the
/// last kept bit; NaNs become quiet, as rounding could turn them into infinity.
HWY_INLINE hn::Vec<Bits> bfloat16_bits(Floats x) {
  const Bits bits;
  const auto word = hn::BitCast(bits, x);
  const auto upper = hn::ShiftRight<16>(word);
  const auto even = hn::Add(hn::And(upper, hn::Set(bits, 1u)), hn::Set(bits, 0x7fffu));
  const auto quiet = hn::Or(upper, hn::Set(bits, 0x40u));
  const auto is_nan = hn::RebindMask(bits, hn::Ne(x, x));
  return hn::IfThenElse(is_nan, quiet, hn::ShiftRight<16>(hn::Add(word, even)));
}

/// 16-bit storage to float. A bfloat16 is the upper half of a float.
template <class S>
HWY_INLINE Floats widen(hn::Vec<HalfBits> stored) {
  const Wide<float> d;
  if constexpr (kIsBfloat16<S>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits(), stored)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<float>(std::bit_cast<half>(hn::GetLane(stored))));
#else
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Wide<float>>(), stored));
#endif
  }
}

/// float to 16-bit storage, rounded to nearest even.
template <class S>
HWY_INLINE hn::Vec<HalfBits> narrow(Floats x) {
  const HalfBits d;
  if constexpr (kIsBfloat16<S>) {
    return hn::DemoteTo(d, hn::BitCast(hn::RebindToSigned<Bits>(), bfloat16_bits(x)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, half(hn::GetLane(x)).bits);
#else
    return hn::BitCast(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, Wide<float>>(), x));
#endif
  }
}

// Only AVX-512 has masks for 16-bit lanes: the last vector of a row goes through a buffer on the stack.
template <class S>
HWY_INLINE hn::Vec<HalfBits> load_half(const Part<float>& part, const S* x) {
  if (part.whole) return hn::LoadU(HalfBits(), reinterpret_cast<const uint16_t*>(x));
  uint16_t lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(lanes, x, part.count * sizeof(S));
  return hn::LoadU(HalfBits(), lanes);
}
template <class S>
requires(sizeof(S) == 2) HWY_INLINE Floats load(const Part<float>& part, const S* x) {
  return widen<S>(load_half(part, x));
}
template <class S>
HWY_INLINE hn::Vec<Bits> load_bits(const Part<float>& part, const S* x) {
  return hn::PromoteTo(Bits(), load_half(part, x));
}
template <class S>
requires(sizeof(S) == 2) HWY_INLINE void store(const Part<float>& part, Floats value, S* y) {
  if (part.whole) return hn::StoreU(narrow<S>(value), HalfBits(), reinterpret_cast<uint16_t*>(y));
  uint16_t lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(narrow<S>(value), HalfBits(), lanes);
  std::memcpy(y, lanes, part.count * sizeof(S));
}

// Not inlined into each block of sums: such code is large, and exp, erf and tanh cost more than the call.
template <class T>
HWY_NOINLINE void activate_lanes(Activation activation, T* lanes) {
  for (size_t i = 0; i < hn::Lanes(Wide<T>()); ++i) lanes[i] = activation_value(activation, lanes[i]);
}
template <class T>
HWY_NOINLINE void activation_slopes(Activation activation, T* lanes) {
  for (size_t i = 0; i < hn::Lanes(Wide<T>()); ++i) lanes[i] = activation_slope(activation, lanes[i]);
}

/// act(x). Only relu is worth vector code; the others go through scalar functions lane by lane.
template <class T>
HWY_INLINE hn::Vec<Wide<T>> activated(Activation activation, hn::Vec<Wide<T>> x) {
  const Wide<T> d;
  if (activation == Activation::none) return x;
  // Not Max: on x86 max(NaN, 0) = 0, which would hide a diverged run.
  if (activation == Activation::relu) return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
  T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::StoreU(x, d, lanes);
  activate_lanes(activation, lanes);
  return hn::LoadU(d, lanes);
}
/// d_h * act'(z).
template <class T>
HWY_INLINE hn::Vec<Wide<T>> through_activation(Activation activation, hn::Vec<Wide<T>> z,
                                               hn::Vec<Wide<T>> d_h) {
  const Wide<T> d;
  if (activation == Activation::none) return d_h;
  if (activation == Activation::relu) return hn::IfThenElseZero(hn::Gt(z, hn::Zero(d)), d_h);
  T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::StoreU(z, d, lanes);
  activation_slopes(activation, lanes);
  return hn::Mul(d_h, hn::LoadU(d, lanes));
}

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
