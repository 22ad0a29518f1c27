// SPDX-License-Identifier: Apache-2.0
// bfloat16 multiplication by AMX: eight tile registers of up to 16 rows of 64 bytes, and an instruction that
// adds the product of two of them to a third (Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 1, chapter 18). Included after gemm-inl.h. AmxUnit is the hardware's, or the tests' emulation.
//
// Registers of a block of 32 x 32 sums (0 to 3 are 16 x 16 floats each; 16 pairs of A and B are one step):
//
//                  6: B, columns 0-15    7: B, columns 16-31
//   4: A, rows 0-15        0                     1
//   5: A, rows 16-31       2                     3

inline constexpr int64_t kAmxRows = 16;     // of a register
inline constexpr int64_t kAmxColumns = 16;  // sums in a row, or pairs of B
inline constexpr int64_t kAmxSteps = 16;    // pairs in a row of A

/// The configuration that ldtilecfg reads: rows and bytes per row of each register, for blocks of `sum_rows`
/// rows and `steps` pairs.
struct alignas(64) AmxShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};

  AmxShape(int64_t sum_rows, int64_t steps) {
    rows[0] = rows[1] = rows[4] = static_cast<uint8_t>(std::min(sum_rows, kAmxRows));
    // Configuring a register with no rows faults, so an unused one gets a row.
    rows[2] = rows[3] = rows[5] = static_cast<uint8_t>(std::max<int64_t>(sum_rows - kAmxRows, 1));
    row_bytes[4] = row_bytes[5] = static_cast<uint16_t>(4 * steps);
    rows[6] = rows[7] = static_cast<uint8_t>(steps);
  }
};

#if MESHGRAD_PAIRS
/// The hardware's. Strides are in bytes.
struct AmxUnit {
  static void configure(const AmxShape& shape) { asm volatile("ldtilecfg %0" ::"m"(shape)); }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int kTo>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTo));
  }
  template <int kTo>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTo) : "memory");
  }
  template <int kFrom>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kFrom) : "memory");
  }
  template <int kSum, int kA, int kB>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};
#else
/// Emulation, for tests on machines without AMX: even and odd terms are summed apart, as the hardware does.
struct AmxUnit {
  struct Register {
    size_t rows, row_bytes;
    alignas(64) std::array<std::array<uint32_t, 16>, 16> words;
  };
  static std::array<Register, 8>& registers() {
    static thread_local std::array<Register, 8> all;
    return all;
  }
  static void configure(const AmxShape& shape) {
    for (size_t i = 0; i < 8; ++i) {
      registers()[i] = {};
      registers()[i].rows = shape.rows[i];
      registers()[i].row_bytes = shape.row_bytes[i];
    }
  }
  static void release() {}
  template <int kTo>
  static void zero() {
    registers()[kTo].words = {};
  }
  template <int kTo>
  static void load(const void* from, int64_t stride) {
    Register& to = registers()[kTo];
    for (size_t i = 0; i < to.rows; ++i)
      std::memcpy(&to.words[i], static_cast<const char*>(from) + static_cast<int64_t>(i) * stride,
                  to.row_bytes);
  }
  template <int kFrom>
  static void store(void* to, int64_t stride) {
    const Register& from = registers()[kFrom];
    for (size_t i = 0; i < from.rows; ++i)
      std::memcpy(static_cast<char*>(to) + static_cast<int64_t>(i) * stride, &from.words[i], from.row_bytes);
  }
  template <int kSum, int kA, int kB>
  static void multiply_add() {
    const auto lower = [](uint32_t pair) { return std::bit_cast<float>(pair << 16); };
    const auto upper = [](uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
    const Register &a = registers()[kA], &b = registers()[kB];
    for (size_t m = 0; m < registers()[kSum].rows; ++m) {
      for (size_t n = 0; n < 16; ++n) {
        uint32_t& word = registers()[kSum].words[m][n];
        float even = 0.0f, odd = 0.0f;
        for (size_t k = 0; k < b.rows; ++k) {
          even += lower(a.words[m][k]) * lower(b.words[k][n]);
          odd += upper(a.words[m][k]) * upper(b.words[k][n]);
        }
        word = std::bit_cast<uint32_t>(std::bit_cast<float>(word) + (even + odd));
      }
    }
  }
};
#endif

/// A block's operands: rows of A, and B from the block's first column on.
struct AmxFactors {
  const bfloat16* a;
  int64_t a_row;
  const bfloat16* b;
  int64_t b_row;
  int64_t steps;
};

/// Adds all steps of a block to registers 0 to 3. kLower: it has more than 16 rows.
template <bool kLower>
HWY_INLINE void amx_multiply(const AmxFactors& f, Prefetcher& fetch) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(bfloat16));
  const bfloat16 *a = f.a, *b = f.b;
  for (int64_t k = 0; k < f.steps; k += kAmxSteps, a += 2 * kAmxSteps, b += kAmxSteps * f.b_row) {
    AmxUnit::load<4>(a, f.a_row * kBytes);
    AmxUnit::load<6>(b, f.b_row * kBytes);
    AmxUnit::multiply_add<0, 4, 6>();
    AmxUnit::load<7>(b + 2 * kAmxColumns, f.b_row * kBytes);
    AmxUnit::multiply_add<1, 4, 7>();
    if constexpr (kLower) {
      AmxUnit::load<5>(a + kAmxRows * f.a_row, f.a_row * kBytes);
      AmxUnit::multiply_add<2, 5, 6>();
      AmxUnit::multiply_add<3, 5, 7>();
    }
    fetch.wide_step();
  }
}

