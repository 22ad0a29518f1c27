// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, measured in the same run as what is held against it.
#pragma once
#include <meshgrad/engine/runtime.h>

namespace meshgrad::bench {

/// FMA throughput of `threads` threads in f32, GFLOP/s, best of a few short bursts.
double fma_peak(ThreadPool& pool);

/// A copy of far more than the caches hold, GB/s of bytes read and written, best of a few: the driver's own
/// copy on a GPU, every thread's memcpy on the CPU.
double copy_peak(Runtime& runtime, bool quick);

/// The f16 matrix product 8192^3 of the vendor's library (linear_forward, which hands it over), GFLOP/s,
/// median of a few on random values. GPU only.
double gemm_peak(Runtime& runtime, bool quick);

struct Yardsticks {
  double gflops = 0.0;  ///< GPU: gemm_peak. CPU: fma_peak
  double gbytes = 0.0;  ///< copy_peak
};
Yardsticks measure_yardsticks(Runtime& runtime, bool quick);

}  // namespace meshgrad::bench
