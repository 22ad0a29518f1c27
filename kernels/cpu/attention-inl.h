// SPDX-License-Identifier: Apache-2.0
// What attention_rows.cpp is made of: sums over the edges of one node, with rows cut into vectors that each
// lie within one head (Row). Included once per instruction set.
#if defined(MESHGRAD_KERNELS_CPU_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHGRAD_KERNELS_CPU_ATTENTION_INL_H
#undef MESHGRAD_KERNELS_CPU_ATTENTION_INL_H
#else
#define MESHGRAD_KERNELS_CPU_ATTENTION_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
#include <meshgrad/kernels/cpu/attention_rows.h>
#include <meshgrad/kernels/cpu/simd-inl.h>

#include <algorithm>
#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {

/// How rows of heads are cut into vectors of at most D's lanes: each lies within a head, and only the last of
/// a head may be partial. Without partial ones (kWhole) there are no masks.
template <class D, bool whole>
struct Row {
  static constexpr bool kWhole = whole;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  int64_t heads, dim;

  int64_t per_head() const { return (dim + kLanes - 1) / kLanes; }
  int64_t head(int64_t vector) const { return vector / per_head(); }
  int64_t column(int64_t vector) const { return vector / per_head() * dim + vector % per_head() * kLanes; }
  /// Values of a vector that starts `within` columns after its head's first.
  int64_t count(int64_t within) const { return kWhole ? kLanes : std::min(kLanes, dim - within); }
  int64_t within(int64_t vector) const { return vector % per_head() * kLanes; }
};

template <bool whole, class D, class T>
requires(sizeof(T) >= 4) HWY_INLINE hn::Vec<D> load_part(D d, const T* x, int64_t count) {
  return whole ? hn::LoadU(d, x) : hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, x);
}
template <bool whole, class D, class S>
requires(sizeof(S) == 2) HWY_INLINE hn::Vec<D> load_part(D d, const S* x, int64_t count) {
  const hn::Rebind<uint16_t, D> bits;
  hn::Vec<decltype(bits)> stored;
  if constexpr (whole) {
    stored = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(x));
  } else {
    uint16_t lanes[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(lanes, x, static_cast<size_t>(count) * sizeof(S));
    stored = hn::LoadU(bits, lanes);
  }
  if constexpr (kIsBfloat16<S>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), stored)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<float>(std::bit_cast<half>(hn::GetLane(stored))));
#else
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), stored));
#endif
  }
}
template <bool whole, class D, class T>
HWY_INLINE void store_part(D d, hn::Vec<D> value, T* y, int64_t count) {
  whole ? hn::StoreU(value, d, y) : hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(count)), d, y);
}

template <class D>
HWY_INLINE hn::Vec<D> leaky(D d, hn::Vec<D> x, hn::TFromD<D> slope) {
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, hn::Mul(x, hn::Set(d, slope)));
}
template <class D>
HWY_INLINE hn::Vec<D> leaky_slope(D d, hn::Vec<D> x, hn::TFromD<D> slope) {
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Set(d, hn::TFromD<D>(1)), hn::Set(d, slope));
}

/// Calls body(row) with the widest vectors that cut heads of `dim` columns into whole ones; else with masks.
template <class T, class Body>
HWY_INLINE void with_row(int64_t heads, int64_t dim, Body&& body) {
  using Full = Wide<T>;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Full()));
  if (dim % kLanes == 0) return body(Row<Full, true>{heads, dim});
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes > 8) {
    if (dim % 8 == 0) return body(Row<hn::CappedTag<T, 8>, true>{heads, dim});
  }
#endif
  body(Row<Full, false>{heads, dim});
}

