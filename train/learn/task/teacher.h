// SPDX-License-Identifier: Apache-2.0
// Teacher: a trained model whose predictions another one, the student, learns from beside the data: the keys
// distill.*. It predicts the batch that the student gets, with the same noise, before the student does and
// without a tape, so that the student's step reuses its memory. Where the two were trained with other
// normalisers, its inputs are converted to its own, and its targets to the student's.
// Source: Hinton, Vinyals, Dean, "Distilling the knowledge in a neural network" (2015), section 2.
#pragma once
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/teacher_output.h>
#include <meshgrad/nn/model.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <array>
#include <cstdint>
#include <string>

namespace meshgrad {

class Teacher {
 public:
  /// `student`: its normalisers, unless it learns them: null. `hash` names the teacher's checkpoint.
  Teacher(Model model, Normalizers normalizers, const DistillConfig& config, std::string hash,
          const Normalizers* student);

  const std::string& hash() const { return hash_; }
  const ParameterSet& parameters() const { return model_.parameters; }
  int64_t bytes() const;  ///< of its parameters but tables of identifiers, which have a tag of their own

  /// Room for what converts values, where they have to be.
  void add_to(BatchLayout& layout) const;
  void write(const Batch& batch, const Normalizers& student) const;
  /// Its prediction for a batch on the device, in the student's units: of classes logits, else values in the
  /// accumulator dtype.
  TeacherOutput predict(Runtime& runtime, const Batch& batch) const;

 private:
  Variable converted(Tape& tape, const Variable& x, const Batch& batch, size_t which) const;

  Model model_;
  Normalizers normalizers_;
  DistillConfig config_;
  std::string hash_;
  std::array<bool, 4> converts_{};  // by kConversions
};

/// The loss of predicted fields, as `form` counts the errors; with a teacher's output in shares: of the
/// batch's target, and of that output.
Variable field_loss(Tape& tape, const Variable& prediction, const Batch& batch, const LossForm& form,
                    const TeacherOutput& teacher);

}  // namespace meshgrad
