// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/pair_gemm.h>
#include <meshgrad/kernels/cpu/tile.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

// AVX2, AVX-512 and plain scalar code for everything else: the row operations end in masked loads and stores,
// which only these keep from touching memory behind the row.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SCALAR
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#else
#define HWY_COMPILE_ONLY_SCALAR
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Wide = hn::ScalableTag<T>;
// 6 rows by 4 vectors fill 24 of the 32 registers of AVX-512; by 2, 12 of 16 elsewhere.
inline constexpr int kRows = 6;
inline constexpr int kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// Adds step k's products. Pairs of bfloat16 are widened: a bfloat16 is the upper half of a float.
template <class S, int kM, int kV>
HWY_INLINE void multiply_add(const Operand<S>* HWY_RESTRICT a, int64_t a_row,
                             const Operand<S>* HWY_RESTRICT b, hn::Vec<Wide<Accumulator<S>>> (&sum)[kM][kV]) {
  const Wide<Accumulator<S>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if constexpr (kDepth<S> == 1) {
    hn::Vec<Wide<Accumulator<S>>> row[kV];
    for (int v = 0; v < kV; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    for (int m = 0; m < kM; ++m) {
      const auto factor = hn::Set(d, a[m * a_row]);
      for (int v = 0; v < kV; ++v) sum[m][v] = hn::MulAdd(factor, row[v], sum[m][v]);
    }
  } else {
    const hn::RebindToUnsigned<Wide<float>> bits;
    for (int odd = 0; odd < 2; ++odd) {
      hn::Vec<Wide<float>> row[kV];
      for (int v = 0; v < kV; ++v) {
        const auto pairs = hn::LoadU(bits, reinterpret_cast<const uint32_t*>(b + 2 * v * lanes));
        row[v] =
            hn::BitCast(d, odd != 0 ? hn::And(pairs, hn::Set(bits, 0xffff0000u)) : hn::ShiftLeft<16>(pairs));
      }
      for (int m = 0; m < kM; ++m) {
        const auto factor = hn::Set(d, static_cast<float>(a[m * a_row + odd]));
        for (int v = 0; v < kV; ++v) sum[m][v] = hn::MulAdd(factor, row[v], sum[m][v]);
      }
    }
  }
}

template <class S, int kM, int kV>
HWY_INLINE void micro_kernel(int64_t steps, const Operand<S>* HWY_RESTRICT a, int64_t a_row, int64_t a_column,
                             const Operand<S>* HWY_RESTRICT b, int64_t b_row, Accumulator<S>* HWY_RESTRICT c,
                             int64_t c_row, bool accumulate) {
  const Wide<Accumulator<S>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<Wide<Accumulator<S>>> sum[kM][kV];
  for (int m = 0; m < kM; ++m) {
    for (int v = 0; v < kV; ++v)
      sum[m][v] = accumulate ? hn::LoadU(d, c + m * c_row + v * lanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < steps; ++k, a += a_column, b += b_row) multiply_add<S, kM, kV>(a, a_row, b, sum);
  for (int m = 0; m < kM; ++m) {
    for (int v = 0; v < kV; ++v) hn::StoreU(sum[m][v], d, c + m * c_row + v * lanes);
  }
}

template <class S, int kV>
void panel_product(int64_t m_count, int64_t steps, const Operand<S>* a, int64_t a_row, int64_t a_column,
                   const Operand<S>* b, int64_t b_row, Accumulator<S>* c, int64_t c_row, bool accumulate) {
  int64_t m = 0;
  for (; m + kRows <= m_count; m += kRows) {
    micro_kernel<S, kRows, kV>(steps, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row,
                               accumulate);
  }
  a += m * a_row;
  c += m * c_row;
  switch (m_count - m) {
    case 5:
      return micro_kernel<S, 5, kV>(steps, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 4:
      return micro_kernel<S, 4, kV>(steps, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 3:
      return micro_kernel<S, 3, kV>(steps, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 2:
      return micro_kernel<S, 2, kV>(steps, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 1:
      return micro_kernel<S, 1, kV>(steps, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    default:
      return;
  }
}

template <class S>
void gemm(int64_t m, int64_t n, int64_t steps, const Operand<S>* a, int64_t a_row, int64_t a_column,
          PanelMatrix<Operand<S>> b, Accumulator<S>* c, int64_t c_row, bool accumulate) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<Accumulator<S>>()));
  const int64_t panel = kVectors * lanes;
  for (int64_t column = 0; column < n; column += panel) {
    const Operand<S>* data = b.data + column / panel * b.panel_stride;
    const int64_t vectors = (n - column + lanes - 1) / lanes;
    Accumulator<S>* target = c + column;
    if (vectors >= kVectors) {
      panel_product<S, kVectors>(m, steps, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else if (vectors == 3) {
      panel_product<S, 3>(m, steps, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else if (vectors == 2) {
      panel_product<S, 2>(m, steps, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else {
      panel_product<S, 1>(m, steps, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    }
  }
}

template <class T>
T activation_value(Activation activation, T x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x <= T(0) ? T(0) : x;
    case Activation::silu:
      return x / (T(1) + std::exp(-x));
    case Activation::gelu:
      return x * T(0.5) * (T(1) + std::erf(x * T(0.5 * std::numbers::sqrt2)));
    case Activation::tanh:
      return std::tanh(x);
  }
  return x;
}

template <class T>
T activation_slope(Activation activation, T x) {
  switch (activation) {
    case Activation::none:
      return T(1);
    case Activation::relu:
      return x > T(0) ? T(1) : T(0);
    case Activation::silu: {
      const T s = T(1) / (T(1) + std::exp(-x));
      return s * (T(1) + x * (T(1) - s));
    }
    case Activation::gelu: {
      const T phi = std::exp(T(-0.5) * x * x) * T(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
      return T(0.5) * (T(1) + std::erf(x * T(0.5 * std::numbers::sqrt2))) + x * phi;
    }
    case Activation::tanh: {
      const T y = std::tanh(x);
      return T(1) - y * y;
    }
  }
  return T(1);
}

/// Which lanes of a vector belong to the row; all of them except in the last vector.
template <class T>
struct Part {
  hn::Mask<Wide<T>> mask;
  size_t count;
  bool whole;
};

/// Calls `body(offset, part)` over a row.
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

template <class T>
HWY_INLINE hn::Vec<Wide<T>> load(const Part<T>& part, const T* x) {
  return hn::MaskedLoad(part.mask, Wide<T>(), x);
}
template <class T>
HWY_INLINE void store(const Part<T>& part, hn::Vec<Wide<T>> value, T* y) {
  hn::BlendedStore(value, part.mask, Wide<T>(), y);
}

using Floats = hn::Vec<Wide<float>>;
using Bits = hn::RebindToUnsigned<Wide<float>>;
using HalfBits = hn::Rebind<uint16_t, Wide<float>>;

/// The bits of bfloat16(x) in the lower half of each lane: to nearest even, and a NaN stays one.
HWY_INLINE hn::Vec<Bits> bfloat16_bits(Floats x) {
  const Bits bits;
  const auto word = hn::BitCast(bits, x);
  const auto upper = hn::ShiftRight<16>(word);
  const auto even = hn::Add(hn::And(upper, hn::Set(bits, 1u)), hn::Set(bits, 0x7fffu));
  const auto quiet = hn::Or(upper, hn::Set(bits, 0x40u));
  const auto is_nan = hn::RebindMask(bits, hn::Ne(x, x));
  return hn::IfThenElse(is_nan, quiet, hn::ShiftRight<16>(hn::Add(word, even)));
}

template <class S>
HWY_INLINE Floats widen(hn::Vec<HalfBits> stored) {
  const Wide<float> d;
  if constexpr (std::is_same_v<S, bfloat16>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits(), stored)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<float>(std::bit_cast<half>(hn::GetLane(stored))));
#else
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Wide<float>>(), stored));
#endif
  }
}

template <class S>
HWY_INLINE hn::Vec<HalfBits> narrow(Floats x) {
  const HalfBits d;
  if constexpr (std::is_same_v<S, bfloat16>) {
    return hn::DemoteTo(d, hn::BitCast(hn::RebindToSigned<Bits>(), bfloat16_bits(x)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, half(hn::GetLane(x)).bits);
#else
    return hn::BitCast(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, Wide<float>>(), x));
#endif
  }
}

// Masks of 16-bit lanes are AVX-512's alone; elsewhere the last vector of a row goes through the stack.
template <class S>
requires(sizeof(S) == 2) HWY_INLINE Floats load(const Part<float>& part, const S* x) {
  if (part.whole) return widen<S>(hn::LoadU(HalfBits(), reinterpret_cast<const uint16_t*>(x)));
  uint16_t lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(lanes, x, part.count * sizeof(S));
  return widen<S>(hn::LoadU(HalfBits(), lanes));
}
template <class S>
requires(sizeof(S) == 2) HWY_INLINE void store(const Part<float>& part, Floats value, S* y) {
  if (part.whole) return hn::StoreU(narrow<S>(value), HalfBits(), reinterpret_cast<uint16_t*>(y));
  uint16_t lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(narrow<S>(value), HalfBits(), lanes);
  std::memcpy(y, lanes, part.count * sizeof(S));
}

template <class T>
void activate(Activation activation, int64_t rows, int64_t width, const T* z, int64_t z_row, T* y,
              int64_t y_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row, y += y_row) {
    if (activation == Activation::relu) {
      over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
        // Not Max: on x86 that turns a NaN into 0, and a broken run would go on unnoticed.
        const auto x = load(part, z + j);
        store(part, hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x), y + j);
      });
    } else {
      for (int64_t j = 0; j < width; ++j) y[j] = activation_value(activation, z[j]);
    }
  }
}

template <class T>
void activate_backward(Activation activation, int64_t rows, int64_t width, const T* z, int64_t z_row, T* g,
                       int64_t g_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row, g += g_row) {
    if (activation == Activation::relu) {
      over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
        const auto open = hn::Gt(load(part, z + j), hn::Zero(d));
        store(part, hn::IfThenElseZero(open, load(part, g + j)), g + j);
      });
    } else {
      for (int64_t j = 0; j < width; ++j) g[j] *= activation_slope(activation, z[j]);
    }
  }
}

