// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling: the loss of a model stored in f16 is multiplied by the scale before the backward
// pass, so that small gradients do not underflow. The scale falls when a gradient overflows, and grows after
// many steps without an overflow. Source: Micikevicius et al., "Mixed precision training" (2018),
// section 3.2. With hysteresis = 1 and neither floor nor cap reached, this is the rule of PyTorch's
// GradScaler.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define MESHGRAD_HOST_DEVICE __host__ __device__
#else
#define MESHGRAD_HOST_DEVICE
#endif

#pragma GCC visibility push(default)
namespace meshgrad {

struct LossScaleRule {
  double initial = 65536.0;
  double growth = 2.0;      ///< factor after `interval` consecutive finite steps
  double backoff = 0.5;     ///< factor after a step whose gradients are not finite
  int64_t interval = 2000;  ///< in steps, counted from the last change or skip
  double floor = 1.0;
  double cap = 16777216.0;
  /// The scale falls from the `hysteresis`-th consecutive skip on. A finite step resets the count, as in
  /// Apex. Other scalers reset it only when the scale grows; there scattered overflows add up, although each
  /// by itself only says that one batch was bad.
  int64_t hysteresis = 1;
};

// Internal linkage, as in step_state.h.

/// The scale after a skipped step, the last of `consecutive_skips` consecutive ones.
MESHGRAD_HOST_DEVICE static inline double scale_after_skip(const LossScaleRule& rule, double scale,
                                                           int64_t consecutive_skips) {
  if (consecutive_skips < rule.hysteresis) return scale;
  const double less = scale * rule.backoff;
  return less > rule.floor ? less : rule.floor;
}

/// The scale after a finite step, the last of `clean_steps`; resets that count when the scale may grow.
MESHGRAD_HOST_DEVICE static inline double scale_after_clean(const LossScaleRule& rule, double scale,
                                                            int64_t& clean_steps) {
  if (clean_steps < rule.interval) return scale;
  clean_steps = 0;
  const double more = scale * rule.growth;
  return more < rule.cap ? more : rule.cap;
}

}  // namespace meshgrad
#pragma GCC visibility pop
