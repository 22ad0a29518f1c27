// SPDX-License-Identifier: Apache-2.0
// Targets on graphs without any on nodes.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include "support.h"
#include "train/graph_target_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;
using test::target_config;

TEST_CASE("a batch of meshes has targets of graphs alone, by hand") {
  const ScratchDirectory scratch;
  const Config config = target_config(scratch.path, {.one_size = false, .alone = true});
  const Task task = make_task(config, Dataset::open(config.data.path));
  CHECK(task.sizes().outputs == 0);
  CHECK(task.sizes().graph_outputs == 2);
  CHECK(task.describe().outputs.size() == 1);
  CHECK(task.metrics().front().key == "rmse of drag");
  CHECK(task.loss_weight("train", {{1, 0, 0}, {0, 0, 0}}) == 2.0);
  Runtime runtime({.threads = 1});
  Normalizers normalizers = task.dataset_normalizers({});
  const Batch batch =
      training_batch(task, runtime, DType::f64, "train", {{1, 0, 0}, {0, 0, 0}}, {}, normalizers);
  CHECK(batch.tensor("target").shape() == Shape{25, 0});
  CHECK(*batch.tensor("graph_rows").data<double>() == 1.0);
}

TEST_CASE("a run learns a number of each mesh alone") {
  const ScratchDirectory scratch;
  Config config = target_config(scratch.path, {.alone = true});
  config.train.steps = 300;
  config.train.validate_every = 100;
  config.train.best = "rmse of drag";
  config.optimizer.lr = 5e-3;
  config.run.dir = (scratch.path / "run").string();
  test::train_here(config);
  Runtime runtime({.threads = 1});
  const Predictor predictor(runtime, fs::path(config.run.dir) / "checkpoints/last.safetensors");
  const Evaluation result = evaluate(predictor, {.split = "test"});
  CHECK(result.baseline == "the mean of split train of these data");
  REQUIRE(result.fields.size() == 1);
  CHECK(result.fields[0].name == "drag");
  CHECK(result.fields[0].rmse < 0.25 * result.fields[0].baseline_rmse);
}

}  // namespace
}  // namespace meshgrad
