// SPDX-License-Identifier: Apache-2.0
// The loss scale: gradients of a model stored in f16 are computed of the loss times it, so that small ones
// do not vanish. It falls when a gradient is not finite, and rises after a long time without.
// Source: Micikevicius et al., "Mixed precision training" (2018), section 3.2. With hysteresis = 1, and a
// floor and a cap out of reach, it is the rule of PyTorch's GradScaler.
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
  double growth = 2.0;      ///< times this after `interval` clean windows in a row
  double backoff = 0.5;     ///< times this after a window that is not finite
  int64_t interval = 2000;  ///< counted from the last change or skip
  double floor = 1.0;
  double cap = 16777216.0;
  /// So many windows in a row must be skipped before the scale falls; then it falls with each. One clean
  /// window and the count begins anew, as in Apex: other scalers call hysteresis a count that lasts until the
  /// scale grows, so that scattered overflows add up, although each by itself only says that a batch was bad.
  int64_t hysteresis = 1;
};

// Internal linkage, as in step_state.h.

/// The scale after a window was skipped, the last of `skipped_in_a_row`.
MESHGRAD_HOST_DEVICE static inline double scale_after_skip(const LossScaleRule& rule, double scale,
                                                           int64_t skipped_in_a_row) {
  if (skipped_in_a_row < rule.hysteresis) return scale;
  const double less = scale * rule.backoff;
  return less > rule.floor ? less : rule.floor;
}

/// The scale after a clean window, the last of `clean_steps`, which begin anew where it may grow.
MESHGRAD_HOST_DEVICE static inline double scale_after_clean(const LossScaleRule& rule, double scale,
                                                            int64_t& clean_steps) {
  if (clean_steps < rule.interval) return scale;
  clean_steps = 0;
  const double more = scale * rule.growth;
  return more < rule.cap ? more : rule.cap;
}

}  // namespace meshgrad
#pragma GCC visibility pop
