// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/class_metrics.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshgrad {
namespace {

/// Rows from the largest score to the least, equal ones in any order.
std::vector<size_t> descending(std::span<const double> scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

/// Such a score has no place among others: areas are then NaN.
bool any_nan(std::span<const double> scores) {
  return std::ranges::any_of(scores, [](double score) { return std::isnan(score); });
}

/// Calls `group` for each distinct score, descending, with how many rows of it are positive and are not.
template <class Group>
void each_score(std::span<const double> scores, std::span<const uint8_t> positive, const Group& group) {
  const std::vector<size_t> order = descending(scores);
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double yes = 0.0, no = 0.0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end)
      (positive[order[end]] != 0 ? yes : no) += 1.0;
    group(yes, no);
  }
}

double ratio(double part, double whole, double without) { return whole > 0.0 ? part / whole : without; }

/// What the confusion matrix says of each class.
struct OfClass {
  double true_rows = 0.0, predicted = 0.0, right = 0.0;
};

double matthews(const std::vector<OfClass>& classes, double rows) {
  double right = 0.0, both = 0.0, predicted = 0.0, truth = 0.0;
  for (const OfClass& one : classes) {
    right += one.right;
    both += one.true_rows * one.predicted;
    predicted += one.predicted * one.predicted;
    truth += one.true_rows * one.true_rows;
  }
  const double scale = std::sqrt((rows * rows - predicted) * (rows * rows - truth));
  return ratio(right * rows - both, scale, 0.0);
}

double f1(const std::vector<OfClass>& classes) {
  const auto of = [](const OfClass& one) {
    return ratio(2.0 * one.right, one.true_rows + one.predicted, 0.0);
  };
  if (classes.size() == 2) return of(classes[1]);
  double sum = 0.0, occurring = 0.0;
  for (const OfClass& one : classes) {
    if (one.true_rows + one.predicted == 0.0) continue;
    sum += of(one);
    occurring += 1.0;
  }
  return sum / occurring;
}

double balanced_accuracy(const std::vector<OfClass>& classes) {
  double sum = 0.0, occurring = 0.0;
  for (const OfClass& one : classes) {
    if (one.true_rows == 0.0) continue;
    sum += one.right / one.true_rows;
    occurring += 1.0;
  }
  return sum / occurring;
}

}  // namespace

std::vector<double> probabilities_of(std::span<const double> logits) {
  const double most = *std::ranges::max_element(logits);
  std::vector<double> values;
  double sum = 0.0;
  for (const double logit : logits) sum += values.emplace_back(std::exp(logit - most));
  for (double& value : values) value /= sum;
  return values;
}

double cross_entropy(std::span<const double> logits, size_t label) {
  check_internal(label < logits.size(), "a label that is a class");
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum) - logits[label];
}

size_t likeliest(std::span<const double> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

double roc_area(std::span<const double> scores, std::span<const uint8_t> positive) {
  if (any_nan(scores)) return std::nan("");
  double area = 0.0, yes_above = 0.0, no_above = 0.0;
  each_score(scores, positive, [&](double yes, double no) {
    area += no * (yes_above + 0.5 * yes);
    yes_above += yes;
    no_above += no;
  });
  return ratio(area, yes_above * no_above, std::nan(""));
}

double average_precision(std::span<const double> scores, std::span<const uint8_t> positive) {
  if (any_nan(scores)) return std::nan("");
  double sum = 0.0, yes_above = 0.0, above = 0.0;
  each_score(scores, positive, [&](double yes, double no) {
    yes_above += yes;
    above += yes + no;
    sum += yes * yes_above / above;
  });
  return ratio(sum, yes_above, std::nan(""));
}

void ClassPredictions::add(int32_t label, std::span<const double> logits) {
  labels_.push_back(label);
  predicted_.push_back(static_cast<int32_t>(likeliest(logits)));
  const std::vector<double> probabilities = probabilities_of(logits);
  probabilities_.insert(probabilities_.end(), probabilities.begin(), probabilities.end());
  entropy_ += cross_entropy(logits, static_cast<size_t>(label));
}

std::vector<std::vector<int64_t>> ClassPredictions::confusion() const {
  std::vector<std::vector<int64_t>> counts(classes_, std::vector<int64_t>(classes_));
  for (size_t i = 0; i < labels_.size(); ++i)
    ++counts[static_cast<size_t>(labels_[i])][static_cast<size_t>(predicted_[i])];
  return counts;
}

ClassPredictions::Scores ClassPredictions::scores_of(size_t of_class) const {
  Scores scores;
  for (size_t i = 0; i < labels_.size(); ++i) {
    scores.score.push_back(probabilities_[i * classes_ + of_class]);
    scores.has.push_back(labels_[i] == static_cast<int32_t>(of_class) ? 1 : 0);
  }
  return scores;
}

template <class Area>
double ClassPredictions::mean_area(const Area& area) const {
  const auto of = [&](size_t of_class) {
    const Scores scores = scores_of(of_class);
    return area(scores.score, scores.has);
  };
  if (classes_ == 2) return of(1);
  double sum = 0.0;
  for (size_t c = 0; c < classes_; ++c) sum += of(c);
  return sum / static_cast<double>(classes_);
}

void ClassPredictions::write(std::string_view rows, Evaluation& evaluation) const {
  evaluation.confusion = confusion();
  std::vector<OfClass> classes(classes_);
  std::vector<std::string> missing;
  for (size_t c = 0; c < classes_; ++c) {
    for (size_t other = 0; other < classes_; ++other) {
      classes[c].true_rows += static_cast<double>(evaluation.confusion[c][other]);
      classes[c].predicted += static_cast<double>(evaluation.confusion[other][c]);
    }
    classes[c].right = static_cast<double>(evaluation.confusion[c][c]);
    if (classes[c].true_rows == 0.0) missing.push_back(std::to_string(c));
  }
  const auto count = static_cast<double>(labels_.size());
  double right = 0.0, frequent = 0.0;
  for (const OfClass& one : classes) {
    right += one.right;
    frequent = std::max(frequent, one.true_rows);
  }
  const double area = mean_area(roc_area), precision = mean_area(average_precision);
  evaluation.metrics = {{"accuracy", "", right / count},
                        {"accuracy of the most frequent class", "", frequent / count},
                        {"balanced accuracy", "", balanced_accuracy(classes)},
                        {"F1", "", f1(classes)},
                        {"Matthews", "", matthews(classes, count)},
                        {"AUC", "", area},
                        {"average precision", "", precision},
                        {"cross entropy", "nat", entropy_ / count},
                        {std::string(rows), "", count}};
  if (std::isnan(area) && !missing.empty()) {
    evaluation.notes.push_back(fmt::format("AUC{} nan: split {} has no {} of class {}",
                                           std::isnan(precision) ? " and average precision are" : " is",
                                           evaluation.split, rows, fmt::join(missing, ", ")));
  }
}

}  // namespace meshgrad
