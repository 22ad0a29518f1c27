// SPDX-License-Identifier: Apache-2.0
// The choice of the best checkpoint by a metric of the task (train.best).
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/run_event.h>
#include <meshgrad/train/learn/task/best_metric.h>
#include <meshgrad/train/learn/task/class_metrics.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

TEST_CASE("a metric is never better where it is nan") {
  const RankedMetric auc{"auc", true}, rmse{"rmse of u", false};
  const double nan = std::nan("");
  CHECK(auc.is_better(0.9, 0.8));
  CHECK_FALSE(auc.is_better(0.8, 0.8));
  CHECK_FALSE(auc.is_better(0.7, 0.8));
  CHECK(rmse.is_better(0.7, 0.8));
  CHECK_FALSE(rmse.is_better(0.9, 0.8));
  for (const RankedMetric& metric : {auc, rmse}) {
    CHECK_FALSE(metric.is_better(nan, 0.8));
    CHECK_FALSE(metric.is_better(nan, nan));
    CHECK(metric.is_better(0.1, nan));
  }
}

TEST_CASE("each metric of classes has a value by its key") {
  ClassPredictions predictions(2);
  for (const int32_t label : {0, 1, 1}) predictions.add(label, std::vector<double>{0.0, 1.0});
  Evaluation evaluation{.split = "valid"};
  predictions.write("graphs", evaluation);
  for (const RankedMetric& metric : class_metrics()) {
    CAPTURE(metric.key);
    CHECK(metric.higher == (metric.key != "cross_entropy"));
    CHECK(std::isfinite(value_of(metric.key, evaluation.metrics, {})));
  }
  CHECK(value_of("accuracy", evaluation.metrics, {}) == doctest::Approx(2.0 / 3.0));
  CHECK(value_of("balanced_accuracy", evaluation.metrics, {}) == 0.5);
  const std::vector<FieldError> drag{{.name = "drag", .rmse = 3.0, .mae = 2.0, .relative_l2 = 0.5}};
  CHECK(value_of("rmse of drag", {}, drag) == 3.0);
  CHECK(value_of("mae of drag", {}, drag) == 2.0);
  CHECK(value_of("relative_l2 of drag", {}, drag) == 0.5);
}

TEST_CASE("an unknown metric is refused with those of the task") {
  const ScratchDirectory scratch;
  const fs::path graphs = test::pack_graphs(scratch.path, test::small_graphs(20));
  const auto refused = [&](Config config, const char* best) {
    config.train.best = best;
    return message_of([&] { make_task(config, Dataset::open(config.data.path)); });
  };
  Config config = test::graph_config(scratch.path, graphs, TaskName::graph_classification);
  const std::string error = refused(config, "acu");
  CHECK(contains(error,
                 "[train.best] needed \"auto\", \"loss\", \"rollout\" or a metric of task.name = "
                 "\"graph_classification\": \"accuracy\", \"balanced_accuracy\", \"f1\""));
  CHECK(contains(error, "got \"acu\""));
  CHECK(refused(config, "auc").empty());
  config = test::graph_config(scratch.path, graphs, TaskName::graph_regression);
  CHECK(contains(refused(config, "auc"), "\"rmse of total\""));
  CHECK(refused(config, "mae of total").empty());
  config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.best = "rmse of velocity";
  CHECK(contains(message_of([&] { check_config(config); }),
                 "[train.best] needed \"auto\" or \"loss\" with train.validate_rollouts = 0"));
  config.train.validate_rollouts = 1;
  CHECK(message_of([&] { check_config(config); }).empty());
  CHECK(contains(refused(config, "rmse of pressure"), "\"rmse of velocity\""));
}

/// The step of the best value of a metric in a run's metrics, as validations found it.
std::pair<int64_t, double> best_in(const Config& config, bool higher) {
  std::pair<int64_t, double> best{-1, std::nan("")};
  for (const auto& [step, row] : test::validations_of(config)) {
    if (!row.contains("valid_metric")) continue;
    if (RankedMetric{"", higher}.is_better(row.at("valid_metric"), best.second))
      best = {static_cast<int64_t>(step), row.at("valid_metric")};
  }
  return best;
}

double evaluated(const Config& config, const std::string& key) {
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "best.safetensors");
  const Evaluation result = evaluate(predictor, {.split = "valid"});
  const bool rolled = result.dynamics.has_value();
  return value_of(key, result.metrics, rolled ? result.dynamics->rollouts.back().fields : result.fields);
}

