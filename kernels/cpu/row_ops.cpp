// SPDX-License-Identifier: Apache-2.0
// Row operations, compiled once per instruction set: foreach_target.h includes this file again for each.
// Lambdas carry HWY_ATTR, as they would otherwise be compiled without the instruction set of their function.
#include <meshgrad/kernels/cpu/row_ops.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/row_ops.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {

template <class T>
using Vec = hn::Vec<Wide<T>>;

template <class S>
void activate(Activation activation, int64_t rows, int64_t width, const S* z, int64_t z_row,
              Accumulator<S>* y, int64_t y_row) {
  using T = Accumulator<S>;
  for (int64_t i = 0; i < rows; ++i) {
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      store(part, activated<T>(activation, load(part, z + i * z_row + j)), y + i * y_row + j);
    });
  }
}

template <class S>
void activate_backward(Activation activation, int64_t rows, int64_t width, const S* z, int64_t z_row,
                       Accumulator<S>* d, int64_t d_row) {
  using T = Accumulator<S>;
  for (int64_t i = 0; i < rows; ++i) {
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      T* const at = d + i * d_row + j;
      store(part, through_activation<T>(activation, load(part, z + i * z_row + j), load(part, at)), at);
    });
  }
}

/// Mean (0 for rms) and scale = 1 / sqrt(variance + epsilon) of a row. Two passes: E[x^2] - mean^2 would
/// cancel when the mean is large.
template <class T, class From>
HWY_INLINE void row_statistics(Norm norm, int64_t width, const From* z, T epsilon, T& mean, T& scale) {
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
    const auto from_mean = hn::Sub(load(part, z + j), center);
    // Lanes past the row hold 0 - mean, which must not count.
    const auto x = part.whole ? from_mean : hn::IfThenElseZero(part.mask, from_mean);
    squares = hn::MulAdd(x, x, squares);
  });
  const T variance = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<T>(width);
  scale = T(1) / std::sqrt(variance + epsilon);
}

/// y = (z - mean) * scale * gain + bias.
template <class S>
void norm(Norm kind, int64_t rows, int64_t width, const Accumulator<S>* z, int64_t z_row,
          const Accumulator<S>* gain, const Accumulator<S>* bias, Accumulator<S> epsilon,
          const NormResult<S>& result) {
  using T = Accumulator<S>;
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, z += z_row) {
    T mean, scale;
    row_statistics(kind, width, z, epsilon, mean, scale);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto x = hn::Mul(hn::Sub(load(part, z + j), hn::Set(d, mean)), hn::Set(d, scale));
      const auto shift = bias != nullptr ? load(part, bias + j) : hn::Zero(d);
      const auto y = hn::MulAdd(x, load(part, gain + j), shift);
      const int64_t at = i * width + j;
      const auto sum = result.residual != nullptr ? hn::Add(load(part, result.residual + at), y) : y;
      if (result.tile != nullptr)
        store(part, result.residual_in_tile ? sum : y, result.tile + i * result.tile_row + j);
      if (result.out != nullptr) store(part, sum, result.out + at);
    });
  }
}

