// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication by register blocks, for one instruction set. Each gemm_*.cpp includes this within a
// namespace of its own. MESHGRAD_PAIRS is 1 where bfloat16 dot products exist, and not defined elsewhere.
//
// Loops: panels of B (columns), blocks of kRows rows, steps. A block of kRows x kVectors vectors of sums
// stays in registers over all steps: each step loads kVectors vectors of B and broadcasts kRows elements of
// A, so one load serves several multiply-adds (Goto, van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008). B is packed; A is read in place, and the tiles are small enough that no blocking
// for caches is needed.

// 6 rows by 4 vectors use 24 of AVX-512's 32 registers for sums; 6 by 2 use 12 of 16 elsewhere.
inline constexpr int kRows = 6;
inline constexpr int kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

template <class T>
using Vec = hn::Vec<Wide<T>>;

// Without early unrolling of the loops over a block's sums GCC keeps the sums in memory.
#define MESHGRAD_UNROLL _Pragma("GCC unroll 16")

/// The lanes of a vector that lie within the row, of which `columns` are left. kWhole: all.
template <class T, bool kWhole>
HWY_INLINE Part<T> part_of(int64_t columns) {
  const Wide<T> d;
  const size_t lanes = hn::Lanes(d);
  const size_t count = kWhole ? lanes : std::min(lanes, static_cast<size_t>(std::max<int64_t>(columns, 0)));
  return {hn::FirstN(d, count), count, kWhole || count == lanes};
}

/// Rounds floats to a 16-bit operand; in hardware where there are bfloat16 instructions.
template <class S>
HWY_INLINE hn::Vec<HalfBits> to_operand(Vec<float> x) {
#if MESHGRAD_PAIRS
  if constexpr (kIsBfloat16<S>) return hn::Vec<HalfBits>{(__m256i)_mm512_cvtneps_pbh(x.raw)};  // NOLINT
#endif
  return narrow<S>(x);
}

/// Writes a whole vector to a tile or an operand, whose rows are padded.
template <class T, class S>
HWY_INLINE void write_operand(Vec<T> x, S* to) {
  if constexpr (sizeof(S) == 2) {
    hn::StoreU(to_operand<S>(x), HalfBits(), reinterpret_cast<uint16_t*>(to));
  } else {
    hn::StoreU(x, Wide<T>(), to);
  }
}
/// The same by a non-temporal store, which does not evict other data from the caches.
template <class T, class S>
HWY_INLINE void write_past_caches(Vec<T> x, S* to) {
  if constexpr (sizeof(S) == 2) {
    hn::Stream(to_operand<S>(x), HalfBits(), reinterpret_cast<uint16_t*>(to));
  } else {
    hn::Stream(x, Wide<T>(), to);
  }
}
/// Writes to exact rows: nothing past the width may be touched.
template <bool kWhole, class T, class S>
HWY_INLINE void write_exact(const Part<T>& part, Vec<T> x, S* to) {
  kWhole ? write_operand<T>(x, to) : store(part, x, to);
}
/// x rounded to storage and widened again.
template <class S, class T>
HWY_INLINE Vec<T> rounded(Vec<T> x) {
  if constexpr (sizeof(S) == 2) return widen<S>(to_operand<S>(x));
  return x;
}

/// A block of sums: its first row and column, and the number of columns of C.
template <class T, int kM, int kV>
struct Block {
  using Sums = Vec<T>[kM][kV];
  int64_t row, column, columns;
  Sums& sum;