/// Mean (0 for rms) and 1 / sqrt(variance + epsilon) of a row; two passes, so that a large mean costs no
/// digits.
template <class T>
HWY_INLINE void row_statistics(Norm norm, int64_t width, const T* z, T epsilon, T& mean, T& scale) {
  const Wide<T> d;
  mean = T(0);
  if (norm == Norm::layer) {
    auto sum = hn::Zero(d);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR { sum = hn::Add(sum, load(part, z + j)); });
    mean = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<T>(width);
  }
  const auto center = hn::Set(d, mean);
  auto squares = hn::Zero(d);
  over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
    const auto x = hn::IfThenElseZero(part.mask, hn::Sub(load(part, z + j), center));
    squares = hn::MulAdd(x, x, squares);
  });
  const T variance = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<T>(width);
  scale = T(1) / std::sqrt(variance + epsilon);
}

template <class T>
void norm(Norm kind, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain, const T* bias,
          T epsilon, T* y, int64_t y_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row, y += y_row) {
    T mean, scale;
    row_statistics(kind, width, z, epsilon, mean, scale);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto x = hn::Mul(hn::Sub(load(part, z + j), hn::Set(d, mean)), hn::Set(d, scale));
      const auto shift = bias != nullptr ? load(part, bias + j) : hn::Zero(d);
      store(part, hn::MulAdd(x, load(part, gain + j), shift), y + j);
    });
  }
}