/// norm_backward for kRows rows at once, so that gradients of gain and bias are read and written once for all
/// of them. With x = (z - mean) * scale and g = d_y * gain, per row:
///   d_gain += d_y * x,  d_bias += d_y,  d_z = scale * (g - mean(g) - x * mean(g * x)), mean(g) = 0 for rms.
/// Three passes over the rows, which are in the first cache: statistics, the two means, d_z.
template <int kRows, class S>
HWY_INLINE void norm_backward_of(Norm kind, int64_t width, const S* z, int64_t z_row,
                                 const Accumulator<S>* gain, Accumulator<S> epsilon,
                                 const Accumulator<S>* d_y, int64_t d_y_row, Accumulator<S>* d_z,
                                 int64_t d_z_row, Accumulator<S>* d_gain, Accumulator<S>* d_bias,
                                 Accumulator<S>* d_z_sums) {
  using T = Accumulator<S>;
  const Wide<T> d;
  Vec<T> center[kRows], unit[kRows], sum[kRows], dot[kRows];
  for (int r = 0; r < kRows; ++r) {
    T mean, scale;
    row_statistics(kind, width, z + r * z_row, epsilon, mean, scale);
    center[r] = hn::Set(d, mean);
    unit[r] = hn::Set(d, scale);
    sum[r] = dot[r] = hn::Zero(d);
  }
  over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
    const auto factor = load(part, gain + j);
    auto gain_sum = load(part, d_gain + j);
    auto bias_sum = d_bias != nullptr ? load(part, d_bias + j) : hn::Zero(d);
    for (int r = 0; r < kRows; ++r) {
      const auto grad = load(part, d_y + r * d_y_row + j);
      const auto x = hn::Mul(hn::Sub(load(part, z + r * z_row + j), center[r]), unit[r]);
      const auto scaled = hn::Mul(grad, factor);
      sum[r] = hn::Add(sum[r], scaled);
      dot[r] = hn::MulAdd(scaled, x, dot[r]);
      gain_sum = hn::MulAdd(grad, x, gain_sum);
      bias_sum = hn::Add(bias_sum, grad);
    }
    store(part, gain_sum, d_gain + j);
    if (d_bias != nullptr) store(part, bias_sum, d_bias + j);
  });
  const T n = static_cast<T>(width);
  for (int r = 0; r < kRows; ++r) {
    sum[r] = hn::Set(d, kind == Norm::layer ? hn::GetLane(hn::SumOfLanes(d, sum[r])) / n : T(0));
    dot[r] = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dot[r])) / n);
  }
  over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
    const auto factor = load(part, gain + j);
    auto column_sum = d_z_sums != nullptr ? load(part, d_z_sums + j) : hn::Zero(d);
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Mul(hn::Sub(load(part, z + r * z_row + j), center[r]), unit[r]);
      const auto scaled = hn::Mul(load(part, d_y + r * d_y_row + j), factor);
      const auto g = hn::Mul(hn::NegMulAdd(x, dot[r], hn::Sub(scaled, sum[r])), unit[r]);
      column_sum = hn::Add(column_sum, g);
      store(part, g, d_z + r * d_z_row + j);
    }
    if (d_z_sums != nullptr) store(part, column_sum, d_z_sums + j);
  });
}

template <class S>
void norm_backward(Norm kind, int64_t rows, int64_t width, const S* z, int64_t z_row,
                   const Accumulator<S>* gain, Accumulator<S> epsilon, const Accumulator<S>* d_y,
                   int64_t d_y_row, Accumulator<S>* d_z, int64_t d_z_row, Accumulator<S>* d_gain,
                   Accumulator<S>* d_bias, Accumulator<S>* d_z_sums) {
  constexpr int kTogether = 4;  // rows; more would not fit into registers
  int64_t i = 0;
  for (; i + kTogether <= rows; i += kTogether) {
    norm_backward_of<kTogether>(kind, width, z + i * z_row, z_row, gain, epsilon, d_y + i * d_y_row, d_y_row,
                                d_z + i * d_z_row, d_z_row, d_gain, d_bias, d_z_sums);
  }
  for (; i < rows; ++i) {
    norm_backward_of<1>(kind, width, z + i * z_row, z_row, gain, epsilon, d_y + i * d_y_row, d_y_row,
                        d_z + i * d_z_row, d_z_row, d_gain, d_bias, d_z_sums);
  }
}

