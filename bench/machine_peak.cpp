// SPDX-License-Identifier: Apache-2.0
#include "machine_peak.h"

#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/kernels/linear.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "inputs.h"
#include "timing.h"

namespace meshgrad::bench {
namespace {

constexpr int kRepeats = 10;
constexpr int64_t kCopyBytes = int64_t{1} << 30;
constexpr int64_t kHostCopyBytes = int64_t{1} << 28;
constexpr int64_t kQuickBytes = int64_t{1} << 16;
constexpr int64_t kGemm = 8192;
constexpr int64_t kQuickGemm = 64;
constexpr int64_t kDrawnRows = 256;

double best(std::vector<double> ms) { return *std::min_element(ms.begin(), ms.end()); }

/// Zeros would be copied faster than values are: memory and caches of GPUs compress them.
void write_random(const Tensor& bytes, Runtime& runtime) {
  std::vector<uint32_t> drawn(kQuickBytes / sizeof(uint32_t));
  for (size_t i = 0; i < drawn.size(); i += 4) {
    const std::array<uint32_t, 4> four = philox({7}, {static_cast<uint32_t>(i), 0, 0, 0});
    std::copy(four.begin(), four.end(), drawn.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (int64_t begin = 0; begin < bytes.elements(); begin += kQuickBytes) {
    char* const to = static_cast<char*>(bytes.raw()) + begin;
    if (runtime.stream().on_gpu()) {
      gpu::copy(to, drawn.data(), kQuickBytes, runtime.stream().native());
    } else {
      std::memcpy(to, drawn.data(), kQuickBytes);
    }
  }
}

}  // namespace

double copy_peak(Runtime& runtime, bool quick) {
  const bool on_gpu = runtime.stream().on_gpu();
  const int64_t bytes = quick ? kQuickBytes : on_gpu ? kCopyBytes : kHostCopyBytes;
  const Tensor from = Tensor::zeros(runtime, Shape{bytes}, DType::u8, Tag::workspace, "copy");
  const Tensor to = Tensor::zeros(runtime, Shape{bytes}, DType::u8, Tag::workspace, "copy");
  write_random(from, runtime);
  Timer timer(runtime, 1);
  const auto copy_once = [&] {
    if (on_gpu) return gpu::copy(to.raw(), from.raw(), bytes, runtime.stream().native());
    const int64_t parts = runtime.threads().threads();
    runtime.threads().parallel_for(parts, [&](int64_t i) {
      const int64_t begin = bytes * i / parts, end = bytes * (i + 1) / parts;
      std::memcpy(static_cast<char*>(to.raw()) + begin, static_cast<const char*>(from.raw()) + begin,
                  static_cast<size_t>(end - begin));
    });
  };
  timer.run(copy_once, 2, false);
  return 2.0 * static_cast<double>(bytes) / best(timer.run(copy_once, quick ? 1 : kRepeats, false)) / 1e6;
}

double gemm_peak(Runtime& runtime, bool quick) {
  const int64_t n = quick ? kQuickGemm : kGemm;
  // Repeated rows, since drawing 8192^2 values twice takes 10 s of a CPU thread.
  const int64_t drawn = std::min(n, kDrawnRows);
  Case inputs(runtime, {.period = drawn, .copies = n / drawn}, DType::f16, "gemm");
  const Input x = inputs.rows(drawn, n), weight = inputs.rows(drawn, n);
  inputs.randomise();
  const LinearForward args{
      .rows = n, .x = x.tensor, .weight = weight.tensor, .bias = {}, .y = inputs.written({n, n}, DType::f16)};
  const auto run = [&] { kernels::linear_forward(args, runtime, runtime.stream()); };
  Timer timer(runtime, 1);
  timer.run(run, 3, false);
  const Interval ms = median_interval(timer.run(run, quick ? 1 : kRepeats, false));
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / ms.median / 1e6;
}

MachinePeaks measure_machine_peaks(Runtime& runtime, bool quick) {
  const double gflops = runtime.stream().on_gpu() ? gemm_peak(runtime, quick) : fma_peak(runtime.threads());
  return {gflops, copy_peak(runtime, quick)};
}

}  // namespace meshgrad::bench
