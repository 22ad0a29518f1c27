// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/upload.h>

namespace meshgrad {

ModelOutput run_model(Runtime& runtime, const Model& model, const GraphBatch& batch) {
  Tape tape(runtime, Tape::Mode::evaluate);
  const Values values = forward(model, tape, batch);
  return {values.front().value(), values.size() > 1 && values[1] ? values[1].value() : Tensor()};
}

StoragePtr CapturedPrediction::memory(const BatchLayout& layout) {
  if (shape_ == layout.shape()) return memory_;
  work_ = nullptr;
  batch_ = {};
  output_ = {};
  memory_ = nullptr;
  memory_ = device_batch_memory(runtime_, layout.bytes());
  shape_ = layout.shape();
  return memory_;
}

ModelOutput CapturedPrediction::run(const Batch& batch) {
  if (work_ == nullptr) {
    batch_ = batch;
    work_ = std::make_unique<CapturedWork>(runtime_, "captured prediction", [this](Runtime& own) {
      const ModelOutput values = run_model(own, model_, batch_.graph);
      const auto keep = [&](const Tensor& value, Tensor& kept) {
        if (!value.defined()) return;
        if (!kept.defined())
          kept = Tensor::empty(runtime_, value.shape(), value.dtype(), Tag::activations, "prediction");
        copy(value, kept, own.stream());
      };
      keep(values.rows, output_.rows);
      keep(values.graphs, output_.graphs);
    });
  }
  work_->run();
  if (!work_->refusal().empty()) {
    runtime_.log_once(LogLevel::info,
                      "a prediction cannot be captured, its kernels run one by one: " + work_->refusal());
  }
  return output_;
}

}  // namespace meshgrad
