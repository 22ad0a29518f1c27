// SPDX-License-Identifier: Apache-2.0
// Whether a run has learned: the verdict, and who says it.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/run_event.h>
#include <meshgrad/train/learn/run/run_verdict.h>

#include <nlohmann/json.hpp>

#include "support.h"
#include "train/fault_case.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using Kind = RunVerdict::Kind;
using Row = std::map<std::string, double>;
using test::contains;
using test::ScratchDirectory;

Row validation(double step, double error, double rollout = std::nan("")) {
  Row row{{"step", step}, {"valid_error", error}, {"valid_baseline", 1.0}, {"valid_loss", error}};
  if (!std::isnan(rollout)) row.insert({{"valid_rollout", rollout}, {"valid_rollout_baseline", 0.5}});
  return row;
}

TEST_CASE("a verdict compares the best model with the baseline") {
  Config config;
  config.train.best = "loss";
  const auto of = [&](const std::vector<Row>& rows) { return verdict_of(rows, config); };
  const RunVerdict learned = of({validation(0, 1.2), validation(10, 0.25), validation(20, 0.5)});
  CHECK(learned.kind == Kind::learned);
  CHECK(learned.ratio == 0.25);
  CHECK(learned.best_step == 10);
  CHECK(learned.text ==
        "learned: the best model, of step 10, has 0.25 times the error of the baseline (nothing changes)");
  CHECK(of({validation(0, 3.0), validation(10, 1.1), validation(20, 1.4)}).kind == Kind::worse_than_baseline);
  CHECK(of({validation(0, 3.0), validation(10, 1.0)}).kind == Kind::worse_than_baseline);
  // The best model counts, not the last.
  CHECK(of({validation(0, 1.2), validation(10, 0.5), validation(20, 1.2)}).kind == Kind::learned);
  CHECK(of({validation(0, 1.2), validation(10, 1.1), validation(20, 1.2)}).kind == Kind::nothing_learned);
  // The first validation of a run may be of a trained model.
  CHECK(of({validation(10, 0.5), validation(20, 0.6)}).kind == Kind::learned);
  CHECK(of({validation(0, 1.2), validation(10, 0.5), validation(20, std::nan(""))}).kind == Kind::not_finite);
  CHECK(of({validation(0, 1.2), {{"step", 9.0}, {"loss", std::nan("")}}, validation(10, 0.5)}).kind ==
        Kind::not_finite);
  CHECK(of({{{"step", 9.0}, {"loss", std::nan("")}}, {{"step", 10.0}, {"loss", 1.0}}, validation(10, 0.5)})
            .kind == Kind::learned);
  CHECK(of({validation(0, 1.2)}).kind == Kind::unknown);
  CHECK(of({{{"step", 10.0}, {"valid_loss", 0.1}}}).kind == Kind::unknown);  // of an earlier version
  config.task.name = TaskName::steady_field;
  CHECK(contains(of({validation(10, 0.5)}).text, "the mean over the nodes of a type"));
  config.task.name = TaskName::graph_regression;
  CHECK(contains(of({validation(10, 0.5)}).text, "the mean over the graphs trained on"));
}

TEST_CASE("a verdict is of rollouts where they choose the best") {
  const Config config;
  const auto of = [&](const std::vector<Row>& rows) { return verdict_of(rows, config); };
  const RunVerdict learned = of({validation(0, 3.0), validation(10, 1.1, 0.2), validation(20, 0.9, 0.3)});
  CHECK(learned.kind == Kind::learned);
  CHECK(learned.best_step == 10);
  CHECK(learned.ratio == doctest::Approx(0.4));
  CHECK(contains(learned.text, "learned: over rollouts the best model"));
  CHECK(of({validation(0, 3.0), validation(10, 0.4, 0.6)}).kind == Kind::worse_than_baseline);
  CHECK(of({validation(0, 3.0), validation(10, 0.4)}).kind == Kind::learned);  // without rollouts
  Row diverged = validation(10, 0.4);
  diverged["valid_rollout"] = std::nan("");
  CHECK(of({validation(0, 3.0), diverged}).kind == Kind::not_finite);
}

TEST_CASE("a verdict is of the model that a metric chose") {
  Config config;
  config.task.name = TaskName::graph_classification;
  config.train.best = "auc";
  const auto row = [](double step, double error, double metric, double best) {
    Row made = validation(step, error);
    made.insert({{"valid_metric", metric}, {"valid_metric_best", best}});
    return made;
  };
  const auto of = [&](const std::vector<Row>& rows) { return verdict_of(rows, config); };
  const RunVerdict learned = of({validation(0, 1.2), row(10, 0.5, 0.9, 1.0), row(20, 0.25, 0.8, 0.0)});
  CHECK(learned.kind == Kind::learned);
  CHECK(learned.best_step == 10);
  CHECK(learned.ratio == 0.5);
  CHECK(of({row(10, 0.5, std::nan(""), 0.0)}).text == "not finite: auc of all validations");
}

struct VerdictRun {
  ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  VerdictRun() {
    config.train.steps = 300;
    config.train.noise = 0.0;
    config.optimizer.lr = 5e-3;
  }
  test::Outcome train(std::vector<std::string> more = {}) {
    fs::remove_all(config.run.dir);
    std::vector<std::string> words{"train", test::write_config(scratch.path, config)};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_meshgrad(words);
  }
  std::string event() const {
    const std::vector<RunEvent> events = read_events(fs::path(config.run.dir) / "events.jsonl");
    REQUIRE_FALSE(events.empty());
    CHECK(events.back().kind == RunEventKind::verdict);
    return events.back().field("verdict");
  }
};

TEST_CASE("a run that has learned says so in its last line") {
  VerdictRun run;
  const test::Outcome outcome = run.train({"--fail-if-useless"});
  CHECK_MESSAGE(outcome.code == 0, outcome.out);
  const size_t at = outcome.out.rfind("\nverdict     learned: ");
  REQUIRE(at != std::string::npos);
  CHECK(outcome.out.find("\n\n", at) == std::string::npos);
  CHECK(run.event() == "learned");
  CHECK(contains(test::run_meshgrad({"doctor", run.config.run.dir}).out, "learned: the best model"));
}

TEST_CASE("a run that learns nothing fails where it is asked to") {
  VerdictRun run;
  run.config.optimizer.lr = 0.0;
  run.config.schedule.name = RateCurve::constant;
  const test::Outcome plain = run.train();
  CHECK_MESSAGE(plain.code == 0, plain.err);
  CHECK(contains(plain.out, "\nverdict     "));
  CHECK(run.event() == "nothing_learned");
  CHECK(run.train({"--fail-if-useless"}).code == 1);
  const auto json = nlohmann::json::parse(run.train({"--json"}).out);
  CHECK(json.at("verdict") == "nothing_learned");
  const auto doctor = nlohmann::json::parse(test::run_meshgrad({"doctor", run.config.run.dir, "--json"}).out);
  int bad = 0;
  for (const auto& check : doctor.at("checks"))
    bad += static_cast<int>(check.at("name") == "validation" && check.at("verdict") == "bad");
  CHECK(bad == 1);
  test::check_one_error(run.train({"--fail-if-useless", "--set", "train.validate_every=0"}), 2,
                        {"[--fail-if-useless] needed validations"});
}

}  // namespace
}  // namespace meshgrad
