// SPDX-License-Identifier: Apache-2.0
// What the commands say of a graph without a mesh.
#include <doctest/doctest.h>

#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/graph_case.h"
#include "train/process.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
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
                                             {"rollout", config.run.dir, "--checkpoint", "last"}}) {
    CAPTURE(words.front());
    const Outcome refused = run_meshgrad(words);
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "[task.name] needed a task on meshes"));
  }
  const Outcome fresh = run_meshgrad({"predict", config.run.dir, config.data.path, "--checkpoint", "last"});
  CHECK(fresh.code == 2);
  CHECK(contains(fresh.err, "convert the new data, and name the packed file with --data"));
}

TEST_CASE("init writes a configuration for classes of nodes") {
  const test::ScratchDirectory scratch;
  const fs::path data = test::pack_rings(scratch.path);
  const Outcome init = run_meshgrad({"init", "--data", data.string()});
  CHECK(init.code == 0);
  const Config config = parse_config(init.out, "init");
  CHECK(config.task.name == TaskName::node_classification);
  CHECK(config.data.targets == std::vector<std::string>{"label"});
  CHECK(config.data.inputs == std::vector<std::string>{"x"});
}

TEST_CASE("new graphs are predicted without their targets") {
  const test::ScratchDirectory scratch;
  for (const TaskName name : {TaskName::graph_regression, TaskName::graph_classification}) {
    CAPTURE(name_of(name));
    const test::NpzArrays arrays = test::rich_graphs(40);
    const fs::path data = test::pack_graphs(scratch.path, arrays);
    Config config = test::graph_config(scratch.path, data, name);
    config.data.embed = {"id"};
    config.data.edge_inputs = {"pair", "e"};
    config.train.steps = 20;
    config.run.dir = (scratch.path / std::string(name_of(name))).string();
    REQUIRE(run_meshgrad({"train", test::write_config(scratch.path, config)}).code == 0);
    const auto predicted = [&](const fs::path& file, const std::string& folder) {
      const std::string to = (scratch.path / folder).string();
      const Outcome outcome = run_meshgrad({"predict", config.run.dir, "--checkpoint", "last", "--data",
                                            file.string(), "--split", "test", "-o", to});
      CHECK(outcome.code == 0);
      const std::string csv = test::read_text(fs::path(to) / "predictions.csv");
      return csv.substr(csv.find('\n'));  // the first line names the data
    };
    const std::string known = predicted(data, "known");
    CHECK(contains(known, name == TaskName::graph_regression ? "graph,total" : "graph,class,p0,p1"));
    const fs::path folder = scratch.path / ("new_" + std::string(name_of(name)));
    fs::create_directories(folder);
    test::NpzArrays fresh = arrays;
    fresh.erase("graph:total");
    fresh.erase("graph:label");
    CHECK(predicted(test::pack_graphs(folder, fresh), "fresh") == known);
    fresh.erase("node:x");
    fresh["node:y"] = arrays.at("node:x");
    fresh["graph:x"] = test::npy<float>("<f4", "(40,)", std::vector<float>(40));
    const Outcome refused = run_meshgrad({"predict", config.run.dir, "--checkpoint", "last", "--data",
                                          test::pack_graphs(folder, fresh).string(), "--split", "test"});
    CHECK(refused.code != 0);
    CHECK(contains(refused.err,
                   "x] needed an f32 field of 1 components on nodes, got f32 of 1 components on graphs"));
  }
}

TEST_CASE("nodes of a new graph are predicted without their classes") {
  const test::ScratchDirectory scratch;
  const fs::path data = test::pack_rings(scratch.path);
  Config config = test::class_config(scratch.path, data);
  config.train.steps = 20;
  REQUIRE(run_meshgrad({"train", test::write_config(scratch.path, config)}).code == 0);
  test::NpzArrays fresh{{"edges", test::npy<int32_t>("<i4", "(3, 2)", {0, 1, 1, 2, 2, 0})},
                        {"node:x", test::npy<float>("<f4", "(3, 2)", {1, 0, 1, 0, 1, 0})}};
  const fs::path folder = scratch.path / "new";
  fs::create_directories(folder);
  const Outcome predicted =
      run_meshgrad({"predict", config.run.dir, "--checkpoint", "last", "--data",
                    test::pack_graph(folder, fresh).string(), "-o", (scratch.path / "out").string()});
  CHECK(predicted.code == 0);
  const std::string csv = test::read_text(scratch.path / "out" / "predictions.csv");
  CHECK(contains(csv, "node,class,p0,p1\n0,1,"));
  CHECK(std::ranges::count(csv, '\n') == 5);
  const Outcome refused = run_meshgrad({"predict", config.run.dir, "--checkpoint", "last", "--data",
                                        (folder / "graph.mgd").string(), "--split", "test"});
  CHECK(refused.code != 0);
  CHECK(contains(refused.err,
                 "[--split] needed nodes with classes, of which a split has a part, got no field label"));
}