/// Loads the initial sums into registers 0 to 3, and stores them.
template <bool kLower>
HWY_INLINE void amx_start(const float* from, int64_t stride) {
  if (from == nullptr) {
    AmxUnit::zero<0>();
    AmxUnit::zero<1>();
    if constexpr (kLower) {
      AmxUnit::zero<2>();
      AmxUnit::zero<3>();
    }
    return;
  }
  const auto bytes = stride * static_cast<int64_t>(sizeof(float));
  AmxUnit::load<0>(from, bytes);
  AmxUnit::load<1>(from + kAmxColumns, bytes);
  if constexpr (kLower) {
    AmxUnit::load<2>(from + kAmxRows * stride, bytes);
    AmxUnit::load<3>(from + kAmxRows * stride + kAmxColumns, bytes);
  }
}
template <bool kLower>
HWY_INLINE void amx_end(float* to, int64_t stride) {
  const auto bytes = stride * static_cast<int64_t>(sizeof(float));
  AmxUnit::store<0>(to, bytes);
  AmxUnit::store<1>(to + kAmxColumns, bytes);
  if constexpr (kLower) {
    AmxUnit::store<2>(to + kAmxRows * stride, bytes);
    AmxUnit::store<3>(to + kAmxRows * stride + kAmxColumns, bytes);
  }
}

/// One block: initial sums, all steps, to memory.
template <bool kLower>
HWY_INLINE void amx_sums(const AmxFactors& factors, Prefetcher& fetch, InitialSums<float> start, float* to,
                         int64_t stride) {
  amx_start<kLower>(start.rows, start.stride);
  amx_multiply<kLower>(factors, fetch);
  amx_end<kLower>(to, stride);
}
HWY_INLINE void amx_sums(int64_t rows, const AmxFactors& factors, Prefetcher& fetch, InitialSums<float> start,
                         float* to, int64_t stride) {
  if (rows > kAmxRows) {
    amx_sums<true>(factors, fetch, start, to, stride);
  } else {
    amx_sums<false>(factors, fetch, start, to, stride);
  }
}

constexpr int64_t kAmxBlockRows = 2 * kAmxRows;
constexpr int64_t kAmxBlockColumns = 2 * kAmxColumns;

/// Calls body(first row, rows) for blocks of up to 32 rows, with the registers configured for them.
template <class Body>
HWY_INLINE void amx_rows(int64_t m, int64_t steps, const Body& body) {
  AmxUnit::configure(AmxShape(kAmxBlockRows, steps));
  for (int64_t row = 0; row < m; row += kAmxBlockRows) {
    const int64_t rows = std::min(kAmxBlockRows, m - row);
    if (rows % kAmxRows != 0) AmxUnit::configure(AmxShape(rows, steps));
    body(row, rows);
  }
  AmxUnit::release();
}

/// B from a column on. A panel of B is 64 columns, two blocks.
HWY_INLINE const bfloat16* amx_b(const Gemm<bfloat16>& p, int64_t column) {
  const int64_t panel = kVectors * static_cast<int64_t>(hn::Lanes(Wide<float>()));
  return p.b.data + column / panel * p.b.panel_stride + column % panel * 2;
}