TEST_CASE("the best checkpoint is that of the metric, on any ranks") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(60));
  const std::pair<TaskName, std::string> cases[] = {{TaskName::graph_classification, "balanced_accuracy"},
                                                    {TaskName::graph_regression, "mae of total"}};
  for (const auto& [name, key] : cases) {
    CAPTURE(key);
    Config config = test::graph_config(scratch.path, data, name);
    config.train.best = key;
    config.train.steps = 24;
    config.train.validate_every = 4;
    config.ranks.reduction = RankReduction::ordered;
    config.optimizer.lr = 3e-2;  // goes up and down
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    const RunState state = test::train_here(config).state;
    const auto [step, value] = best_in(config, name == TaskName::graph_classification);
    CHECK(state.best_step == step);
    CHECK(state.best_valid_metric == value);
    CHECK(evaluated(config, key) == value);  // what evaluate prints of the split
    const std::string best = test::checkpoint_bytes(config.run.dir, "best");
    const std::string metrics = test::lasting_metrics(config.run.dir);
    fs::rename(config.run.dir, config.run.dir + "_straight");
    int calls = 0;
    CHECK(test::train_here(config, false, [&] { return ++calls == 11; }).stopped);
    test::train_here(config, true);
    CHECK(test::checkpoint_bytes(config.run.dir, "best") == best);
    CHECK(test::lasting_metrics(config.run.dir) == metrics);
    fs::remove_all(config.run.dir);
    test::train_on_ranks(2, config);
    CHECK(test::checkpoint_bytes(config.run.dir, "best") == best);
  }
}

TEST_CASE("another metric at a resume validates the best again") {
  const ScratchDirectory scratch;
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(60)),
                                     TaskName::graph_classification);
  config.train.steps = 8;
  config.train.validate_every = 4;
  const RunState first = test::train_here(config).state;
  CHECK(std::isnan(first.best_valid_metric));
  config.train.best = "auc";
  config.train.steps = 9;
  const double of_first = evaluated(config, "auc");
  const RunState resumed = test::train_here(config, true).state;
  CHECK(resumed.best_valid_metric == std::max(of_first, resumed.last_valid_metric));
}

TEST_CASE("a metric of rollouts chooses the best, and a log says so") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 12;
  config.train.validate_every = 3;
  config.train.validate_rollouts = 1;
  config.train.best = "rmse of velocity";
  std::vector<RunEvent> events;
  Runtime runtime({.threads = 1});
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { events.push_back(event); };
  const RunState state = train(runtime, config, options).state;
  const auto [step, value] = best_in(config, false);
  CHECK(state.best_step == step);
  CHECK(evaluated(config, "rmse of velocity") == value);
  const auto said = std::ranges::find_if(events, [&](const RunEvent& event) {
    return event.kind == RunEventKind::validation && event.step == step;
  });
  REQUIRE(said != events.end());
  CHECK(contains(said->text, "; rmse of velocity "));
  CHECK(contains(said->text, "(best so far by rmse of velocity)"));
  const auto by = std::ranges::find(said->fields, "best_by", &RunEvent::Fields::value_type::first);
  REQUIRE(by != said->fields.end());
  CHECK(std::get<std::string>(by->second) == "rmse of velocity");
}

TEST_CASE("a metric that is nan keeps no best, and says why") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::small_graphs(20);
  std::vector<int32_t> label(20, 0);
  for (size_t i = 0; i < 12; ++i) label[i] = static_cast<int32_t>(i % 2);  // of the split to train on
  arrays["graph:label"] = test::npy<int32_t>("<i4", "(20,)", label);
  Config config = test::graph_config(scratch.path, test::pack_graphs(scratch.path, arrays),
                                     TaskName::graph_classification);
  config.train.best = "auc";
  config.train.steps = 4;
  config.train.validate_every = 2;
  std::string texts;
  Runtime runtime({.threads = 1});
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { texts += event.text + "\n"; };
  CHECK(train(runtime, config, options).state.best_step == -1);
  CHECK(
      contains(texts, "; auc nan (AUC and average precision are nan: split valid has no graphs of class 1)"));
  CHECK_FALSE(fs::exists(fs::path(config.run.dir) / "checkpoints" / "best.safetensors"));
}

}  // namespace
}  // namespace meshgrad
