// SPDX-License-Identifier: Apache-2.0
#include "gemm_loops.h"

#include <meshgrad/kernels/cuda/simt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace simt {
namespace {

/// As tensor cores read f32 operands: rounded to 10 bits of fraction, to nearest even.
float rounded_to_tf32(float x) {
  constexpr uint32_t kDropped = 13;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t half = (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1u);
  return std::isfinite(x) ? std::bit_cast<float>((bits + half) >> kDropped << kDropped) : x;
}

/// c = a b, row by row: the rows of b in the inner loop, so that the host's compiler makes vectors of it.
template <class In, class Out>
void multiply_rows(const GemmLoops& s) {
  const GemmOperand &a = s.a, &b = s.b;
  const Out* const bias = static_cast<const Out*>(s.bias);
  Out* const c = static_cast<Out*>(s.c);
  const auto operand = [&](In x) {
    const auto wide_x = static_cast<float>(x);
    return s.tf32 ? rounded_to_tf32(wide_x) : wide_x;
  };
  std::vector<float> wide(static_cast<size_t>(s.k * s.n));
  for (int64_t l = 0; l < s.k; ++l) {
    for (int64_t j = 0; j < s.n; ++j) {
      wide[static_cast<size_t>(l * s.n + j)] =
          operand(static_cast<const In*>(b.data)[l * b.row_step + j * b.column_step]);
    }
  }
  std::vector<float> sums(static_cast<size_t>(s.n));
  for (int64_t i = 0; i < s.m; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t l = 0; l < s.k; ++l) {
      const auto factor = operand(static_cast<const In*>(a.data)[i * a.row_step + l * a.column_step]);
      const float* row = wide.data() + l * s.n;
      for (int64_t j = 0; j < s.n; ++j) sums[static_cast<size_t>(j)] += factor * row[j];
    }
    Out* const to = c + i * s.n;
    for (int64_t j = 0; j < s.n; ++j) {
      float sum = sums[static_cast<size_t>(j)];
      if (bias != nullptr) sum += static_cast<float>(bias[j]);
      if (s.accumulate) sum += static_cast<float>(to[j]);
      to[j] = static_cast<Out>(sum);
    }
  }
}

}  // namespace

void start_gemm(const GemmLoops& what, void* stream) {
  meshgrad::dispatch_gpu_storage(what.in, [&]<class In>() {
    meshgrad::dispatch_gpu_storage(what.out, [&]<class Out>() {
      launch("cuBLASLt (not covered)", 1, 1, 0, stream, [what] { multiply_rows<In, Out>(what); });
    });
  });
}

}  // namespace simt
