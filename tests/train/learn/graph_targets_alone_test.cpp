// SPDX-License-Identifier: Apache-2.0
// Targets on graphs without any on nodes, and what is doubtful about their values.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <limits>

#include "support.h"
#include "train/graph_target_case.h"
#include "train/process.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
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

TEST_CASE("targets of graphs are finite in each split that is read") {
  const ScratchDirectory scratch;
  for (const TaskName name : {TaskName::steady_field, TaskName::graph_regression}) {
    Config config = target_config(
        scratch.path,
        {.train = 3, .bad = std::numeric_limits<float>::infinity(), .bad_mesh = 4, .alone = true});
    config.task.name = name;
    const Task task = make_task(config, Dataset::open(config.data.path));
    Runtime runtime({.threads = 1});
    Normalizers normalizers = task.dataset_normalizers({});
    const auto read = [&](int64_t mesh) {
      return message_of([&] {
        training_batch(task, runtime, DType::f32, "valid", {{mesh, 0, 0}}, {}, normalizers);
      });
    };
    CHECK(read(0).empty());
    CHECK(contains(read(1),
                   "[valid4: drag] needed finite numbers, with which predictions are compared, got inf "
                   "in frame 0; fix: leave this graph out"));
  }
}

TEST_CASE("targets of graphs that do not vary are reported") {
  const ScratchDirectory scratch;
  for (const TaskName name : {TaskName::steady_field, TaskName::graph_regression}) {
    for (const int meshes : {1, 3}) {
      Config config = target_config(scratch.path, {.train = meshes, .alone = true});
      config.task.name = name;
      const auto texts = test::task_warnings(Dataset::open(config.data.path), config, "data.targets");
      REQUIRE(texts.size() == (meshes == 1 ? 1 : 0));
      if (meshes > 1) continue;
      CHECK(contains(texts[0], "drag is "));
      CHECK(contains(texts[0], " in all of split train: nothing can be learned of it"));
      if (name != TaskName::steady_field) continue;
      const test::Outcome told =
          test::run_meshgrad({"check", test::write_config(scratch.path, config), "--json"});
      CHECK(contains(told.out, "as a target it says nothing of the model"));
    }
  }
}

}  // namespace
}  // namespace meshgrad
