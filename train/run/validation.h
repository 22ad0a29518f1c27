// SPDX-License-Identifier: Apache-2.0
// The loss on the validation split while a model trains.
#pragma once
#include <meshgrad/train/run/sampler.h>

#include <functional>
#include <optional>

namespace meshgrad {

/// Mean over loss terms of the squared normalised error, without noise and unrolling; the same samples every
/// time. NaN when there is no term. `stop` is asked before each sample: once it is true, there is no result.
std::optional<double> validation_loss(Runtime& runtime, const Task& task, const Model& model,
                                      Normalizers& normalizers, const Config& config,
                                      const std::function<bool()>& stop);

}  // namespace meshgrad
