// SPDX-License-Identifier: Apache-2.0
// Errors on the validation split while a model trains.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/task.h>

#include <functional>
#include <optional>
#include <span>

namespace meshgrad {

/// Samples in their order, cut into batches of neighbours that have room in a batch of this shape. One that
/// alone has none is a batch of its own.
std::vector<std::vector<Sample>> batches_within(const BatchShape& room, const Task& task,
                                                std::string_view split, std::span<const Sample> samples);

/// What a validation finds, of the same samples every time.
struct Validation {
  double loss = 0.0;      ///< mean over loss terms of what they cost, without noise and unrolling
  double error = 0.0;     ///< Task::error_of the errors: on meshes an RMSE over the data's own spread
  double baseline = 0.0;  ///< the same of the baseline
};

/// Samples are computed in batches within the largest training batch, which the ranks take in turn; with
/// `parts`, all ranks compute each sample together. Each sample's sums are taken from its own rows, and added
/// in the order of samples: on the CPU the result does not depend on how they are batched, on a GPU a
/// sample's prediction does in its last bits. NaN when there is no term. `stop` is asked before each batch:
/// once it is true on any rank, there is no result. With `average` defined (an arena like the parameters'),
/// the model has these weights meanwhile.
std::optional<Validation> validate_model(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                         const Tensor& average, Normalizers& normalizers,
                                         const Config& config, const std::function<bool()>& stop,
                                         MeshParts* parts = nullptr);

/// The geometric mean of the fields' relative L2 errors: of two models, the ratio of their means weighs every
/// field alike, whatever its scale (Fleming, Wallace 1986, CACM 29(3)). The arithmetic mean would be the
/// error of the one field whose truth is nearly 0. Errors below the rounding of f32 count as that; a field
/// whose truth is 0 everywhere has no relative error and is left out. NaN where an error is not finite, and
/// where no field is left.
double mean_relative_error(std::span<const FieldError> fields);

/// Means over all steps of rollouts.
struct ValidationRollouts {
  double error = 0.0;
  double baseline = 0.0;  ///< that nothing changes
};

/// Of the rollouts of train.validate_rollouts, which the ranks share. With `average` as validate_model.
ValidationRollouts validation_rollouts(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                       const Tensor& average, const Normalizers& normalizers,
                                       const Config& config, MeshParts* parts = nullptr);

}  // namespace meshgrad
