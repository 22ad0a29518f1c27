// SPDX-License-Identifier: Apache-2.0
// Products by register blocks, for one instruction set; gemm_*.cpp include this within a namespace of each.
// MESHGRAD_PAIRS is 1 where bfloat16 has instructions, and not defined elsewhere.

// 6 rows by 4 vectors fill 24 of the 32 registers of AVX-512; by 2, 12 of 16 elsewhere.
inline constexpr int kRows = 6;
inline constexpr int kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

template <class T>
using Vec = hn::Vec<Wide<T>>;

// Loops over a block's sums must be unrolled early, or GCC carries the sums through the stack.
#define MESHGRAD_UNROLL _Pragma("GCC unroll 16")

/// The columns of a block's vectors: all of them, or those that are within the row.
template <class T, bool kWhole>
HWY_INLINE Part<T> part_of(int64_t columns) {
  const Wide<T> d;
  const size_t lanes = hn::Lanes(d);
  const size_t count = kWhole ? lanes : std::min(lanes, static_cast<size_t>(std::max<int64_t>(columns, 0)));
  return {hn::FirstN(d, count), count, kWhole || count == lanes};
}

/// An operand in 16 bits from what sums are made of.
template <class S>
HWY_INLINE hn::Vec<HalfBits> to_operand(Vec<float> x) {
#if MESHGRAD_PAIRS
  if constexpr (kIsBfloat16<S>) return hn::Vec<HalfBits>{(__m256i)_mm512_cvtneps_pbh(x.raw)};  // NOLINT
#endif
  return narrow<S>(x);
}

/// Whole vectors of a tile or an operand.
template <class T, class S>
HWY_INLINE void write_operand(Vec<T> x, S* to) {
  if constexpr (sizeof(S) == 2) {
    hn::StoreU(to_operand<S>(x), HalfBits(), reinterpret_cast<uint16_t*>(to));
  } else {
    hn::StoreU(x, Wide<T>(), to);
  }
}
template <class T, class S>
HWY_INLINE void write_past_caches(Vec<T> x, S* to) {
  if constexpr (sizeof(S) == 2) {
    hn::Stream(to_operand<S>(x), HalfBits(), reinterpret_cast<uint16_t*>(to));
  } else {
    hn::Stream(x, Wide<T>(), to);
  }
}
/// Writes to exact rows.
template <bool kWhole, class T, class S>
HWY_INLINE void write_exact(const Part<T>& part, Vec<T> x, S* to) {
  kWhole ? write_operand<T>(x, to) : store(part, x, to);
}
/// Rounded to storage, and back.
template <class S, class T>
HWY_INLINE Vec<T> rounded(Vec<T> x) {
  if constexpr (sizeof(S) == 2) return widen<S>(to_operand<S>(x));
  return x;
}

/// A block of sums: its first row and column, and the columns of the whole product.
template <class T, int kM, int kV>
struct Block {
  using Sums = Vec<T>[kM][kV];
  int64_t row, column, columns;
  Sums& sum;

  /// Calls body(row, its first element in `to`, vector, its column).
  template <class To, class Body>
  HWY_INLINE void each(To* to, int64_t stride, const Body& body) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
    to += row * stride + column;
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; ++m, to += stride) {
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) body(m, v, to + v * lanes);
    }
  }
};

/// Sums that end in a tile.
template <class S>
struct SumEnd {
  using T = Accumulator<S>;
  T* c;
  int64_t stride;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void end(const Block<T, kM, kV>& block) const {
    block.each(c, stride, [&](int m, int v, T* to) HWY_ATTR { hn::StoreU(block.sum[m][v], Wide<T>(), to); });
  }
};

