// SPDX-License-Identifier: Apache-2.0
// The loss on the validation split while a model trains.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/run/sampler.h>
#include <meshgrad/train/task/mesh_parts.h>

#include <functional>
#include <optional>

namespace meshgrad {

/// Mean over loss terms of the squared normalised error, without noise and unrolling; the same samples every
/// time, assigned to the ranks in turn and added in their order; with `parts`, all ranks compute each sample
/// together. NaN when there is no term. `stop` is asked
/// before each sample: once it is true on any rank, there is no result. With `average` defined (an arena like
/// the parameters'), the model has these weights meanwhile.
std::optional<double> validation_loss(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                      const Tensor& average, Normalizers& normalizers, const Config& config,
                                      const std::function<bool()>& stop, MeshParts* parts = nullptr);

/// The mean of the fields' relative L2 errors over all steps of the rollouts of train.validate_rollouts,
/// which the ranks share. With `average` as validation_loss.
double validation_rollout_error(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                const Tensor& average, const Normalizers& normalizers, const Config& config,
                                MeshParts* parts = nullptr);

}  // namespace meshgrad