template <class T>
void norm_backward(Norm kind, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain,
                   T epsilon, const T* d_y, int64_t d_y_row, T* d_z, int64_t d_z_row, T* d_gain, T* d_bias) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row, d_y += d_y_row, d_z += d_z_row) {
    T mean, scale;
    row_statistics(kind, width, z, epsilon, mean, scale);
    const auto center = hn::Set(d, mean);
    const auto unit = hn::Set(d, scale);
    auto sum = hn::Zero(d);
    auto dot = hn::Zero(d);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto grad = load(part, d_y + j);
      const auto x = hn::Mul(hn::Sub(load(part, z + j), center), unit);
      const auto scaled = hn::Mul(grad, load(part, gain + j));
      sum = hn::Add(sum, scaled);
      dot = hn::MulAdd(scaled, x, dot);
      store(part, hn::MulAdd(grad, x, load(part, d_gain + j)), d_gain + j);
      if (d_bias != nullptr) store(part, hn::Add(grad, load(part, d_bias + j)), d_bias + j);
    });
    const T n = static_cast<T>(width);
    const auto mean_grad = hn::Set(d, kind == Norm::layer ? hn::GetLane(hn::SumOfLanes(d, sum)) / n : T(0));
    const auto mean_dot = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dot)) / n);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto x = hn::Mul(hn::Sub(load(part, z + j), center), unit);
      const auto scaled = hn::Mul(load(part, d_y + j), load(part, gain + j));
      const auto g = hn::NegMulAdd(x, mean_dot, hn::Sub(scaled, mean_grad));
      store(part, hn::Mul(g, unit), d_z + j);
    });
  }
}

template <class From, class To>
HWY_INLINE void add_row(int64_t width, const From* x, To* y) {
  over_row<Accumulator<To>>(width, [&](int64_t j, auto part) HWY_ATTR {
    store(part, hn::Add(load(part, x + j), load(part, y + j)), y + j);
  });
}

template <class From, class To>
HWY_INLINE void copy_row(int64_t width, const From* x, To* y) {
  over_row<Accumulator<To>>(width,
                            [&](int64_t j, auto part) HWY_ATTR { store(part, load(part, x + j), y + j); });
}

