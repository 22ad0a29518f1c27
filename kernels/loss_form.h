// SPDX-License-Identifier: Apache-2.0
// What the error of one predicted value costs, and the slope of that cost. Both backends run these functions.
// Huber is continued so that a large delta is the squared error: twice PyTorch's huber_loss.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/step_state.h>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class LossKind : uint8_t {
  squared,  ///< e^2
  huber,    ///< e^2 up to |e| = delta, then delta (2 |e| - delta): its slope stays the same
  absolute  ///< |e|, with the slope 0 at e = 0
};

/// How errors count: sum over i and j of factor row_weights[i] column_weights[j] cost(error[i, j]). Plain
/// squared errors have kernels of their own.
struct LossForm {
  LossKind kind = LossKind::squared;
  double delta = 1.0;   ///< of huber
  double factor = 1.0;  ///< of the whole sum
  Tensor row_weights;   ///< [rows], of accumulator_of(prediction); undefined: 1. Rows of 0 may hold anything
  Tensor column_weights;  ///< [width], likewise

  bool plain() const {
    return kind == LossKind::squared && factor == 1.0 && !row_weights.defined() && !column_weights.defined();
  }
};

// Internal linkage, as in step_state.h.

MESHGRAD_HOST_DEVICE static inline double loss_of(LossKind kind, double delta, double e) {
  const double size = e < 0.0 ? -e : e;
  if (kind == LossKind::absolute) return size;
  if (kind == LossKind::huber && size > delta) return delta * (2.0 * size - delta);
  return e * e;
}

/// The derivative of loss_of by e. NaN stays NaN.
MESHGRAD_HOST_DEVICE static inline double loss_slope(LossKind kind, double delta, double e) {
  if (kind == LossKind::absolute) return e > 0.0 ? 1.0 : e < 0.0 ? -1.0 : e;
  if (kind == LossKind::huber && e > delta) return 2.0 * delta;
  if (kind == LossKind::huber && e < -delta) return -2.0 * delta;
  return 2.0 * e;
}

}  // namespace meshgrad
#pragma GCC visibility pop
