// SPDX-License-Identifier: Apache-2.0
// How good a classifier is, in f64 on the host. The metrics are those of scikit-learn 1.9, of more than two
// classes with average="macro" and multi_class="ovr", ties included: balanced accuracy over the classes that
// occur; F1 of class 1 of two classes, of more the mean over those that occur or are predicted; areas of more
// than two classes as means of one against the rest. Formulas: Hanley, McNeil (1982) for the area under the
// ROC curve by ranks, Gorodkin (2004) for Matthews' coefficient of several classes.
#pragma once
#include <meshgrad/train/learn/task/prediction.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// softmax(logits).
std::vector<double> probabilities_of(std::span<const double> logits);
/// -log softmax(logits)[label].
double cross_entropy(std::span<const double> logits, size_t label);
/// The class of the largest logit, the first of equal ones.
size_t likeliest(std::span<const double> logits);

/// Labels and logits of nodes or graphs.
class ClassPredictions {
 public:
  explicit ClassPredictions(int64_t classes) : classes_(static_cast<size_t>(classes)) {}
  void add(int32_t label, std::span<const double> logits);
  int64_t count() const { return static_cast<int64_t>(labels_.size()); }
  /// Writes metrics, confusion matrix and notes of what has no value. `rows`: "nodes" or "graphs", the name
  /// of their number.
  void write(std::string_view rows, Evaluation& evaluation) const;

 private:
  std::vector<std::vector<int64_t>> confusion() const;
  /// The scores of a class, and whether each row has it.
  struct Scores {
    std::vector<double> score;
    std::vector<uint8_t> has;
  };
  Scores scores_of(size_t of_class) const;
  template <class Area>
  double mean_area(const Area& area) const;

  size_t classes_;
  std::vector<int32_t> labels_, predicted_;
  std::vector<double> probabilities_;  // [rows, classes]
  double entropy_ = 0.0;
};

/// Area under the ROC curve of scores for rows that are positive or not; NaN where only one kind occurs.
double roc_area(std::span<const double> scores, std::span<const uint8_t> positive);
/// Average precision; NaN without positives.
double average_precision(std::span<const double> scores, std::span<const uint8_t> positive);

}  // namespace meshgrad