/// Sums each of n vectors over its lanes: out[i] = sum of v[i]. Neighbours are added in pairs, all vectors at
/// once, so that n sums cost about as much as one would alone.
template <int n, class D>
HWY_INLINE void sums_of_lanes(D d, hn::Vec<D> (&v)[n], hn::TFromD<D>* out) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
#if HWY_TARGET != HWY_SCALAR
  int vectors = n;
  for (int lanes = kLanes; lanes > 1; lanes /= 2) {
    const int half = vectors > 1 ? vectors / 2 : 1;
    for (int i = 0; i < half; ++i) {
      const auto low = v[vectors > 1 ? 2 * i : 0], high = v[vectors > 1 ? 2 * i + 1 : 0];
      v[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
    vectors = half;
  }
#endif
  hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  constexpr int kStored = n < kLanes ? n : kLanes;
  for (int i = 0; i < n / kStored; ++i) {
    hn::StoreU(v[i], d, lanes);
    for (int j = 0; j < kStored; ++j) out[i * kStored + j] = lanes[j];
  }
}

/// out[e, h] = factor * the sum over head h's columns of term(x of row index[e], column, count), for n heads
/// from `head` on.
template <int n, class R, class S, class Term>
HWY_INLINE void head_sums_of(const R& row, int64_t head, int64_t edges, const int32_t* index, const S* x,
                             typename R::T factor, typename R::T* out, const Term& term) {
  using V = typename R::V;
  const int64_t width = row.heads * row.dim;
  const auto d = hn::DFromV<V>();
  for (int64_t e = 0; e < edges; ++e) {
    const S* const from = x + index[e] * width;
    V sums[n];
    for (int i = 0; i < n; ++i) {
      const int64_t first = (head + i) * row.dim;
      sums[i] = hn::Zero(d);
      for (int64_t j = 0; j < row.dim; j += R::kLanes) {
        const int64_t count = row.count(j);
        sums[i] = hn::Add(sums[i], term(load_part<R::kWhole>(d, from + first + j, count), first + j, count));
      }
    }
    typename R::T total[n];
    sums_of_lanes<n>(d, sums, total);
    for (int i = 0; i < n; ++i) out[e * row.heads + head + i] = factor * total[i];
  }
}
template <class R, class S, class Term>
HWY_INLINE void head_sums(const R& row, int64_t edges, const int32_t* index, const S* x, typename R::T factor,
                          typename R::T* out, const Term& term) {
  int64_t head = 0;
  for (; head + 8 <= row.heads; head += 8) head_sums_of<8>(row, head, edges, index, x, factor, out, term);
  for (; head < row.heads; ++head) head_sums_of<1>(row, head, edges, index, x, factor, out, term);
}

/// out[e, h] = factor * x[index[e]] . y, head by head.
template <class R, class S>
HWY_NOINLINE void dots(const R& row, int64_t edges, const int32_t* index, const S* x, const S* y,
                       typename R::T factor, typename R::T* out) {
  using D = hn::DFromV<typename R::V>;
  head_sums(row, edges, index, x, factor, out, [&](auto v, int64_t column, int64_t count) HWY_ATTR {
    return hn::Mul(v, load_part<R::kWhole>(D(), y + column, count));
  });
}
/// out[e, h] = weight . leaky(x[index[e]] + y), head by head.
template <class R, class S>
HWY_NOINLINE void leaky_dots(const R& row, int64_t edges, const int32_t* index, const S* x, const S* y,
                             const typename R::T* weight, typename R::T slope, typename R::T* out) {
  using D = hn::DFromV<typename R::V>;
  head_sums(row, edges, index, x, typename R::T(1), out, [&](auto v, int64_t column, int64_t count) HWY_ATTR {
    const auto z = hn::Add(v, load_part<R::kWhole>(D(), y + column, count));
    return hn::Mul(leaky(D(), z, slope), load_part<R::kWhole>(D(), weight + column, count));
  });
}

/// Adds to `sum` [width], over the edges in order, factor[e, h] * x[index[e]]: n vectors from `vector` on, in
/// registers.
template <int n, class R, class S>
HWY_INLINE void weighted_sum_of(const R& row, int64_t vector, int64_t edges, const int32_t* index, const S* x,
                                const typename R::T* factor, typename R::T* sum) {
  using V = typename R::V;
  const auto d = hn::DFromV<V>();
  const int64_t width = row.heads * row.dim;
  int64_t column[n], head[n], count[n];
  V sums[n];
  for (int i = 0; i < n; ++i) {
    column[i] = row.column(vector + i);
    head[i] = row.head(vector + i);
    count[i] = row.count(row.within(vector + i));
    sums[i] = load_part<R::kWhole>(d, sum + column[i], count[i]);
  }
  for (int64_t e = 0; e < edges; ++e) {
    const S* const from = x + index[e] * width;
    const typename R::T* const of_edge = factor + e * row.heads;
    for (int i = 0; i < n; ++i) {
      sums[i] = hn::MulAdd(hn::Set(d, of_edge[head[i]]), load_part<R::kWhole>(d, from + column[i], count[i]),
                           sums[i]);
    }
  }
  for (int i = 0; i < n; ++i) store_part<R::kWhole>(d, sums[i], sum + column[i], count[i]);
}
template <class R, class S>
HWY_NOINLINE void weighted_sum(const R& row, int64_t edges, const int32_t* index, const S* x,
                               const typename R::T* factor, typename R::T* sum) {
  const int64_t vectors = row.heads * row.per_head();
  int64_t v = 0;
  for (; v + 8 <= vectors; v += 8) weighted_sum_of<8>(row, v, edges, index, x, factor, sum);
  for (; v < vectors; ++v) weighted_sum_of<1>(row, v, edges, index, x, factor, sum);
}

/// With z = x[index[e]] + y, adds over the edges in order: to `sum` factor[e, h] * weight * leaky'(z), and to
/// d_weight, unless it is null, factor[e, h] * leaky(z).
template <class R, class S>
HWY_NOINLINE void leaky_sums(const R& row, int64_t edges, const int32_t* index, const S* x, const S* y,
                             const typename R::T* weight, typename R::T slope, const typename R::T* factor,
                             typename R::T* sum, typename R::T* d_weight) {
  const hn::DFromV<typename R::V> d;
  const int64_t width = row.heads * row.dim;
  for (int64_t v = 0; v < row.heads * row.per_head(); ++v) {
    const int64_t column = row.column(v), head = row.head(v), count = row.count(row.within(v));
    const auto own = load_part<R::kWhole>(d, y + column, count);
    auto slopes = hn::Zero(d), values = hn::Zero(d);
    for (int64_t e = 0; e < edges; ++e) {
      const auto z = hn::Add(own, load_part<R::kWhole>(d, x + index[e] * width + column, count));
      const auto of_edge = hn::Set(d, factor[e * row.heads + head]);
      slopes = hn::MulAdd(of_edge, leaky_slope(d, z, slope), slopes);
      values = hn::MulAdd(of_edge, leaky(d, z, slope), values);
    }
    const auto start = load_part<R::kWhole>(d, sum + column, count);
    const auto by = load_part<R::kWhole>(d, weight + column, count);
    store_part<R::kWhole>(d, hn::MulAdd(slopes, by, start), sum + column, count);
    if (d_weight == nullptr) continue;
    const auto before = load_part<R::kWhole>(d, d_weight + column, count);
    store_part<R::kWhole>(d, hn::Add(before, values), d_weight + column, count);
  }
}

/// sum *= scale, head by head.
template <class R>
HWY_INLINE void scale_heads(const R& row, const typename R::T* scale, typename R::T* sum) {
  const hn::DFromV<typename R::V> d;
  for (int64_t h = 0; h < row.heads; ++h) {
    const auto by = hn::Set(d, scale[h]);
    for (int64_t j = 0; j < row.dim; j += R::kLanes) {
      typename R::T* const at = sum + h * row.dim + j;
      const int64_t count = row.count(j);
      store_part<R::kWhole>(d, hn::Mul(load_part<R::kWhole>(d, at, count), by), at, count);
    }
  }
}

/// exp(x). Highway's is 0 for a NaN, which would hide a diverged run.
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Eq(x, x), hn::Exp(d, x), x);
}
/// x[i] = exp(x[i]).
template <class T>
HWY_INLINE void exponentials(int64_t n, T* x) {
  over_row<T>(n, [&](int64_t i, auto part)
                     HWY_ATTR { store(part, exponential(Wide<T>(), load(part, x + i)), x + i); });
}

