// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/upload.h>

namespace meshgrad {

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

Tensor CapturedPrediction::run(const Batch& batch) {
  if (work_ == nullptr) {
    batch_ = batch;
    work_ = std::make_unique<CapturedWork>(runtime_, "captured prediction", [this](Runtime& own) {
      Tape tape(own, Tape::Mode::evaluate);
      const Tensor value = forward(model_, tape, batch_.graph).front().value();
      if (!output_.defined())
        output_ = Tensor::empty(runtime_, value.shape(), value.dtype(), Tag::activations, "prediction");
      copy(value, output_, own.stream());
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