TEST_CASE("graphs with labels pass through all commands") {
  const test::ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(40));
  const std::string file = (scratch.path / "graphs.toml").string();
  const Outcome init = run_meshgrad({"init", "--data", data.string(), "-o", file});
  CHECK(init.code == 0);
  const std::string dir = (scratch.path / "run").string();
  const Config config = load_config(file);
  CHECK(config.task.name == TaskName::graph_classification);
  CHECK(config.data.targets == std::vector<std::string>{"label"});
  const std::vector<std::string> settings{
      "--set", "run.dir=" + dir, "--set", "train.steps=3",          "--set", "model.pool=max",
      "--set", "model.width=8",  "--set", "train.validate_every=1", "--set", "loss.class_weights=balanced"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), settings.begin(), settings.end());
    return run_meshgrad(words);
  };
  const Outcome checked = with({"check", file});
  CHECK(checked.code == 0);
  CHECK(contains(checked.out, "outputs   2: class of label [2]"));
  CHECK(contains(with({"plan", file, "--device-memory", "1GiB"}).out, "fits"));
  CHECK(with({"train", file}).code == 0);
  const Outcome evaluated =
      run_meshgrad({"evaluate", dir, "--checkpoint", "last", "--split", "valid", "--json"});
  CHECK(evaluated.code == 0);
  const nlohmann::json json = nlohmann::json::parse(evaluated.out);
  CHECK(json.at("metrics").at("graphs") == 8.0);
  for (const char* name : {"balanced accuracy", "F1", "Matthews", "AUC", "average precision"})
    CHECK(json.at("metrics").contains(name));
  CHECK(json.at("confusion").size() == 2);
  CHECK(contains(run_meshgrad({"evaluate", dir, "--checkpoint", "last", "--split", "valid"}).out,
                 "label on split valid: 8 graphs"));
  const Outcome predicted =
      run_meshgrad({"predict", dir, "--checkpoint", "last", "--split", "valid", "-o", dir + "/out"});
  CHECK(predicted.code == 0);
  CHECK(contains(predicted.out, "8 graphs of split valid in"));
  const std::string csv = test::read_text(dir + "/out/predictions.csv");
  CHECK(contains(csv, "\ngraph,class,p0,p1\n0,"));
  CHECK(std::ranges::count(csv, '\n') == 2 + 8);
  CHECK(fs::exists(dir + "/out/predictions.npz"));
  const std::string report = (scratch.path / "report.html").string();
  CHECK(run_meshgrad({"report", dir, "-o", report}).code == 0);
  CHECK(run_meshgrad({"rollout", dir, "--checkpoint", "last"}).code == 2);
}

TEST_CASE("init takes targets that are named, and says candidates") {
  const test::ScratchDirectory scratch;
  const fs::path data = test::pack_graphs(scratch.path, test::small_graphs(10));
  const Outcome low =
      run_meshgrad({"init", "--data", data.string(), "--targets", "total", "--preset", "low-memory"});
  CHECK(parse_config(low.out, "init").train.batch == 1);  // the preset's
  const Outcome init = run_meshgrad({"init", "--data", data.string(), "--targets", "total"});
  CHECK(init.code == 0);
  CHECK(parse_config(init.out, "init").task.name == TaskName::graph_regression);
  test::NpzArrays without = test::small_graphs(10);
  without["graph:other"] = without["graph:total"];
  without.erase("graph:label");
  test::pack_graphs(scratch.path, without);
  const Outcome unsure = run_meshgrad({"init", "--data", data.string()});
  CHECK(unsure.code == 2);
  CHECK(contains(unsure.err, "[data.targets] needed one field on graphs to predict, got other, total"));
}

}  // namespace
}  // namespace meshgrad
