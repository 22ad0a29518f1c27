// SPDX-License-Identifier: Apache-2.0
// Errors on the validation split while a model trains.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/task.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
/// sample's prediction does in its last bits. NaN when there is no term. `stop` is asked before each batch,
/// and within one on the CPU that takes longer than `long_batch`: once it is true on any rank, there is no
/// result. With `average` defined (an arena like the parameters'), the model has these weights meanwhile.
std::optional<Validation> validate_model(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                         const Tensor& average, Normalizers& normalizers,
                                         const Config& config, const std::function<bool()>& stop,
                                         std::chrono::milliseconds long_batch, MeshParts* parts = nullptr);

/// The loss of each sample of a split, as validate_model adds them up, over the weight of its terms; 0 of one
/// without a term. They are computed `chunk` by chunk, `done` gets how many are. Every rank gets all of them.
std::optional<std::vector<double>> sample_losses(
    Runtime& runtime, Ranks& ranks, const Task& task, const Model& model, Normalizers& normalizers,
    const Config& config, const std::string& split, int64_t chunk, const std::function<void(int64_t)>& done,
    const std::function<bool()>& stop, std::chrono::milliseconds long_batch, MeshParts* parts = nullptr);

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
  int64_t steps = 0;      ///< of the longest
  std::vector<FieldError> fields;
};

/// Of the rollouts of train.validate_rollouts, which the ranks share, over `steps` steps at most (0: all).
/// With `average` as validate_model; `stop` is asked before each step: once it is true, there is no result.
std::optional<ValidationRollouts> validation_rollouts(Runtime& runtime, Ranks& ranks, const Task& task,
                                                      const Model& model, const Tensor& average,
                                                      const Normalizers& normalizers, const Config& config,
                                                      int64_t steps, const std::function<bool()>& stop,
                                                      MeshParts* parts = nullptr);

/// The value of a metric over the whole validation split, as Task::evaluate has it, of a task without time.
struct ValidationMetric {
  double value = 0.0;
  std::string why_nan;  ///< what the evaluation notes of a value that is NaN
};
/// With `average` and `stop` as above.
std::optional<ValidationMetric> validation_metric(Runtime& runtime, Ranks& ranks, const Task& task,
                                                  const Model& model, const Tensor& average,
                                                  const Normalizers& normalizers, const Config& config,
                                                  const std::string& key, const std::function<bool()>& stop,
                                                  MeshParts* parts = nullptr);

/// How often is validated, and how far, so that it takes at most train.validate_share of a run.
struct ValidationPlan {
  int64_t interval = 0;       ///< in units of train.validate_every
  int64_t rollout_steps = 0;  ///< at most; 0: all
  bool operator==(const ValidationPlan&) const = default;
};

/// Seconds that it follows from, as measured.
struct ValidationTimes {
  double training = 0.0;      ///< between two validations
  double samples = 0.0;       ///< of a validation's samples
  double rollout_step = 0.0;  ///< of a step of a rollout
};

/// The longest rollouts that leave validations as frequent as train.validate_every: whole ones, or cut to a
/// power of 2, so that runs compare; but at least kFewestRolloutSteps, and then less frequent validations.
/// `lengths`: of the rollouts, in steps.
ValidationPlan plan_validation(const ValidationTimes& seconds, std::span<const int64_t> lengths,
                               double share);
constexpr int64_t kFewestRolloutSteps = 8;

/// Lengths of the rollouts of train.validate_rollouts.
std::vector<int64_t> validated_lengths(const Task& task, const Config& config);

}  // namespace meshgrad
