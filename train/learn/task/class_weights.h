// SPDX-License-Identifier: Apache-2.0
// ClassWeights: how much the loss of a node or graph counts by its class, as loss.class_weights says.
#pragma once
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/teacher.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshgrad {

class ClassWeights {
 public:
  ClassWeights() = default;
  /// `trained`: how many rows of each class are trained on. Balanced weights are their sum over the number of
  /// classes and of the class, as scikit-learn has them: their mean over the rows is 1. Throws ConfigError
  /// for another number of weights than of classes, and for balanced ones where a class is not trained on.
  ClassWeights(const LossConfig& config, std::span<const int64_t> trained);

  /// 1 without weights.
  double of(int32_t label) const {
    return values_.empty() ? 1.0 : static_cast<double>(values_[static_cast<size_t>(label)]);
  }
  /// f32 [classes] of a batch, where there are weights.
  void add_to(BatchLayout& layout) const;
  void write(const Batch& batch) const;

 private:
  std::vector<float> values_;
};

/// The loss of predicted classes of a batch with "labels", "mask" and such weights, and of how far they are
/// from the teacher's, unless that is null.
LossTerms class_loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                     const Teacher* teacher);

}  // namespace meshgrad