/// Divides the memory to prefetch among all steps of all blocks.
inline Prefetcher amx_fetch(const Gemm<bfloat16>& p) {
  const auto pieces = [](int64_t all, int64_t piece) { return (all + piece - 1) / piece; };
  return {p.prefetch, p.b.data,
          pieces(p.m, kAmxBlockRows) * pieces(p.n, kAmxBlockColumns) * pieces(p.a.steps, kAmxSteps)};
}

HWY_INLINE InitialSums<float> amx_start_of(const Gemm<bfloat16>& p, int64_t row, int64_t column) {
  if (p.start.rows == nullptr) return {};
  return {p.start.rows + row * p.start.stride + column, p.start.stride};
}

/// Loads kM rows of a block's sums from memory into vectors, for an epilogue: AMX registers cannot be read
/// otherwise.
template <int kM, bool kWhole, class Epilogue>
HWY_INLINE void amx_epilogue_rows(const Gemm<bfloat16>& p, int64_t row, int64_t column, const float* sums,
                                  const Epilogue& epilogue) {
  constexpr int kV = kAmxBlockColumns / 16;
  const Wide<float> d;
  Vec<float> sum[kM][kV];
  MESHGRAD_UNROLL
  for (int m = 0; m < kM; ++m) {
    MESHGRAD_UNROLL
    for (int v = 0; v < kV; ++v)
      sum[m][v] = hn::Load(d, sums + m * kAmxBlockColumns + v * static_cast<int64_t>(hn::Lanes(d)));
  }
  epilogue.template apply<kWhole>(Block<float, kM, kV>{row, column, p.n, sum});
}

template <bool kWhole, class Epilogue>
HWY_NOINLINE void amx_epilogue_block(const Gemm<bfloat16>& p, int64_t row, int64_t rows, int64_t column,
                                     const float* sums, const Epilogue& epilogue) {
  constexpr int kTogether = 8;
  int64_t m = 0;
  for (; m + kTogether <= rows; m += kTogether)
    amx_epilogue_rows<kTogether, kWhole>(p, row + m, column, sums + m * kAmxBlockColumns, epilogue);
  for (; m + 2 <= rows; m += 2)
    amx_epilogue_rows<2, kWhole>(p, row + m, column, sums + m * kAmxBlockColumns, epilogue);
  if (m < rows) amx_epilogue_rows<1, kWhole>(p, row + m, column, sums + m * kAmxBlockColumns, epilogue);
}

template <class Epilogue>
HWY_INLINE void amx_block(const Gemm<bfloat16>& p, int64_t row, int64_t rows, int64_t column,
                          Prefetcher& fetch, const Epilogue& epilogue) {
  alignas(64) float sums[kAmxBlockRows * kAmxBlockColumns];
  amx_sums(rows, {p.a.data + row * p.a.row, p.a.row, amx_b(p, column), p.b.row_stride, p.a.steps}, fetch,
           amx_start_of(p, row, column), sums, kAmxBlockColumns);
  if (p.n - column >= kAmxBlockColumns) {
    amx_epilogue_block<true>(p, row, rows, column, sums, epilogue);
  } else {
    amx_epilogue_block<false>(p, row, rows, column, sums, epilogue);
  }
}

/// Whether AMX computes this multiplication: only if steps fill registers. This must not depend on m: a row
/// must get the same bits in whichever tile it is computed.
inline bool amx_takes(const Gemm<bfloat16>& p) {
  return p.a.column == 2 && p.a.steps > 0 && p.a.steps % kAmxSteps == 0;
}

