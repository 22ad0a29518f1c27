// SPDX-License-Identifier: Apache-2.0
// Teacher: a trained model whose predictions another one, the student, learns from beside the data: the keys
// distill.*. It predicts the batch that the student gets, with the same noise, before the student does and
// without a tape, so that the student's step reuses its memory. Where the two were trained with other
// normalisers, its inputs are converted to its own, and its targets to the student's. With distill.cache it
// does not run: batches carry what it gave for their samples, which is converted likewise.
// Source: Hinton, Vinyals, Dean, "Distilling the knowledge in a neural network" (2015), section 2.
#pragma once
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/teacher_output.h>
#include <meshgrad/nn/model.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/teacher_cache.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

class Teacher {
 public:
  /// `student`: its normalisers, unless it learns them: null. `hash` names the teacher's checkpoint. With
  /// config.cache the model needs no memory. Its parameters may be in host memory; each use then copies them.
  Teacher(Model model, const ModelSizes& sizes, Normalizers normalizers, const DistillConfig& config,
          std::string hash, const Normalizers* student);
  /// The same, whose batches carry what the cache holds.
  Teacher reading(std::shared_ptr<const TeacherCache> cache) const;

  const std::string& hash() const { return hash_; }
  const Model& model() const { return model_; }
  const ParameterSet& parameters() const { return model_.parameters; }
  const Normalizers& normalizers() const { return normalizers_; }
  /// Of its parameters that are on a device between two uses, but tables of identifiers, which have a tag of
  /// their own.
  int64_t bytes(Device device) const;

  /// Room for what converts values, where they have to be, and with config.cache for "teacher", predictions.
  void add_to(BatchLayout& layout) const;
  /// Writes them on the host. Predictions are zeros where nothing is learned from them: of a split that is
  /// not cached, and before reading(), in steps that are measured only.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const Normalizers& student) const;
  /// Its prediction for a batch on the device, in the student's units: of classes logits, else values in the
  /// accumulator dtype.
  TeacherOutput predict(Runtime& runtime, const Batch& batch) const;

 private:
  bool is_cached() const { return !config_.cache.empty(); }
  void write_conversions(const Batch& batch, const Normalizers& student) const;
  void write_predictions(const Batch& batch, std::string_view split,
                         const std::vector<Sample>& samples) const;
  Variable run(Tape& tape, const Batch& batch) const;
  Variable converted(Tape& tape, const Variable& x, const Batch& batch, size_t which) const;

  Model model_;
  TensorRows rows_;  // of a prediction
  int64_t outputs_;
  Normalizers normalizers_;
  DistillConfig config_;
  std::string hash_;
  std::shared_ptr<const TeacherCache> cache_;
  std::array<bool, 4> converts_{};  // by kConversions
};

/// The loss of predicted fields, as `form` counts the errors; with a teacher's output in shares: of the
/// batch's target, and of that output.
Variable field_loss(Tape& tape, const Variable& prediction, const Batch& batch, const LossForm& form,
                    const TeacherOutput& teacher);

}  // namespace meshgrad
