// SPDX-License-Identifier: Apache-2.0
// The machine's measured peaks, taken in the same run as the rows that are compared with them.
#pragma once
#include <meshgrad/engine/runtime.h>

namespace meshgrad::bench {

/// FMA throughput of `threads` threads in f32, GFLOP/s, best of a few short bursts.
double fma_peak(ThreadPool& pool);

/// Bandwidth of a copy far larger than the caches, in GB/s of bytes read and written, best of a few: the
/// driver's copy on a GPU, memcpy on all threads on the CPU.
double copy_peak(Runtime& runtime, bool quick);

/// GFLOP/s of an 8192^3 GEMM in f16 by the vendor's library (through linear_forward), median of a few on
/// random values. GPU only.
double gemm_peak(Runtime& runtime, bool quick);

struct MachinePeaks {
  double gflops = 0.0;  ///< GPU: gemm_peak. CPU: fma_peak
  double gbytes = 0.0;  ///< copy_peak
};
MachinePeaks measure_machine_peaks(Runtime& runtime, bool quick);

}  // namespace meshgrad::bench