/// Columns of dropout, collected so that vectors draw them: Philox of one block of four at a time takes as
/// long as all else that an edge needs.
template <int64_t kMost>
struct DropoutBlocks {
  int64_t count = 0;
  uint32_t row_low[kMost], row_high[kMost], block[kMost];
  uint32_t words[4 * kMost];  // the random bits of each block's columns

  /// Adds the blocks with `columns` columns of a receiver from `first` on. Returns where in `words` the first
  /// will be.
  int64_t add(const DropoutMask& dropout, int64_t receiver, int64_t first, int64_t columns) {
    const uint64_t row = dropout.row_key(receiver);
    const int64_t at = 4 * count + first % 4;
    for (int64_t b = first / 4; b * 4 < first + columns; ++b, ++count) {
      row_low[count] = static_cast<uint32_t>(row);
      row_high[count] = static_cast<uint32_t>(row >> 32);
      block[count] = static_cast<uint32_t>(b);
    }
    return at;
  }
};

#if HWY_TARGET != HWY_SCALAR
/// The upper halves of the products of 32 bits.
template <class D>
HWY_INLINE hn::Vec<D> upper_product(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RepartitionToWide<D> wide;
  const auto even = hn::BitCast(d, hn::ShiftRight<32>(hn::MulEven(a, b)));
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  return hn::OddEven(hn::BitCast(d, odd), even);
}
#endif

