// SPDX-License-Identifier: Apache-2.0
// Replaces cuBLASLt on the simulated device by loops on the host, which are not checked.
#include <meshgrad/kernels/cuda/gemm.h>
#include <meshgrad/kernels/cuda/launch.h>

#include <bit>
#include <cmath>
#include <vector>

namespace meshgrad::cuda {
namespace {

struct Operand {
  const void* data;
  int64_t row_step, column_step;
};

/// As tensor cores read f32 operands: rounded to 10 bits of fraction, to nearest even.
float rounded_to_tf32(float x) {
  constexpr uint32_t kDropped = 13;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t half = (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1u);
  return std::isfinite(x) ? std::bit_cast<float>((bits + half) >> kDropped << kDropped) : x;
}

/// c = a b, row by row: the rows of b in the inner loop, so that the host's compiler makes vectors of it.
template <class In, class Out>
void multiply(const Operand& a, const Operand& b, const Out* bias, Out* c, const GemmSizes& s,
              bool accumulate, bool tf32) {
  const auto operand = [&](In x) {
    const auto wide_x = static_cast<float>(x);
    return tf32 && sizeof(In) == sizeof(float) ? rounded_to_tf32(wide_x) : wide_x;
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
      if (accumulate) sum += static_cast<float>(to[j]);
      to[j] = static_cast<Out>(sum);
    }
  }
}

}  // namespace

void gemm(const Gemm& args, Runtime& runtime, const Stream& stream) {
  if (has_no_products(args) || stream.dry()) return;
  const GemmSizes sizes = sizes_of(args);
  const auto operand = [](const Tensor& matrix, bool transpose) {
    const int64_t width = matrix.width();
    return transpose ? Operand{matrix.raw(), 1, width} : Operand{matrix.raw(), width, 1};
  };
  const Operand a = operand(args.a, args.transpose_a), b = operand(args.b, args.transpose_b);
  const TracedLaunch traced("cuBLASLt", stream);
  dispatch_gpu_storage(args.a.dtype(), [&]<class In>() {
    dispatch_gpu_storage(args.c.dtype(), [&]<class Out>() {
      const Out* bias = args.bias.defined() ? args.bias.data<Out>() : nullptr;
      simt::launch("cuBLASLt (not covered)", 1, 1, 0, stream.native(),
                   [a, b, bias, c = args.c.data<Out>(), sizes, accumulate = args.accumulate,
                    tf32 = runtime.tf32()] { multiply<In, Out>(a, b, bias, c, sizes, accumulate, tf32); });
    });
  });
  gpu::count_launch();
}

}  // namespace meshgrad::cuda
