// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/run/validation.h>

#include <cmath>

namespace meshgrad {

double validation_loss(Runtime& runtime, const MeshGraphNet& model, const FrameFeatures& features,
                       Normalizers& normalizers, const Dataset& dataset, const Config& config) {
  const Sampler sampler(dataset, config.data.valid_split, config.data.predict, 0);
  const int64_t wanted = config.train.validate_samples > 0
                             ? std::min(config.train.validate_samples, sampler.samples())
                             : sampler.samples();
  double sum = 0.0;
  double weight = 0.0;
  for (int64_t i = 0; i < wanted; ++i) {
    const Sample sample = sampler.in_order(i * sampler.samples() / wanted);
    const Batch batch = features.training_batch(runtime, config.precision, config.data.valid_split, {sample},
                                                {}, normalizers, false);
    Tape tape(runtime, Tape::Mode::evaluate);
    const LossSum loss = ops::masked_loss(tape, model.forward(tape, batch), batch.target, batch.mask);
    sum += *to_host(loss.sum.value(), runtime.stream()).data<double>();
    weight += *to_host(loss.weight, runtime.stream()).data<double>();
  }
  return weight > 0.0 ? sum / weight : std::nan("");
}

}  // namespace meshgrad
