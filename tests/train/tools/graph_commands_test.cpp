// SPDX-License-Identifier: Apache-2.0
// What the commands say of a graph without a mesh.
#include <doctest/doctest.h>

#include "support.h"
#include "train/graph_case.h"
#include "train/process.h"

namespace meshgrad {
namespace {

using test::contains;
using test::Outcome;
using test::run_meshgrad;

TEST_CASE("a graph with classes passes through all commands") {
  const test::ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.train.steps = 2;
  const std::string file = test::write_config(scratch.path, config);
  const Outcome checked = run_meshgrad({"check", file});
  CHECK(checked.code == 0);
  CHECK(contains(checked.out, "outputs   2: class of label [2]"));
  CHECK_FALSE(contains(checked.out, "there is no other split"));  // nodes are divided, not graphs
  const Outcome planned = run_meshgrad({"plan", file, "--device-memory", "1GiB"});
  CHECK(planned.code == 0);
  CHECK(contains(planned.out, "a step of batch 1 fits"));
  CHECK(run_meshgrad({"train", file}).code == 0);
  const Outcome evaluated =
      run_meshgrad({"evaluate", config.run.dir, "--checkpoint", "last", "--split", "test"});
  CHECK(evaluated.code == 0);
  CHECK(contains(evaluated.out, "accuracy of the most frequent class"));
  const std::string report = (scratch.path / "report.html").string();
  CHECK(run_meshgrad({"report", config.run.dir, "-o", report}).code == 0);
  CHECK(contains(test::read_text(report), "node_classification"));
}

TEST_CASE("commands that need a mesh refuse a graph, with the key") {
  const test::ScratchDirectory scratch;
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.train.steps = 1;
  const std::string file = test::write_config(scratch.path, config);
  REQUIRE(run_meshgrad({"train", file}).code == 0);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"plan", file, "--nodes", "100", "--edges", "600"},
                                             {"rollout", config.run.dir, "--checkpoint", "last"},
                                             {"predict", config.run.dir, "--checkpoint", "last"}}) {
    CAPTURE(words.front());
    const Outcome refused = run_meshgrad(words);
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "[task.name] needed a task on meshes"));
  }
  const Outcome init = run_meshgrad({"init", "--data", config.data.path});
  CHECK(init.code == 2);
  CHECK(contains(init.err, "[task.name] needed data of meshes"));
}

}  // namespace
}  // namespace meshgrad
