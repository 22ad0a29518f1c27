// SPDX-License-Identifier: Apache-2.0
// TileOps<bfloat16>::gemm in the instruction of AVX-512 that multiplies and adds pairs of bfloat16
// (vdpbf16ps), which Highway 1.0 does not know. It sums in f32 and takes subnormal numbers as 0.
#pragma once
#include <meshgrad/kernels/cpu/tile.h>

namespace meshgrad::cpu {

/// The width of panels that pair_gemm reads.
inline constexpr int64_t kPairPanel = 64;

bool cpu_multiplies_pairs();
/// Only where cpu_multiplies_pairs().
void pair_gemm(int64_t m, int64_t n, int64_t steps, const bfloat16* a, int64_t a_row, int64_t a_column,
               PanelMatrix<bfloat16> b, float* c, int64_t c_row, bool accumulate);

}  // namespace meshgrad::cpu
