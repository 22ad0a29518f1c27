// SPDX-License-Identifier: Apache-2.0
// The loss on the validation split while a model trains.
#pragma once
#include <meshgrad/train/run/sampler.h>

namespace meshgrad {

/// Mean over loss terms of the squared normalised error, without noise and unrolling; the same samples every
/// time. NaN when there is no term.
double validation_loss(Runtime& runtime, const Task& task, const Model& model, Normalizers& normalizers,
                       const Config& config);

}  // namespace meshgrad