template <class S, bool kRelu>
struct HiddenEnd {
  using T = Accumulator<S>;
  HiddenResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void end(const Block<T, kM, kV>& block) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
    auto& z = block.sum;
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; ++m) {
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) z[m][v] = rounded<S, T>(z[m][v]);
    }
    if (to.tile != nullptr) {
      block.each(to.tile, to.tile_stride,
                 [&](int m, int v, T* at) HWY_ATTR { hn::StoreU(z[m][v], Wide<T>(), at); });
    }
    if constexpr (kRelu) {
      MESHGRAD_UNROLL
      for (int m = 0; m < kM; ++m) {
        MESHGRAD_UNROLL
        for (int v = 0; v < kV; ++v) z[m][v] = activated<T>(Activation::relu, z[m][v]);
      }
    }
    if (kWhole && to.stream_z) {
      block.each(to.z, to.z_stride, [&](int m, int v, S* at) HWY_ATTR { write_past_caches<T>(z[m][v], at); });
    } else if (to.z != nullptr) {
      block.each(to.z, to.z_stride, [&](int m, int v, S* at) HWY_ATTR {
        write_exact<kWhole, T>(part_of<T, kWhole>(block.columns - block.column - v * lanes), z[m][v], at);
      });
    }
    if (to.h == nullptr) return;
    block.each(to.h, to.h_stride, [&](int m, int v, Operand<S>* at) HWY_ATTR {
      write_operand<T>(kRelu ? z[m][v] : activated<T>(to.activation, z[m][v]), at);
    });
  }
};

template <class S, bool kRelu>
struct GradientEnd {
  using T = Accumulator<S>;
  GradientResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void end(const Block<T, kM, kV>& block) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
    auto& d = block.sum;
    const auto part = [&](int v)
                          HWY_ATTR { return part_of<T, kWhole>(block.columns - block.column - v * lanes); };
    block.each(to.z, to.z_stride, [&](int m, int v, const S* at) HWY_ATTR {
      const Vec<T> z = load(part(v), at);
      d[m][v] = through_activation<T>(kRelu ? Activation::relu : to.activation, z, d[m][v]);
    });
    MESHGRAD_UNROLL
    for (int v = 0; v < kV; ++v) {
      T* const at = to.column_sums + block.column + v * lanes;
      Vec<T> column_sum = hn::LoadU(Wide<T>(), at);
      MESHGRAD_UNROLL
      for (int m = 0; m < kM; ++m) column_sum = hn::Add(column_sum, d[m][v]);
      hn::StoreU(column_sum, Wide<T>(), at);
    }
    if (to.tile != nullptr) {
      block.each(to.tile, to.tile_stride,
                 [&](int m, int v, T* at) HWY_ATTR { hn::StoreU(d[m][v], Wide<T>(), at); });
    }
    if (to.stored != nullptr) {
      block.each(to.stored, to.stored_stride,
                 [&](int m, int v, S* at) HWY_ATTR { write_exact<kWhole, T>(part(v), d[m][v], at); });
    }
    if constexpr (kDepth<S> == 2) write_operands(block);
  }

  template <int kM, int kV>
  HWY_INLINE void write_operands(const Block<T, kM, kV>& block) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
    const Bits bits;
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; m += 2) {
      Operand<S>* const row = to.rows + (block.row + m) * to.rows_stride + block.column;
      Operand<S>* const pair = to.pairs + (block.row + m) / 2 * to.pairs_stride + 2 * block.column;
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) {
        const auto upper = to_operand<S>(block.sum[m][v]);
        hn::StoreU(upper, HalfBits(), reinterpret_cast<uint16_t*>(row + v * lanes));
        auto both = hn::PromoteTo(bits, upper);
        if (m + 1 < kM) {
          const auto lower = to_operand<S>(block.sum[(m + 1) % kM][v]);
          hn::StoreU(lower, HalfBits(), reinterpret_cast<uint16_t*>(row + to.rows_stride + v * lanes));
          both = hn::Or(both, hn::ShiftLeft<16>(hn::PromoteTo(bits, lower)));
        }
        hn::StoreU(both, bits, reinterpret_cast<uint32_t*>(pair + 2 * v * lanes));
      }
    }
  }
};