/// Transposes 16 x 16 pairs (32-bit words).
HWY_INLINE void amx_turn(const bfloat16* from, int64_t from_row, bfloat16* to, int64_t to_row) {
#if MESHGRAD_PAIRS
  // A vector holds 16 bytes of rows r, r + 4, r + 8 and r + 12; then 4 x 4 words are transposed in each
  // quarter.
  using Words = uint32_t __attribute__((vector_size(64)));
  using Quarter = uint32_t __attribute__((vector_size(16)));
  const auto quarter = [&](int64_t row, int64_t column) HWY_ATTR {
    Quarter q;
    std::memcpy(&q, from + row * from_row + 2 * column, sizeof(q));
    return q;
  };
  for (int64_t column = 0; column < 16; column += 4) {
    Words x[4];
    MESHGRAD_UNROLL
    for (int r = 0; r < 4; ++r) {
      const Quarter parts[4] = {quarter(r, column), quarter(r + 4, column), quarter(r + 8, column),
                                quarter(r + 12, column)};
      x[r] = __builtin_shufflevector(__builtin_shufflevector(parts[0], parts[1], 0, 1, 2, 3, 4, 5, 6, 7),
                                     __builtin_shufflevector(parts[2], parts[3], 0, 1, 2, 3, 4, 5, 6, 7), 0,
                                     1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
    const auto lower = [&](Words a, Words b) HWY_ATTR {
      return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    };
    const auto upper = [&](Words a, Words b) HWY_ATTR {
      return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    };
    const Words left = lower(x[0], x[2]), left_upper = upper(x[0], x[2]);
    const Words right = lower(x[1], x[3]), right_upper = upper(x[1], x[3]);
    const Words turned[4] = {lower(left, right), upper(left, right), lower(left_upper, right_upper),
                             upper(left_upper, right_upper)};
    MESHGRAD_UNROLL
    for (int c = 0; c < 4; ++c) std::memcpy(to + (column + c) * to_row, &turned[c], sizeof(Words));
  }
#else
  for (int64_t m = 0; m < 16; ++m)
    for (int64_t k = 0; k < 16; ++k) std::memcpy(to + m * to_row + 2 * k, from + k * from_row + 2 * m, 4);
#endif
}

/// Weight gradients, whose A is transposed: AMX needs it by rows, so a block of 32 rows is transposed into a
/// buffer first. The steps must fill registers, or be fewer than one holds.
inline void amx_sum_by_columns(const Gemm<bfloat16>& p, float* c, int64_t c_stride) {
  constexpr int64_t kRow = kTileRows<bfloat16>;
  alignas(64) bfloat16 a[kAmxBlockRows * kRow];
  Prefetcher fetch = amx_fetch(p);
  amx_rows(p.m, std::min(kAmxSteps, p.a.steps), [&](int64_t row, int64_t rows) HWY_ATTR {
    for (int64_t m = 0; m < rows; m += kAmxRows)
      for (int64_t k = 0; k < p.a.steps; k += kAmxSteps)
        amx_turn(p.a.data + (row + m) * 2 + k * p.a.column, p.a.column, a + m * kRow + 2 * k, kRow);
    for (int64_t column = 0; column < p.n; column += kAmxBlockColumns) {
      amx_sums(rows, {a, kRow, amx_b(p, column), p.b.row_stride, p.a.steps}, fetch,
               amx_start_of(p, row, column), c + row * c_stride + column, c_stride);
    }
  });
}

/// Multiplication by AMX; falls back to vectors where amx_takes() says no.
struct AmxGemm {
  template <class Epilogue>
  static HWY_INLINE void run(const Gemm<bfloat16>& p, const Epilogue& epilogue) {
    if (!amx_takes(p)) return VectorGemm<bfloat16>::run(p, epilogue);
    Prefetcher fetch = amx_fetch(p);
    amx_rows(p.m, kAmxSteps, [&](int64_t row, int64_t rows) HWY_ATTR {
      for (int64_t column = 0; column < p.n; column += kAmxBlockColumns)
        amx_block(p, row, rows, column, fetch, epilogue);
    });
  }
  static void sum(const Gemm<bfloat16>& p, float* c, int64_t c_stride) {
    // Tiles are readable up to whole registers. The steps that do not fill one come last, with a
    // configuration of their own.
    // Tiles are readable up to whole registers. The steps that do not fill one come last, with a
    // configuration of their own.
    const bool rows_of_a_tile =
        p.a.row == 2 && p.a.column != 2 && p.a.steps > 0 && 2 * p.a.steps <= kTileRows<bfloat16>;
    if (!rows_of_a_tile) return run(p, SumEpilogue<bfloat16>{c, c_stride});
    Gemm<bfloat16> part = p;
    part.a.steps = p.a.steps / kAmxSteps * kAmxSteps;
    if (part.a.steps > 0) {
      amx_sum_by_columns(part, c, c_stride);
      part.a.data += part.a.steps * p.a.column;
      part.b.data += part.a.steps * p.b.row_stride;
      part.start = {c, c_stride};
      part.prefetch = {};
    }
    part.a.steps = p.a.steps - part.a.steps;
    if (part.a.steps > 0) amx_sum_by_columns(part, c, c_stride);
  }
};
