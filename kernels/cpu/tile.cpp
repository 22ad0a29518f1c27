// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/tile.h>

#include <cmath>
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

template <class T, int kM, int kV>
HWY_INLINE void micro_kernel(int64_t k_count, const T* HWY_RESTRICT a, int64_t a_row, int64_t a_column,
                             const T* HWY_RESTRICT b, int64_t b_row, T* HWY_RESTRICT c, int64_t c_row,
                             bool accumulate) {
  const Wide<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<Wide<T>> sum[kM][kV];
  for (int m = 0; m < kM; ++m) {
    for (int v = 0; v < kV; ++v)
      sum[m][v] = accumulate ? hn::LoadU(d, c + m * c_row + v * lanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < k_count; ++k) {
    hn::Vec<Wide<T>> row[kV];
    for (int v = 0; v < kV; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    for (int m = 0; m < kM; ++m) {
      const auto factor = hn::Set(d, a[m * a_row]);
      for (int v = 0; v < kV; ++v) sum[m][v] = hn::MulAdd(factor, row[v], sum[m][v]);
    }
    a += a_column;
    b += b_row;
  }
  for (int m = 0; m < kM; ++m) {
    for (int v = 0; v < kV; ++v) hn::StoreU(sum[m][v], d, c + m * c_row + v * lanes);
  }
}

template <class T, int kV>
void panel_product(int64_t m_count, int64_t k, const T* a, int64_t a_row, int64_t a_column, const T* b,
                   int64_t b_row, T* c, int64_t c_row, bool accumulate) {
  int64_t m = 0;
  for (; m + kRows <= m_count; m += kRows) {
    micro_kernel<T, kRows, kV>(k, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row, accumulate);
  }
  a += m * a_row;
  c += m * c_row;
  switch (m_count - m) {
    case 5:
      return micro_kernel<T, 5, kV>(k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 4:
      return micro_kernel<T, 4, kV>(k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 3:
      return micro_kernel<T, 3, kV>(k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 2:
      return micro_kernel<T, 2, kV>(k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 1:
      return micro_kernel<T, 1, kV>(k, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    default:
      return;
  }
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_column, PanelMatrix<T> b,
          T* c, int64_t c_row, bool accumulate) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
  const int64_t panel = kVectors * lanes;
  for (int64_t column = 0; column < n; column += panel) {
    const T* data = b.data + column / panel * b.panel_stride;
    const int64_t vectors = (n - column + lanes - 1) / lanes;
    T* target = c + column;
    if (vectors >= kVectors) {
      panel_product<T, kVectors>(m, k, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else if (vectors == 3) {
      panel_product<T, 3>(m, k, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else if (vectors == 2) {
      panel_product<T, 2>(m, k, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
    } else {
      panel_product<T, 1>(m, k, a, a_row, a_column, data, b.row_stride, target, c_row, accumulate);
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

/// Calls `body(offset, lanes_mask)` over a row; the mask is all-true except in the last vector.
template <class T, class Body>
HWY_INLINE void over_row(int64_t width, Body&& body) {
  const Wide<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  const auto all = hn::FirstN(d, static_cast<size_t>(lanes));
  for (; j + lanes <= width; j += lanes) body(j, all);
  if (j < width) body(j, hn::FirstN(d, static_cast<size_t>(width - j)));
}

template <class T>
void activate(Activation activation, int64_t rows, int64_t width, const T* z, int64_t z_row, T* y,
              int64_t y_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row, y += y_row) {
    if (activation == Activation::relu) {
      over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
        // Not Max: on x86 that turns a NaN into 0, and a broken run would go on unnoticed.
        const auto x = hn::MaskedLoad(mask, d, z + j);
        hn::BlendedStore(hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x), mask, d, y + j);
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
      over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
        const auto open = hn::Gt(hn::MaskedLoad(mask, d, z + j), hn::Zero(d));
        hn::BlendedStore(hn::IfThenElseZero(open, hn::MaskedLoad(mask, d, g + j)), mask, d, g + j);
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
    over_row<T>(width,
                [&](int64_t j, auto mask) HWY_ATTR { sum = hn::Add(sum, hn::MaskedLoad(mask, d, z + j)); });
    mean = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<T>(width);
  }
  const auto center = hn::Set(d, mean);
  auto squares = hn::Zero(d);
  over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
    const auto x = hn::IfThenElseZero(mask, hn::Sub(hn::MaskedLoad(mask, d, z + j), center));
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
    over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
      const auto x = hn::Mul(hn::Sub(hn::MaskedLoad(mask, d, z + j), hn::Set(d, mean)), hn::Set(d, scale));
      const auto shift = bias != nullptr ? hn::MaskedLoad(mask, d, bias + j) : hn::Zero(d);
      hn::BlendedStore(hn::MulAdd(x, hn::MaskedLoad(mask, d, gain + j), shift), mask, d, y + j);
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
    over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
      const auto grad = hn::MaskedLoad(mask, d, d_y + j);
      const auto x = hn::Mul(hn::Sub(hn::MaskedLoad(mask, d, z + j), center), unit);
      const auto scaled = hn::Mul(grad, hn::MaskedLoad(mask, d, gain + j));
      sum = hn::Add(sum, scaled);
      dot = hn::MulAdd(scaled, x, dot);
      hn::BlendedStore(hn::MulAdd(grad, x, hn::MaskedLoad(mask, d, d_gain + j)), mask, d, d_gain + j);
      if (d_bias != nullptr)
        hn::BlendedStore(hn::Add(grad, hn::MaskedLoad(mask, d, d_bias + j)), mask, d, d_bias + j);
    });
    const T n = static_cast<T>(width);
    const auto mean_grad = hn::Set(d, kind == Norm::layer ? hn::GetLane(hn::SumOfLanes(d, sum)) / n : T(0));
    const auto mean_dot = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dot)) / n);
    over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
      const auto x = hn::Mul(hn::Sub(hn::MaskedLoad(mask, d, z + j), center), unit);
      const auto scaled = hn::Mul(hn::MaskedLoad(mask, d, d_y + j), hn::MaskedLoad(mask, d, gain + j));
      const auto g = hn::NegMulAdd(x, mean_dot, hn::Sub(scaled, mean_grad));
      hn::BlendedStore(hn::Mul(g, unit), mask, d, d_z + j);
    });
  }
}

template <class T>
HWY_INLINE void add_row(int64_t width, const T* x, T* y) {
  const Wide<T> d;
  over_row<T>(width, [&](int64_t j, auto mask) HWY_ATTR {
    hn::BlendedStore(hn::Add(hn::MaskedLoad(mask, d, x + j), hn::MaskedLoad(mask, d, y + j)), mask, d, y + j);
  });
}

template <class T>
HWY_INLINE void copy_row(int64_t width, const T* x, T* y) {
  const Wide<T> d;
  over_row<T>(width, [&](int64_t j, auto mask)
                         HWY_ATTR { hn::BlendedStore(hn::MaskedLoad(mask, d, x + j), mask, d, y + j); });
}

template <class T>
void column_sums(int64_t rows, int64_t width, const T* x, int64_t x_row, T* sums) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + i * x_row, sums);
}

template <class T>
void copy(int64_t rows, int64_t width, const T* x, int64_t x_row, T* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) copy_row(width, x + i * x_row, y + i * y_row);
}

template <class T>
void add(int64_t rows, int64_t width, const T* x, int64_t x_row, T* y, int64_t y_row) {
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

template <class T>
void gather_add(int64_t rows, int64_t width, const T* x, int64_t x_row, const int32_t* index, T* y,
                int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + index[i] * x_row, y + i * y_row);
}

template <class T>
void scatter_add(int64_t rows, int64_t width, const T* x, int64_t x_row, const int32_t* index, T* y,
                 int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) add_row(width, x + i * x_row, y + index[i] * y_row);
}

template <class T>
const TileOps<T>* table() {
  static const TileOps<T> ops{.panel = kVectors * static_cast<int64_t>(hn::Lanes(Wide<T>())),
                              .isa = hwy::TargetName(HWY_TARGET),
                              .gemm = gemm<T>,
                              .activate = activate<T>,
                              .activate_backward = activate_backward<T>,
                              .norm = norm<T>,
                              .norm_backward = norm_backward<T>,
                              .column_sums = column_sums<T>,
                              .copy = copy<T>,
                              .add = add<T>,
                              .broadcast = broadcast<T>,
                              .gather_add = gather_add<T>,
                              .scatter_add = scatter_add<T>};
  return &ops;
}
const TileOps<float>* table_f32() { return table<float>(); }
const TileOps<double>* table_f64() { return table<double>(); }

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);

template <>
const TileOps<float>& tile_ops<float>() {
  static const TileOps<float>& ops = *HWY_DYNAMIC_DISPATCH(table_f32)();
  return ops;
}
template <>
const TileOps<double>& tile_ops<double>() {
  static const TileOps<double>& ops = *HWY_DYNAMIC_DISPATCH(table_f64)();
  return ops;
}
}  // namespace meshgrad::cpu
#endif