/// Sums kVectors vectors of columns over all rows, in registers.
template <int kVectors, class S, class To>
HWY_INLINE void sum_columns(const Part<Accumulator<S>>& part, const RowSum& sum_of, int64_t begin,
                            int64_t end, const S* x, int64_t x_row, To* y) {
  using T = Accumulator<S>;
  const Wide<T> d;
  const size_t lanes = hn::Lanes(d);
  Vec<T> sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = sum_of.accumulate ? load(part, y + v * lanes) : hn::Zero(d);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = sum_of.order != nullptr ? sum_of.order[i] : i;
    const S* const row = x + (sum_of.index != nullptr ? sum_of.index[k] : k) * x_row;
    if (sum_of.weights == nullptr) {
      for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Add(sum[v], load(part, row + v * lanes));
    } else {
      const auto weight = hn::Set(d, static_cast<T>(sum_of.weights[k]));
      for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::MulAdd(weight, load(part, row + v * lanes), sum[v]);
    }
  }
  if (sum_of.mean && end > begin) {
    const auto count = hn::Set(d, static_cast<T>(end - begin));
    for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Div(sum[v], count);
  }
  for (size_t v = 0; v < kVectors; ++v) store(part, sum[v], y + v * lanes);
}

/// Eight vectors at once hide the latency of additions; columns that are left over go one vector at a time.
/// The order of each column's sum is the same.
template <class S, class To>
void sum_rows(const RowSum& sum_of, int64_t begin, int64_t end, int64_t width, const S* x, int64_t x_row,
              To* y) {
  using T = Accumulator<S>;
  constexpr int kTogether = 8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
  const Part<T> all{hn::FirstN(Wide<T>(), hn::Lanes(Wide<T>())), hn::Lanes(Wide<T>()), true};
  int64_t j = 0;
  for (; j + kTogether * lanes <= width; j += kTogether * lanes)
    sum_columns<kTogether>(all, sum_of, begin, end, x + j, x_row, y + j);
  over_row<T>(width - j, [&](int64_t rest, auto part) HWY_ATTR {
    sum_columns<1>(part, sum_of, begin, end, x + j + rest, x_row, y + j + rest);
  });
}

/// load and store: the overloads of simd-inl.h convert.
template <class From, class To>
void copy(int64_t rows, int64_t width, const From* x, int64_t x_row, To* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) {
    over_row<Accumulator<To>>(width, [&](int64_t j, auto part) HWY_ATTR {
      store(part, load(part, x + i * x_row + j), y + i * y_row + j);
    });
  }
}

template <class From, class To>
void add(int64_t rows, int64_t width, const From* x, int64_t x_row, To* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i) {
    over_row<Accumulator<To>>(width, [&](int64_t j, auto part) HWY_ATTR {
      To* const at = y + i * y_row + j;
      store(part, hn::Add(load(part, x + i * x_row + j), load(part, at)), at);
    });
  }
}

/// The order start + a + b is part of the contract: it must be the same in forward and when recomputed.
template <class S>
void gather_sum(int64_t rows, int64_t width, const Accumulator<S>* start, Gathered<S> a, Gathered<S> b,
                Accumulator<S>* y, int64_t y_row) {
  using T = Accumulator<S>;
  const Wide<T> d;
  const auto row_of = [&](const Gathered<S>& from, int64_t i) {
    return from.rows == nullptr ? nullptr : from.rows + (from.index != nullptr ? from.index[i] : i) * width;
  };
  for (int64_t i = 0; i < rows; ++i, y += y_row) {
    const S* const x = row_of(a, i);
    const S* const z = row_of(b, i);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      auto sum = start != nullptr ? load(part, start + j) : hn::Zero(d);
      if (x != nullptr) sum = hn::Add(sum, load(part, x + j));
      if (z != nullptr) sum = hn::Add(sum, load(part, z + j));
      store(part, sum, y + j);
    });
  }
}