  /// Calls body(m, v, address in `to`) for each vector of sums; `to` is a matrix with leading dimension
  /// `stride`.
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

// Epilogues. `block` holds the sums in registers; kWhole says that all its columns are within C.

/// C to a tile.
template <class S>
struct SumEpilogue {
  using T = Accumulator<S>;
  T* c;
  int64_t stride;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void apply(const Block<T, kM, kV>& block) const {
    block.each(c, stride, [&](int m, int v, T* to) HWY_ATTR { hn::StoreU(block.sum[m][v], Wide<T>(), to); });
  }
};

/// See HiddenResult. With relu, one value serves as saved z and as h.
template <class S, bool kRelu>
struct HiddenEpilogue {
  using T = Accumulator<S>;
  HiddenResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void apply(const Block<T, kM, kV>& block) const {
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

/// See GradientResult. Column sums add rows in ascending order within a block, and blocks come in ascending
/// order.
template <class S, bool kRelu>
struct GradientEpilogue {
  using T = Accumulator<S>;
  GradientResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void apply(const Block<T, kM, kV>& block) const {
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

  /// d as bfloat16 twice: as rows, and with rows 2r and 2r + 1 interleaved. Blocks start at even rows.
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

/// See StoredResult.
template <class S>
struct StoreEpilogue {
  using T = Accumulator<S>;
  StoredResult<S> to;

  template <bool kWhole, int kM, int kV>
  HWY_INLINE void apply(const Block<T, kM, kV>& block) const {
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

/// One step: sum[m][v] += a[m] * b[v]. Without bfloat16 instructions, pairs are widened (a bfloat16 is the
/// upper half of a float): needed only where AMX is emulated.
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

/// Walks through a piece of memory to prefetch, in as many steps as the multiplication has.
struct Prefetcher {
  uintptr_t next;     // an integer, since it may run past the piece
  uintptr_t advance;  // bytes per step; 0 if there is nothing to prefetch

  Prefetcher(const Prefetch& prefetch, const void* otherwise, int64_t steps)
      : next(reinterpret_cast<uintptr_t>(prefetch.bytes > 0 ? prefetch.data : otherwise)),
        advance(steps > 0 ? static_cast<uintptr_t>((prefetch.bytes + steps - 1) / steps) : 0) {}
  /// Prefetches the current line. Consecutive steps may prefetch the same one: cheaper than a branch.
  HWY_INLINE void step() {
    fetch(next);
    next += advance;
  }
  /// For AMX, whose steps are long: all lines of a step.
  HWY_INLINE void wide_step() {
    constexpr uintptr_t kLine = 64;
    for (uintptr_t line = next; line < next + advance; line += kLine) fetch(line);
    next += advance;
  }
  static HWY_INLINE void fetch(uintptr_t at) { __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2); }
};

/// One block of C: initial sums, all steps, epilogue.
template <class S, int kM, int kV, bool kWhole, class Epilogue>
HWY_INLINE void block(const Gemm<S>& p, int64_t row, int64_t column, const Operand<S>* HWY_RESTRICT b,
                      Prefetcher& fetch, const Epilogue& epilogue) {
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
  Prefetcher here = fetch;  // a local copy stays in registers
  for (int64_t k = 0; k < p.a.steps; ++k, a += p.a.column, b += p.b.row_stride) {
    multiply_add<S, kM, kV>(a, p.a.row, b, sum);
    here.step();
  }
  fetch = here;
  epilogue.template apply<kWhole>(block);
}

/// All rows of a panel, in blocks of 6, 2 and 1: blocks start at even rows, as epilogues interleave rows in
/// pairs. A row's sums do not depend on its block.
template <class S, int kV, bool kWhole, class Epilogue>
HWY_NOINLINE void panel(const Gemm<S>& p, int64_t column, const Operand<S>* b, Prefetcher& fetch,
                        const Epilogue& epilogue) {
  int64_t row = 0;
  for (; row + kRows <= p.m; row += kRows) block<S, kRows, kV, kWhole>(p, row, column, b, fetch, epilogue);
  for (; row + 2 <= p.m; row += 2) block<S, 2, kV, kWhole>(p, row, column, b, fetch, epilogue);
  if (row < p.m) block<S, 1, kV, kWhole>(p, row, column, b, fetch, epilogue);
}

/// Multiplication in vector registers; gemm_amx-inl.h has the one for AMX.
template <class S>
struct VectorGemm {
  template <class Epilogue>
  static HWY_INLINE void run(const Gemm<S>& p, const Epilogue& epilogue) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(Wide<Accumulator<S>>()));
    const Operand<S>* b = p.b.data;
    Prefetcher fetch(p.prefetch, b,
                     (p.m + kRows - 1) / kRows * ((p.n - 1) / (kVectors * lanes) + 1) * p.a.steps);
    for (int64_t column = 0; column < p.n; column += kVectors * lanes, b += p.b.panel_stride) {
      if (p.n - column >= kVectors * lanes) {
        panel<S, kVectors, true>(p, column, b, fetch, epilogue);
      } else if (p.n - column > lanes) {
        panel<S, kVectors, false>(p, column, b, fetch, epilogue);
      } else {
        panel<S, 1, false>(p, column, b, fetch, epilogue);
      }
    }
  }
  static void sum(const Gemm<S>& p, Accumulator<S>* c, int64_t c_stride) {
    run(p, SumEpilogue<S>{c, c_stride});
  }
};

// relu, the usual activation, is a template parameter of its epilogues: the others switch per vector.
template <class S, class Method>
void hidden(const Gemm<S>& p, const HiddenResult<S>& result) {
  if (result.activation == Activation::relu) {
    Method::run(p, HiddenEpilogue<S, true>{result});
  } else {
    Method::run(p, HiddenEpilogue<S, false>{result});
  }
  if (result.stream_z) hwy::FlushStream();
}
template <class S, class Method>
void gradient(const Gemm<S>& p, const GradientResult<S>& result) {
  if (result.activation == Activation::relu) {
    Method::run(p, GradientEpilogue<S, true>{result});
  } else {
    Method::run(p, GradientEpilogue<S, false>{result});
  }
}
template <class S, class Method>
void stored(const Gemm<S>& p, const StoredResult<S>& result) {
  Method::run(p, StoreEpilogue<S>{result});
}

template <class S, class Method = VectorGemm<S>>
const GemmOps<S>* table() {
  static const GemmOps<S> gemm_ops{
      .panel = kVectors * static_cast<int64_t>(hn::Lanes(Wide<Accumulator<S>>())),
      .sum = Method::sum,
      .hidden = hidden<S, Method>,
      .gradient = gradient<S, Method>,
      .stored = stored<S, Method>};
  return &gemm_ops;
}
