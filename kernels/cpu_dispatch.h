// SPDX-License-Identifier: Apache-2.0
// Highway's choice among the instruction sets that a source was compiled for.
#pragma once
#include <hwy/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

namespace meshgrad::cpu {

/// From now on the code in this library or program chooses `best` at most. A static Highway is a copy in each
/// of them.
inline void cap_dispatch([[maybe_unused]] Isa best) {
#if defined(__x86_64__)
  // The better a target, the lower its bit.
  if (best >= Isa::avx512) hwy::DisableTargets(HWY_AVX3 - 1);
  if (best == Isa::avx2) hwy::DisableTargets(HWY_AVX2 - 1);
  if (best == Isa::scalar) hwy::DisableTargets(HWY_SCALAR - 1);
#endif
}

}  // namespace meshgrad::cpu
