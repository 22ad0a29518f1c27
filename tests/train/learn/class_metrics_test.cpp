// SPDX-License-Identifier: Apache-2.0
// Metrics of classes against those of scikit-learn, and what has no value.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/class_metrics.h>
#include <meshgrad/train/learn/task/class_weights.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;

TEST_CASE("metrics of classes are those of scikit-learn") {
  const nlohmann::json cases =
      nlohmann::json::parse(test::read_text(test::data_file("oracles/class_metrics.json")));
  REQUIRE(cases.size() == 6);
  for (const nlohmann::json& one : cases) {
    CAPTURE(one.at("name").get<std::string>());
    const auto labels = one.at("labels").get<std::vector<int32_t>>();
    const auto logits = one.at("logits").get<std::vector<std::vector<double>>>();
    ClassPredictions predictions(one.at("classes").get<int64_t>());
    for (size_t i = 0; i < labels.size(); ++i) predictions.add(labels[i], logits[i]);
    Evaluation evaluation{.split = "test"};
    predictions.write("graphs", evaluation);
    CHECK(evaluation.confusion == one.at("confusion").get<std::vector<std::vector<int64_t>>>());
    size_t compared = 0;
    for (const Metric& metric : evaluation.metrics) {
      CAPTURE(metric.name);
      const auto expected = one.at("metrics").find(metric.name);
      if (expected == one.at("metrics").end()) continue;
      ++compared;
      CHECK(std::abs(metric.value - expected->get<double>()) <= 1e-14);
    }
    CHECK(compared == one.at("metrics").size());
    CHECK(evaluation.metrics.back().value == static_cast<double>(labels.size()));
  }
}

TEST_CASE("areas without a class are nan, and said") {
  const auto of = [](const std::vector<int32_t>& labels, int64_t classes) {
    ClassPredictions predictions(classes);
    for (const int32_t label : labels) {
      std::vector<double> logits(static_cast<size_t>(classes), 0.0);
      logits[static_cast<size_t>(label)] = 1.0;
      predictions.add(label, logits);
    }
    Evaluation evaluation{.split = "valid"};
    predictions.write("graphs", evaluation);
    return evaluation;
  };
  const auto value = [](const Evaluation& evaluation, const std::string& name) {
    for (const Metric& metric : evaluation.metrics)
      if (metric.name == name) return metric.value;
    return -1.0;
  };
  const Evaluation zeros = of({0, 0}, 2);
  CHECK(std::isnan(value(zeros, "AUC")));
  CHECK(std::isnan(value(zeros, "average precision")));
  REQUIRE(zeros.notes.size() == 1);
  CHECK(zeros.notes.front() == "AUC and average precision are nan: split valid has no graphs of class 1");
  const Evaluation ones = of({1, 1}, 2);
  CHECK(std::isnan(value(ones, "AUC")));
  CHECK(value(ones, "average precision") == 1.0);
  CHECK(ones.notes.front() == "AUC is nan: split valid has no graphs of class 0");
  const Evaluation two_of_four = of({0, 2, 2}, 4);
  CHECK(std::isnan(value(two_of_four, "AUC")));
  CHECK(contains(two_of_four.notes.front(), "no graphs of class 1, 3"));
  CHECK(of({0, 1}, 2).notes.empty());
  const std::vector<double> scores{0.5, std::nan(""), 0.1};
  const std::vector<uint8_t> positive{1, 0, 0};
  CHECK(std::isnan(roc_area(scores, positive)));
  CHECK(std::isnan(average_precision(scores, positive)));
}

TEST_CASE("class weights are a list, or balance the classes") {
  LossConfig config;
  const std::vector<int64_t> trained{6, 2, 1};
  CHECK(ClassWeights(config, trained).of(1) == 1.0);
  config.class_weights = {0.5, 2.0, 4.0};
  CHECK(ClassWeights(config, trained).of(2) == 4.0);
  config.class_weights = kBalancedWeights;
  const ClassWeights balanced(config, trained);
  CHECK(balanced.of(0) == 0.5);
  CHECK(balanced.of(1) == 1.5);
  CHECK(balanced.of(2) == 3.0);
  const auto refused = [&](const std::vector<int64_t>& counts) {
    return message_of([&] { ClassWeights(config, counts); });
  };
  CHECK(contains(refused({3, 0}),
                 "[loss.class_weights] needed a list of numbers where a class is not trained "
                 "on, got \"balanced\" with 0 of class 1"));
  config.class_weights = {1.0};
  CHECK(contains(refused({3, 1}), "[loss.class_weights] needed 2 numbers, one for each class, got 1"));
}

}  // namespace
}  // namespace meshgrad