template <class S>
struct StoredEnd {
  using T = Accumulator<S>;
  StoredResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void end(const Block<T, kM, kV>& block) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<T>()));
    auto& x = block.sum;
    const auto part = [&](int v)
                          HWY_ATTR { return part_of<T, kWhole>(block.columns - block.column - v * lanes); };
    if (to.added != nullptr) {
      block.each(to.added, to.added_stride,
                 [&](int m, int v, const S* at) HWY_ATTR { x[m][v] = hn::Add(x[m][v], load(part(v), at)); });
    }
    block.each(to.out, to.out_stride,
               [&](int m, int v, S* at) HWY_ATTR { write_exact<kWhole, T>(part(v), x[m][v], at); });
  }
};

/// Adds a step's products. Pairs of bfloat16 are widened where nothing multiplies them, for the sake of AMX's
/// emulation: a bfloat16 is the upper half of a float.
template <class S, int kM, int kV>
HWY_INLINE void multiply_add(const Operand<S>* HWY_RESTRICT a, int64_t a_row,
                             const Operand<S>* HWY_RESTRICT b, Vec<Accumulator<S>> (&sum)[kM][kV]) {
  const Wide<Accumulator<S>> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if constexpr (kDepth<S> == 1) {
    Vec<Accumulator<S>> row[kV];
    MESHGRAD_UNROLL
    for (int v = 0; v < kV; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; ++m) {
      const auto factor = hn::Set(d, a[m * a_row]);
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) sum[m][v] = hn::MulAdd(factor, row[v], sum[m][v]);
    }
  } else {
#if MESHGRAD_PAIRS
    __m512i row[kV];
    MESHGRAD_UNROLL
    for (int v = 0; v < kV; ++v) row[v] = _mm512_loadu_si512(b + 2 * v * lanes);
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; ++m) {
      int32_t pair;
      std::memcpy(&pair, a + m * a_row, sizeof(pair));
      const auto factor = (__m512bh)_mm512_set1_epi32(pair);
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) sum[m][v].raw = _mm512_dpbf16_ps(sum[m][v].raw, factor, (__m512bh)row[v]);
    }
#else
    const Bits bits;
    for (int odd = 0; odd < 2; ++odd) {
      Vec<float> row[kV];
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) {
        const auto pairs = hn::LoadU(bits, reinterpret_cast<const uint32_t*>(b + 2 * v * lanes));
        row[v] =
            hn::BitCast(d, odd != 0 ? hn::And(pairs, hn::Set(bits, 0xffff0000u)) : hn::ShiftLeft<16>(pairs));
      }
      MESHGRAD_UNROLL
      for (int m = 0; m < kM; ++m) {
        const auto factor = hn::Set(d, static_cast<float>(a[m * a_row + odd]));
        MESHGRAD_UNROLL
        for (int v = 0; v < kV; ++v) sum[m][v] = hn::MulAdd(factor, row[v], sum[m][v]);
      }
    }
#endif
  }
}

/// How far a product that fetches memory has come, on its way through a piece in so many steps.
struct Fetch {
  uintptr_t next;     // an address: it may end behind its piece
  uintptr_t advance;  // bytes a step; 0 where there is nothing to fetch

  Fetch(const Ahead& ahead, const void* otherwise, int64_t steps)
      : next(reinterpret_cast<uintptr_t>(ahead.bytes > 0 ? ahead.data : otherwise)),
        advance(steps > 0 ? static_cast<uintptr_t>((ahead.bytes + steps - 1) / steps) : 0) {}
  /// The line it has come to: many steps fetch the same one, which costs less than to count.
  HWY_INLINE void step() {
    fetch(next);
    next += advance;
  }
  /// All lines of a step that takes long.
  HWY_INLINE void wide_step() {
    constexpr uintptr_t kLine = 64;
    for (uintptr_t line = next; line < next + advance; line += kLine) fetch(line);
    next += advance;
  }
  static HWY_INLINE void fetch(uintptr_t at) { __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2); }
};

