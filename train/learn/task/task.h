// SPDX-License-Identifier: Apache-2.0
// Task: what a learning problem is. It says what a sample is, how samples become a batch, what is compared
// and what is reported. The trainer, steps, plans and checkpoints know a Task and a Model, and the members of
// neither. A closed set: a new task is a class with these members and one more name below.
#pragma once
#include <meshgrad/train/learn/task/steady_field.h>

#include <utility>
#include <variant>

namespace meshgrad {

class Task {
  using Kind = std::variant<MeshDynamics, SteadyField>;
  template <class Body>
  decltype(auto) visit(Body&& body) const {
    return std::visit(std::forward<Body>(body), kind_);
  }

 public:
  explicit Task(Kind kind) : kind_(std::move(kind)) {}

  /// The task as one of its kinds; null when it is another.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&kind_);
  }
  const MeshInputs& inputs() const {
    return visit([](const auto& task) -> const MeshInputs& { return task.inputs(); });
  }
  /// What the model takes and gives.
  const ModelSizes& sizes() const { return inputs().sizes(); }
  const Dataset& dataset() const { return inputs().dataset(); }

  /// Frames of a trajectory of `frames` at which samples start.
  FrameRange sample_frames(int64_t frames) const {
    return visit([&](const auto& task) { return task.sample_frames(frames); });
  }
  int64_t least_frames() const {
    return visit([](const auto& task) { return task.least_frames(); });
  }
  /// Normalisers from the data set's statistics, or empty ones that learn from batches.
  Normalizers dataset_normalizers(const NoiseOptions& noise) const {
    return visit([&](const auto& task) { return task.dataset_normalizers(noise); });
  }
  Normalizers online_normalizers() const { return inputs().online_normalizers(); }

  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const {
    return inputs().shape(split, samples);
  }
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
    return visit([&](const auto& task) { return task.layout(shape, dtype, kind); });
  }
  /// Writes a training batch on the host. With `learn`, the normalisers learn from it before they are
  /// applied. Throws DataError when pages of the data were lost.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const {
    visit([&](const auto& task) { task.write(batch, split, samples, noise, normalizers, learn, scratch); });
    for (const Sample& sample : samples) dataset().trajectory(split, sample.trajectory);
  }
  /// Weight of the loss of these samples, known before a forward pass.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
    return visit([&](const auto& task) { return task.loss_weight(split, samples); });
  }
  /// The loss as a sum over its terms; first the device finds the world edges of a batch that asks for them.
  /// All arguments but the tape must outlive the tape's entries.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const {
    const Tensor missing = inputs().find_world_edges(tape.runtime(), batch);
    LossTerms terms = visit([&](const auto& task) { return task.loss(tape, model, batch, recomputation); });
    terms.missing = missing;
    return terms;
  }
  /// The same as a function that refers to this task, which must outlive it.
  BatchLoss batch_loss() const {
    return [this](Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation) {
      return loss(tape, model, batch, recomputation);
    };
  }
  /// The task's own tensors of a batch, for the search for non-finite values.
  std::vector<GivenTensor> given(const Batch& batch) const {
    return visit([&](const auto& task) { return task.given(batch); });
  }
  /// The task whose loss validation reports: without unrolling, sampled nodes and penalties.
  Task for_validation() const {
    return visit([](const auto& task) { return Task(Kind(task.for_validation())); });
  }

 private:
  Kind kind_;
};

/// The task that task.name names. Throws ConfigError for fields that do not fit it.
Task make_task(const Config& config, const Dataset& dataset);

/// A training batch in memory of its own on the runtime's device, with graph offsets.
Batch training_batch(const Task& task, Runtime& runtime, DType dtype, std::string_view split,
                     const std::vector<Sample>& samples, const NoiseOptions& noise, Normalizers& normalizers,
                     bool learn = false);

/// The largest batch of the training split: as if all its samples had the largest mesh.
BatchShape largest_batch(const Config& config, const Dataset& dataset);

}  // namespace meshgrad
