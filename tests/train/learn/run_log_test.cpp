// SPDX-License-Identifier: Apache-2.0
// What a run says about itself, and about paths that lead nowhere.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/optimizer.h>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

TEST_CASE("a run's data is found from any folder") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.run.dir = "runs/a";
  config.data.path = "waves.mgd";
  config.train.steps = 1;
  config.train.validate_every = 0;
  test::write_config(scratch.path, config);
  const auto in_folder = [](const fs::path& folder, const std::string& arguments) {
    return test::Process({"-c", "cd " + folder.string() + " && exec " +
                                    fs::absolute(test::program()).string() + " " + arguments},
                         "/bin/sh")
        .wait();
  };
  REQUIRE(in_folder(scratch.path, "train config.toml -q").code == 0);
  for (const char* folder : {".", "runs", "runs/a/checkpoints"}) {
    const std::string run = (scratch.path / "runs/a").string();
    const test::Outcome outcome = in_folder(scratch.path / folder, "evaluate -q --checkpoint last " + run);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
  }
  CHECK(in_folder(scratch.path / "runs", "evaluate -q --checkpoint last a").code == 0);
  // Moved, there is nothing to go by.
  fs::rename(scratch.path / "runs/a", scratch.path / "b");
  const test::Outcome lost = in_folder("/", "evaluate -q --checkpoint last " + (scratch.path / "b").string());
  CHECK(lost.code == 1);
  CHECK_MESSAGE(contains(lost.err,
                         "[waves.mgd] needed the run's data set, at a path relative to the folder that train "
                         "ran in, got none in /; fix: name the packed file with --data"),
                lost.err);
}

TEST_CASE("a run says its schedule at the start") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 2;
  config.train.validate_every = 0;
  const auto file = test::write_config(scratch.path, config);
  const test::Outcome first = test::run_meshgrad({"train", file});
  CHECK_MESSAGE(
      contains(first.err, "meshgrad: learning rate 0.002, then exponential decay to 0.0001 at step 2\n"),
      first.err);
  CHECK_FALSE(contains(first.err, "nothing to do"));
  CHECK(contains(first.out, "step time"));
  const test::Outcome again = test::run_meshgrad({"train", file, "--resume"});
  CHECK(again.code == 0);
  CHECK_MESSAGE(contains(again.err, "nothing to do: the run has all its 2 steps; raise train.steps to go on"),
                again.err);
  CHECK_FALSE(contains(again.err, "learning rate"));
  CHECK_FALSE(contains(again.out, "step time"));
}

TEST_CASE("a loss curve that cannot be written is refused at once") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  fs::create_directories(fs::path(config.run.dir) / "loss.svg");
  const test::Outcome outcome = test::run_meshgrad({"train", test::write_config(scratch.path, config)});
  CHECK(outcome.code != 0);
  CHECK(contains(outcome.err, config.run.dir + "/loss.svg"));
  CHECK_FALSE(fs::exists(fs::path(config.run.dir) / "metrics.jsonl"));
}

TEST_CASE("a schedule in words") {
  ScheduleConfig schedule;
  schedule.name = RateCurve::constant;
  CHECK(describe_schedule(learning_rate(schedule, 1e-3, 100)) == "learning rate 0.001, constant");
  schedule.name = RateCurve::cosine;
  schedule.warmup_steps = 10;
  schedule.final_lr = 1e-6;
  CHECK(describe_schedule(learning_rate(schedule, 1e-3, 100)) ==
        "learning rate rises to 0.001 at step 10, then cosine decay to 1e-06 at step 100");
  schedule.decay_steps = 50;
  CHECK(describe_schedule(learning_rate(schedule, 1e-3, 100)).ends_with("at step 60"));
  schedule.restart_every = 20;
  schedule.restart_growth = 2;
  CHECK(describe_schedule(learning_rate(schedule, 1e-3, 100))
            .ends_with(
                ", then cosine decay to 1e-06 and again from 0.001 after 20 steps, each cycle 2 times as "
                "long"));
  schedule = {.name = RateCurve::step, .final_lr = 1e-6, .step_every = 30, .step_factor = 0.5};
  CHECK(describe_schedule(learning_rate(schedule, 1e-3, 100)) ==
        "learning rate 0.001, then times 0.5 every 30 steps, not below 1e-06");
}

TEST_CASE("verify names the layout that it reads") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  const auto checkpoint = test::train_here(config).checkpoint;
  const test::Outcome outcome = test::run_meshgrad({"verify", checkpoint.string()});
  CHECK(outcome.code == 1);
  CHECK_MESSAGE(contains(outcome.err, "needed reference values of a MeshGraphNet: tensors in.* (the batch)"),
                outcome.err);
  CHECK(contains(outcome.err,
                 "got a file without in.node_features; fix: docs/precision.md describes the file"));
}

}  // namespace
}  // namespace meshgrad
