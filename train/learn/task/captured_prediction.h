// SPDX-License-Identifier: Apache-2.0
// CapturedPrediction: a model's predictions on a GPU, captured in a CUDA graph and replayed while batches
// have one layout: the steps of a rollout, predictions on one mesh.
#pragma once
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <memory>
#include <optional>

namespace meshgrad {

/// What a model gives: its first value, and with graph_outputs its second, else undefined.
struct ModelOutput {
  Tensor rows;
  Tensor graphs;
};
ModelOutput run_model(Runtime& runtime, const Model& model, const GraphBatch& batch);

class CapturedPrediction {
 public:
  /// Both outlive it.
  CapturedPrediction(Runtime& runtime, const Model& model) : runtime_(runtime), model_(model) {}

  /// Device memory for the next batch: what the last one had where its layout was the same, else new memory,
  /// for which run() captures anew.
  StoragePtr memory(const BatchLayout& layout);
  /// Queues the prediction of a batch. From the second one in the same memory on a graph is replayed, unless
  /// capturing failed, which is logged once. Returns what the next run overwrites.
  ModelOutput run(const Batch& batch);

 private:
  Runtime& runtime_;
  const Model& model_;
  std::optional<BatchShape> shape_;  // of the batch in memory_
  StoragePtr memory_;
  Batch batch_{};
  ModelOutput output_{};
  std::unique_ptr<CapturedWork> work_;  // of batch_; null before the first run
};

}  // namespace meshgrad
