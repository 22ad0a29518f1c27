// SPDX-License-Identifier: Apache-2.0
// How far a model's predictions are from the data while it trains, in a figure that noise, loss and
// normalisers do not change.
#pragma once

namespace meshgrad {

/// Sums over the compared values of samples. Of tasks on meshes: weighted squares of errors of the model's
/// output in standard deviations of the targets over the predicted nodes of the training data; the weights
/// are loss.field_weights and loss.type_weights. Of classes: cross entropies in nat.
struct ComparedErrors {
  double model = 0.0;
  double baseline = 0.0;  ///< of what a model has to beat: see Evaluation::baseline
  double weight = 0.0;
  ComparedErrors& operator+=(const ComparedErrors& other) {
    model += other.model;
    baseline += other.baseline;
    weight += other.weight;
    return *this;
  }
};

}  // namespace meshgrad