/// Draws the words of all blocks: engine/random.h's philox, a block a lane.
template <int64_t kMost>
HWY_NOINLINE void draw(const DropoutMask& dropout, RandomKey key, DropoutBlocks<kMost>& blocks) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint32_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto first = hn::Set(d, 0xd2511f53u), second = hn::Set(d, 0xcd9e8d57u);
  for (; i + lanes <= blocks.count; i += lanes) {
    auto c0 = hn::LoadU(d, blocks.row_low + i), c1 = hn::LoadU(d, blocks.row_high + i);
    auto c2 = hn::LoadU(d, blocks.block + i), c3 = hn::Set(d, dropout.op);
    auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
      const auto high0 = upper_product(d, c0, first), high1 = upper_product(d, c2, second);
      const auto low0 = hn::Mul(c0, first), low1 = hn::Mul(c2, second);
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
      c1 = low1;
      c3 = low0;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, blocks.words + 4 * i);
  }
#endif
  for (; i < blocks.count; ++i) {
    const auto bits = philox(key, {blocks.row_low[i], blocks.row_high[i], blocks.block[i], dropout.op});
    std::copy(bits.begin(), bits.end(), blocks.words + 4 * i);
  }
}

/// keep / (1 - rate) of columns whose random bits are `words`.
template <class T>
HWY_INLINE void keep_factors(const DropoutMask& dropout, const uint32_t* words, int64_t count, T* factors) {
  const auto scale = static_cast<T>(dropout.scale);
  for (int64_t i = 0; i < count; ++i) factors[i] = words[i] >= dropout.dropped_below ? scale : T(0);
}

/// Asks for the memory of a row.
template <class S>
HWY_INLINE void prefetch_row(const S* row, int64_t width) {
  for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(S))) hwy::Prefetch(row + j);
}

template <class S>
HWY_INLINE void store_row(int64_t width, const Accumulator<S>* from, bool add, S* to) {
  over_row<Accumulator<S>>(width, [&](int64_t j, auto part) HWY_ATTR {
    const auto value = load(part, from + j);
    store(part, add ? hn::Add(load(part, to + j), value) : value, to + j);
  });
}

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
