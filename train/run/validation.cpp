// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/run/validation.h>

#include <cmath>

namespace meshgrad {

std::optional<double> validation_loss(Runtime& runtime, const Task& trained, const Model& model,
                                      Normalizers& normalizers, const Config& config,
                                      const std::function<bool()>& stop) {
  const Task task = trained.for_validation();
  const std::string& split = config.data.valid_split;
  const Sampler sampler(task, split, 0);
  const int64_t wanted = config.train.validate_samples > 0
                             ? std::min(config.train.validate_samples, sampler.samples())
                             : sampler.samples();
  double sum = 0.0;
  double weight = 0.0;
  for (int64_t i = 0; i < wanted; ++i) {
    if (stop && stop()) return std::nullopt;
    const std::vector<Sample> sample{sampler.in_order(i * sampler.samples() / wanted)};
    const Batch batch = training_batch(task, runtime, config.precision, split, sample, {}, normalizers);
    Tape tape(runtime, Tape::Mode::evaluate);
    const Variable loss = task.loss(tape, model, batch, {});
    sum += *to_host(loss.value(), runtime.stream()).data<double>();
    weight += static_cast<double>(task.loss_weight(split, sample));
  }
  return weight > 0.0 ? sum / weight : std::nan("");
}

}  // namespace meshgrad
