// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {

namespace {

struct SampleLoss {
  double sum = 0.0;
  bool stopped = false;
};

std::optional<double> loss_of_weights(Runtime& runtime, Ranks& ranks, const Task& trained, const Model& model,
                                      Normalizers& normalizers, const Config& config,
                                      const std::function<bool()>& stop, MeshParts* parts) {
  const Task task = trained.for_validation();
  const std::string& split = config.data.valid_split;
  const Sampler sampler(task, split, 0);
  const int64_t wanted = config.train.validate_samples > 0
                             ? std::min(config.train.validate_samples, sampler.samples())
                             : sampler.samples();
  double sum = 0.0;
  double weight = 0.0;
  const auto sample = [&](int64_t i) {
    return std::vector<Sample>{sampler.in_order(i * sampler.samples() / wanted)};
  };
  for (int64_t i = 0; parts != nullptr && i < wanted; ++i) {
    if (agree(ranks, stop && stop(), "validation")) return std::nullopt;
    const Batch batch = training_batch(task, runtime, config.precision, split, sample(i), {}, normalizers);
    sum += loss_in_parts(runtime, task, model, batch, meshes_of(task.dataset(), split, sample(i)).front(),
                         *parts);
    weight += task.loss_weight(split, sample(i));
  }
  for (int64_t begin = 0; parts == nullptr && begin < wanted; begin += ranks.size()) {
    const int64_t end = std::min<int64_t>(wanted, begin + ranks.size());
    SampleLoss mine{.sum = 0.0, .stopped = stop && stop()};
    if (!mine.stopped && begin + ranks.rank() < end) {
      const Batch batch = training_batch(task, runtime, config.precision, split, sample(begin + ranks.rank()),
                                         {}, normalizers);
      Tape tape(runtime, Tape::Mode::evaluate);
      const Variable loss = task.loss(tape, model, batch, {}).sum;
      mine.sum = *to_host(loss.value(), runtime.stream()).data<double>();
    }
    const std::vector<SampleLoss> losses = all_gather(ranks, mine, "validation");
    if (std::any_of(losses.begin(), losses.end(), [](const SampleLoss& loss) { return loss.stopped; }))
      return std::nullopt;
    for (int64_t i = begin; i < end; ++i) {
      sum += losses[static_cast<size_t>(i - begin)].sum;
      weight += task.loss_weight(split, sample(i));
    }
  }
  return weight > 0.0 ? sum / weight : std::nan("");
}

/// Calls `use` while the model has the weights of `average`, if there is one.
template <class Use>
auto with_weights(const Runtime& runtime, const ParameterSet& parameters, const Tensor& average,
                  const Use& use) {
  if (!average.defined()) return use();
  const Tensor weights = host_tensor(average.shape(), average.dtype());
  copy(parameters.values(), weights, runtime.stream());
  runtime.stream().synchronize();  // 16-bit copies are rounded on the host
  parameters.set(parameters.values(), to_host(average, runtime.stream()), runtime.stream());
  const auto result = use();
  parameters.set(parameters.values(), weights, runtime.stream());
  return result;
}

}  // namespace

std::optional<double> validation_loss(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                      const Tensor& average, Normalizers& normalizers, const Config& config,
                                      const std::function<bool()>& stop, MeshParts* parts) {
  return with_weights(runtime, model.parameters, average, [&] {
    return loss_of_weights(runtime, ranks, task, model, normalizers, config, stop, parts);
  });
}

double mean_relative_error(std::span<const FieldError> fields) {
  double first = std::nan(""), logarithms = 0.0, count = 0.0;
  for (const FieldError& field : fields) {
    if (!std::isfinite(field.rmse)) return std::nan("");
    if (std::isnan(field.relative_l2)) continue;
    constexpr double kRounding = std::numeric_limits<float>::epsilon();
    const double error = std::max(field.relative_l2, kRounding);
    if (count == 0.0) first = error;
    logarithms += std::log(error / first);  // the mean of one is then the same bits
    count += 1.0;
  }
  return first * std::exp(logarithms / count);
}

double validation_rollout_error(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                const Tensor& average, const Normalizers& normalizers, const Config& config,
                                MeshParts* parts) {
  EvaluateOptions options{.split = config.data.valid_split,
                          .stride = std::numeric_limits<int32_t>::max(),  // rollouts are asked for
                          .boundary = config.rollout.boundary,
                          .trajectories = config.train.validate_rollouts};
  if (parts == nullptr) options.ranks = &ranks;  // else all compute each mesh together
  const TrainedModel trained{runtime, task, model, normalizers, config.precision, parts};
  const Evaluation result =
      with_weights(runtime, model.parameters, average, [&] { return evaluate(trained, options); });
  return mean_relative_error(result.dynamics.value().rollouts.back().fields);
}

}  // namespace meshgrad