/// Interleaves rows of bfloat16 bits: the even row in the lower half of a 32-bit word, the odd one in the
/// upper. `bits_of(part, from)` returns the bits of a vector of x, each in the lower half of a word.
template <class From, class BitsOf>
HWY_INLINE void pair_rows_of(int64_t rows, int64_t width, const From* x, int64_t x_row, bfloat16* y,
                             int64_t y_row, const BitsOf& bits_of) {
  for (int64_t i = 0; i < rows; i += 2, x += 2 * x_row, y += y_row) {
    const bool paired = i + 1 < rows;
    over_row<float>(width, [&](int64_t j, auto part) HWY_ATTR {
      auto pair = bits_of(part, x + j);
      if (paired) pair = hn::Or(pair, hn::ShiftLeft<16>(bits_of(part, x + x_row + j)));
      store(part, hn::BitCast(Wide<float>(), pair), reinterpret_cast<float*>(y + 2 * j));
    });
  }
}
void pair_rows(int64_t rows, int64_t width, const float* x, int64_t x_row, bfloat16* y, int64_t y_row) {
  pair_rows_of(rows, width, x, x_row, y, y_row,
               [](auto part, const float* from) HWY_ATTR { return bfloat16_bits(load(part, from)); });
}
void pair_activated_rows(Activation activation, int64_t rows, int64_t width, const bfloat16* x, int64_t x_row,
                         bfloat16* y, int64_t y_row) {
  if (activation == Activation::relu || activation == Activation::none) {
    // On bit patterns, without conversion: relu maps 0x8000 (-0) .. 0xff80 (-infinity) to 0. Negative NaNs
    // lie above and stay. One unsigned comparison tests the range.
    const Bits bits;
    const auto zeros = hn::Set(bits, activation == Activation::relu ? 0x7f81u : 0u);
    return pair_rows_of(rows, width, x, x_row, y, y_row, [&](auto part, const bfloat16* from) HWY_ATTR {
      const auto x_bits = load_bits(part, from);
      return hn::IfThenZeroElse(hn::Lt(hn::Sub(x_bits, hn::Set(bits, 0x8000u)), zeros), x_bits);
    });
  }
  pair_rows_of(rows, width, x, x_row, y, y_row, [&](auto part, const bfloat16* from) HWY_ATTR {
    return bfloat16_bits(activated<float>(activation, load(part, from)));
  });
}

template <class S>
const RowOps<S>* table() {
  using T = Accumulator<S>;
  static const RowOps<S> ops = [] {
    RowOps<S> result{.isa = hwy::TargetName(HWY_TARGET),
                     .activate = activate<S>,
                     .activate_backward = activate_backward<S>,
                     .norm = norm<S>,
                     .norm_backward = norm_backward<S>,
                     .load = copy<S, T>,
                     .store = copy<T, S>,
                     .add = add<S, T>,
                     .add_to_stored = add<T, S>,
                     .sum_rows = sum_rows<S, S>,
                     .sum_rows_wide = sum_rows<S, T>,
                     .gather_sum = gather_sum<S>,
                     .pair_rows = nullptr,
                     .pair_activated_rows = nullptr};
    if constexpr (kDepth<S> == 2) {
      result.pair_rows = pair_rows;
      result.pair_activated_rows = pair_activated_rows;
    }
    return result;
  }();
  return &ops;
}
// HWY_EXPORT takes plain functions.
const RowOps<float>* table_f32() { return table<float>(); }
const RowOps<double>* table_f64() { return table<double>(); }
const RowOps<half>* table_f16() { return table<half>(); }
const RowOps<bfloat16>* table_bf16() { return table<bfloat16>(); }
const RowOps<WideBfloat16>* table_wide_bf16() { return table<WideBfloat16>(); }

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);
HWY_EXPORT(table_f16);
HWY_EXPORT(table_bf16);
HWY_EXPORT(table_wide_bf16);

// isa() must run first: it limits the targets that the dispatch may choose.
template <>
const RowOps<float>& row_ops<float>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f32)());
}
template <>
const RowOps<double>& row_ops<double>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f64)());
}
template <>
const RowOps<half>& row_ops<half>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_f16)());
}
template <>
const RowOps<bfloat16>& row_ops<bfloat16>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_bf16)());
}
template <>
const RowOps<WideBfloat16>& row_ops<WideBfloat16>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(table_wide_bf16)());
}
}  // namespace meshgrad::cpu
#endif
