// SPDX-License-Identifier: Apache-2.0
// The CPU's arithmetic peak: multiply-adds on registers, on every thread at once.
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>
#include <chrono>

#include "machine_peak.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SCALAR
#else
#define HWY_COMPILE_ONLY_SCALAR
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <meshgrad/kernels/cpu_dispatch.h>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `rounds` times 12 independent multiply-adds; returns FLOPs done. Enough chains to hide any latency.
double burst(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> chains[12];
  for (int i = 0; i < 12; ++i) chains[i] = hn::Set(d, static_cast<float>(i));
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 12; ++i) chains[i] = hn::MulAdd(chains[i], factor, term);
  }
  auto sum = chains[0];
  for (int i = 1; i < 12; ++i) sum = hn::Add(sum, chains[i]);
  *sink += hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(rounds) * 12.0 * 2.0 * static_cast<double>(hn::Lanes(d));
}

}  // namespace meshgrad::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::bench {
HWY_EXPORT(burst);

double fma_peak(ThreadPool& pool) {
  cpu::cap_dispatch(cpu::isa());
  double best = 0.0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::vector<double> flops(static_cast<size_t>(pool.threads()));
    std::vector<float> sinks(flops.size() * 16);
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(pool.threads(), [&](int64_t i) {
      flops[static_cast<size_t>(i)] =
          HWY_DYNAMIC_DISPATCH(burst)(1500000, &sinks[static_cast<size_t>(i) * 16]);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double total = 0.0;
    for (const double f : flops) total += f;
    best = std::max(best, total / seconds / 1e9);
  }
  return best;
}

}  // namespace meshgrad::bench
#endif