template <class T>
void column_sums(int64_t rows, int64_t width, const T* x, int64_t x_row, T* sums) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + i * x_row, sums);
}

template <class From, class To>
void copy(int64_t rows, int64_t width, const From* x, int64_t x_row, To* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) copy_row(width, x + i * x_row, y + i * y_row);
}

template <class From, class To>
void add(int64_t rows, int64_t width, const From* x, int64_t x_row, To* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + i * x_row, y + i * y_row);
}

template <class T>
void broadcast(int64_t rows, int64_t width, const T* x, T* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i, y += y_row) {
    if (x != nullptr) {
      copy_row(width, x, y);
    } else {
      for (int64_t j = 0; j < width; ++j) y[j] = T(0);
    }
  }
}

template <class From, class To>
void gather_add(int64_t rows, int64_t width, const From* x, int64_t x_row, const int32_t* index, To* y,
                int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + index[i] * x_row, y + i * y_row);
}

template <class S>
void settle(int64_t rows, int64_t width, Accumulator<S>* x, int64_t x_row, S* y, int64_t y_row) {
  if constexpr (std::is_same_v<S, Accumulator<S>>) {
    if (y != nullptr) copy(rows, width, x, x_row, y, y_row);
  } else {
    for (int64_t i = 0; i < rows; ++i, x += x_row) {
      over_row<float>(width, [&](int64_t j, auto part) HWY_ATTR {
        const auto stored = narrow<S>(load(part, x + j));
        store(part, widen<S>(stored), x + j);
        if (y != nullptr) store(part, widen<S>(stored), y + i * y_row + j);
      });
    }
  }
}

template <class From>
void pair_rows(int64_t rows, int64_t width, const From* x, int64_t x_row, bfloat16* y, int64_t y_row) {
  const Bits bits;
  for (int64_t i = 0; i < rows; i += 2, x += 2 * x_row, y += y_row) {
    const bool paired = i + 1 < rows;
    over_row<float>(width, [&](int64_t j, auto part) HWY_ATTR {
      auto pair = bfloat16_bits(load(part, x + j));
      if (paired) pair = hn::Or(pair, hn::ShiftLeft<16>(bfloat16_bits(load(part, x + x_row + j))));
      hn::BlendedStore(pair, hn::RebindMask(bits, part.mask), bits, reinterpret_cast<uint32_t*>(y + 2 * j));
    });
  }
}

template <class S>
const TileOps<S>* table() {
  using T = Accumulator<S>;
  static const TileOps<S> ops = [] {
    TileOps<S> result{.panel = kVectors * static_cast<int64_t>(hn::Lanes(Wide<T>())),
                      .isa = hwy::TargetName(HWY_TARGET),
                      .gemm = gemm<S>,
                      .activate = activate<T>,
                      .activate_backward = activate_backward<T>,
                      .norm = norm<T>,
                      .norm_backward = norm_backward<T>,
                      .column_sums = column_sums<T>,
                      .broadcast = broadcast<T>,
                      .load = copy<S, T>,
                      .store = copy<T, S>,
                      .add = add<S, T>,
                      .add_to_stored = add<T, S>,
                      .gather_add = gather_add<S, T>,
                      .settle = settle<S>,
                      .pair_rows = nullptr,
                      .pair_stored_rows = nullptr};
    if constexpr (kDepth<S> == 2) {
      result.pair_rows = pair_rows<T>;
      result.pair_stored_rows = pair_rows<S>;
    }
    return result;
  }();
  return &ops;
}
const TileOps<float>* table_f32() { return table<float>(); }
const TileOps<double>* table_f64() { return table<double>(); }
const TileOps<half>* table_f16() { return table<half>(); }
const TileOps<bfloat16>* table_bf16() { return table<bfloat16>(); }

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);
HWY_EXPORT(table_f16);
HWY_EXPORT(table_bf16);

// isa() settles what may be chosen.
template <>
const TileOps<float>& tile_ops<float>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f32)());
}
template <>
const TileOps<double>& tile_ops<double>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f64)());
}
template <>
const TileOps<half>& tile_ops<half>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f16)());
}
template <>
const TileOps<bfloat16>& tile_ops<bfloat16>() {
  static const TileOps<bfloat16> ops = [] {
    TileOps<bfloat16> best = (isa(), *HWY_DYNAMIC_DISPATCH(table_bf16)());
    if (best.panel == kPairPanel && isa() == Isa::avx512_bf16) best.gemm = pair_gemm;
    return best;
  }();
  return ops;
}
}  // namespace meshgrad::cpu
#endif