template <class S, int kM, int kV, bool kWhole, class End>
HWY_INLINE void block(const Product<S>& p, int64_t row, int64_t column, const Operand<S>* HWY_RESTRICT b,
                      Fetch& fetch, const End& end) {
  using T = Accumulator<S>;
  const Wide<T> d;
  Vec<T> sum[kM][kV];
  const Block<T, kM, kV> block{row, column, p.n, sum};
  if (p.start.rows == nullptr) {
    MESHGRAD_UNROLL
    for (int m = 0; m < kM; ++m) {
      MESHGRAD_UNROLL
      for (int v = 0; v < kV; ++v) sum[m][v] = hn::Zero(d);
    }
  } else {
    block.each(p.start.rows, p.start.stride,
               [&](int m, int v, const T* from) HWY_ATTR { sum[m][v] = hn::LoadU(d, from); });
  }
  const Operand<S>* a = p.a.data + row * p.a.row;
  Fetch here = fetch;
  for (int64_t k = 0; k < p.a.steps; ++k, a += p.a.column, b += p.b.row_stride) {
    multiply_add<S, kM, kV>(a, p.a.row, b, sum);
    here.step();
  }
  fetch = here;
  end.template end<kWhole>(block);
}

/// Blocks begin at even rows: rows are paired within them.
template <class S, int kV, bool kWhole, class End>
HWY_NOINLINE void panel(const Product<S>& p, int64_t column, const Operand<S>* b, Fetch& fetch,
                        const End& end) {
  int64_t row = 0;
  for (; row + kRows <= p.m; row += kRows) block<S, kRows, kV, kWhole>(p, row, column, b, fetch, end);
  if (row + 4 <= p.m) block<S, 4, kV, kWhole>(p, row, column, b, fetch, end), row += 4;
  if (row + 2 <= p.m) block<S, 2, kV, kWhole>(p, row, column, b, fetch, end), row += 2;
  if (row < p.m) block<S, 1, kV, kWhole>(p, row, column, b, fetch, end);
}

/// How a product of S is computed, and ended; gemm_amx-inl.h has another way.
template <class S>
struct InVectors {
  template <class End>
  static HWY_INLINE void run(const Product<S>& p, const End& end) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<Accumulator<S>>()));
    const Operand<S>* b = p.b.data;
    Fetch fetch(p.ahead, b, (p.m + kRows - 1) / kRows * ((p.n - 1) / (kVectors * lanes) + 1) * p.a.steps);
    for (int64_t column = 0; column < p.n; column += kVectors * lanes, b += p.b.panel_stride) {
      if (p.n - column >= kVectors * lanes) {
        panel<S, kVectors, true>(p, column, b, fetch, end);
      } else if (p.n - column > lanes) {
        panel<S, kVectors, false>(p, column, b, fetch, end);
      } else {
        panel<S, 1, false>(p, column, b, fetch, end);
      }
    }
  }
  static void sum(const Product<S>& p, Accumulator<S>* c, int64_t c_stride) {
    run(p, SumEnd<S>{c, c_stride});
  }
};

template <class S, class Way>
void hidden(const Product<S>& p, const HiddenResult<S>& result) {
  if (result.activation == Activation::relu) {
    Way::run(p, HiddenEnd<S, true>{result});
  } else {
    Way::run(p, HiddenEnd<S, false>{result});
  }
  if (result.stream_z) hwy::FlushStream();
}
template <class S, class Way>
void gradient(const Product<S>& p, const GradientResult<S>& result) {
  if (result.activation == Activation::relu) {
    Way::run(p, GradientEnd<S, true>{result});
  } else {
    Way::run(p, GradientEnd<S, false>{result});
  }
}
template <class S, class Way>
void stored(const Product<S>& p, const StoredResult<S>& result) {
  Way::run(p, StoredEnd<S>{result});
}

template <class S, class Way = InVectors<S>>
const Products<S>* table() {
  static const Products<S> products{
      .panel = kVectors * static_cast<int64_t>(hn::Lanes(Wide<Accumulator<S>>())),
      .sum = Way::sum,
      .hidden = hidden<S, Way>,
      .gradient = gradient<S, Way>,
      .stored = stored<S, Way>};
  return &products;
}
