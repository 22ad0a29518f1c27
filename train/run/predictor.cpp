// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/run/make_model.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/predictor.h>

namespace meshgrad {

Predictor::Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path)
    : runtime_(runtime),
      config_(checkpoint_config(checkpoint)),
      task_(make_task(config_, Dataset::open(data_path.empty() ? config_.data.path : data_path))),
      model_(make_model(config_.model, task_.sizes())),
      normalizers_(task_.online_normalizers()) {
  check_precision(runtime.device(), config_.precision);
  model_.parameters.allocate(runtime, config_.precision, 0);
  state_ = load_checkpoint(checkpoint, runtime.stream(), model_.parameters, nullptr, normalizers_);
}

Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options) {
  const TrainedModel trained = predictor.trained();
  EvaluateOptions resolved = options;
  if (!resolved.boundary) resolved.boundary = predictor.config().rollout.boundary;
  return with_host_memory_named(predictor.dataset().path(), !trained.runtime.stream().on_gpu(), "to evaluate",
                                [&] { return evaluate(trained, resolved); });
}

}  // namespace meshgrad
