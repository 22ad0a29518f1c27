// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/pair_gemm.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace meshgrad::cpu {
namespace {

#define MESHGRAD_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int64_t kLanes = 16;
constexpr int kRows = 6;  // by 4 vectors: 24 of the 32 registers hold sums

template <int kM, int kV>
MESHGRAD_PAIRS inline __attribute__((always_inline)) void micro_kernel(
    int64_t steps, const bfloat16* __restrict a, int64_t a_row, int64_t a_column,
    const bfloat16* __restrict b, int64_t b_row, float* __restrict c, int64_t c_row, bool accumulate) {
  const __mmask16 mask = accumulate ? 0xffff : 0;
  __m512 sum[kM][kV];
  // Unrolled early, or GCC carries the sums to and from the loop through the stack.
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) sum[m][v] = _mm512_maskz_loadu_ps(mask, c + m * c_row + v * kLanes);
  }
  for (int64_t k = 0; k < steps; ++k, a += a_column, b += b_row) {
    __m512i row[kV];
    for (int v = 0; v < kV; ++v) row[v] = _mm512_loadu_si512(b + 2 * v * kLanes);
    for (int m = 0; m < kM; ++m) {
      int32_t pair;
      std::memcpy(&pair, a + m * a_row, sizeof(pair));
      const auto factor = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kV; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], factor, (__m512bh)row[v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) _mm512_storeu_ps(c + m * c_row + v * kLanes, sum[m][v]);
  }
}

template <int kV>
MESHGRAD_PAIRS void panel_product(int64_t m_count, int64_t steps, const bfloat16* a, int64_t a_row,
                                  int64_t a_column, const bfloat16* b, int64_t b_row, float* c, int64_t c_row,
                                  bool accumulate) {
  int64_t m = 0;
  const auto rows = [&]<int kM>() MESHGRAD_PAIRS {
    micro_kernel<kM, kV>(steps, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row, accumulate);
    m += kM;
  };
  while (m + kRows <= m_count) rows.template operator()<kRows>();
  if (m + 4 <= m_count) rows.template operator()<4>();
  if (m + 2 <= m_count) rows.template operator()<2>();
  if (m < m_count) rows.template operator()<1>();
}

}  // namespace

bool cpu_multiplies_pairs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

void pair_gemm(int64_t m, int64_t n, int64_t steps, const bfloat16* a, int64_t a_row, int64_t a_column,
               PanelMatrix<bfloat16> b, float* c, int64_t c_row, bool accumulate) {
  for (int64_t column = 0; column < n; column += kPairPanel) {
    const bfloat16* panel = b.data + column / kPairPanel * b.panel_stride;
    const int64_t vectors = std::min<int64_t>((n - column + kLanes - 1) / kLanes, kPairPanel / kLanes);
    const auto product = [&]<int kV>() {
      panel_product<kV>(m, steps, a, a_row, a_column, panel, b.row_stride, c + column, c_row, accumulate);
    };
    if (vectors == 4) product.template operator()<4>();
    if (vectors == 3) product.template operator()<3>();
    if (vectors == 2) product.template operator()<2>();
    if (vectors == 1) product.template operator()<1>();
  }
}

}  // namespace meshgrad::cpu

#else

namespace meshgrad::cpu {

bool cpu_multiplies_pairs() { return false; }
void pair_gemm(int64_t, int64_t, int64_t, const bfloat16*, int64_t, int64_t, PanelMatrix<bfloat16>, float*,
               int64_t, bool) {}

}  // namespace meshgrad::cpu

#endif
