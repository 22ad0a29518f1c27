// SPDX-License-Identifier: Apache-2.0
// Runs with a curriculum: resumed after a stop or a kill at any stage, on ranks, scored by another model, and
// their errors.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/score_file.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "support.h"
#include "train/graph_case.h"
#include "train/process.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::Process;
using test::ScratchDirectory;

/// 60 epochs of graphs in two classes, or 6 of frames of meshes, are a few seconds.
Config curriculum_config(const fs::path& folder, TaskName task) {
  Config config = task == TaskName::mesh_dynamics
                      ? test::small_config(folder, test::pack_waves(folder))
                      : test::graph_config(folder, test::pack_graphs(folder, test::small_graphs(60)), task);
  config.train.epochs = 6;
  config.train.batch = 3;
  config.train.accumulate = 2;
  config.train.validate_every = 7;
  config.train.checkpoint_every = 3;
  config.train.log_every = 1;
  config.curriculum.score = CurriculumScore::loss;
  config.curriculum.chunk = 7;
  config.curriculum.refresh_epochs = 2;
  config.curriculum.percentile = {40, 80};
  config.curriculum.ratio = {0.5, 2};
  return config;
}

fs::path scores_of(const Config& config, int64_t epochs) {
  return fs::path(config.run.dir) / "curriculum" / fmt::format("scores-{:06}.safetensors", epochs);
}

/// Weights, optimizer and all scores.
std::map<std::string, std::string> results_of(const Config& config) {
  std::map<std::string, std::string> results = test::tensors_of(config);
  for (const int64_t epochs : {0, 2, 4})
    results[fmt::format("scores {}", epochs)] = test::read_text(scores_of(config, epochs));
  const fs::path last = fs::path(config.run.dir) / "checkpoints/last.safetensors";
  results["hashes"] = open_checkpoint(last).view().metadata_at(kScoresKey);
  return results;
}

std::vector<RunEvent> events_of(const Config& config) {
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
  TrainOptions options;
  std::vector<RunEvent> events;
  options.observer.event = [&](const RunEvent& event) { events.push_back(event); };
  train(runtime, config, options);
  return events;
}

constexpr TaskName kDrawnTasks[] = {TaskName::graph_classification, TaskName::graph_regression,
                                    TaskName::mesh_dynamics};

}  // namespace

TEST_CASE("a curriculum resumes to the same bits at any stage") {
  for (const TaskName task : kDrawnTasks) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = curriculum_config(scratch.path, task);
    config.run.dir = (scratch.path / "whole").string();
    int64_t calls = 0;
    test::train_here(config, false, [&] { return ++calls == 0; });
    const auto whole = results_of(config);
    CHECK(whole.at("scores 0") != whole.at("scores 4"));
    const int64_t most = calls;
    REQUIRE(most > 60);
    std::set<int64_t> stops;  // the first ones within the first scoring
    for (int64_t at = 1; at < most; at += at < 6 ? 1 : most / 12) stops.insert(at);
    config.run.dir = (scratch.path / "pieces").string();
    calls = 0;
    int64_t pieces = 1;
    const auto stop = [&] { return stops.contains(++calls); };
    for (TrainResult result = test::train_here(config, false, stop); result.stopped; ++pieces)
      result = test::train_here(config, true, stop, 1 + static_cast<int>(pieces % 2));
    CHECK(pieces > 10);
    CHECK(results_of(config) == whole);
  }
}

TEST_CASE("a killed curriculum goes on to the same bits") {
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::graph_classification);
  config.run.threads = 1;
  config.train.checkpoint_every = 1;
  config.run.dir = (scratch.path / "whole").string();
  test::train_here(config);
  const auto whole = results_of(config);
  config.run.dir = (scratch.path / "killed").string();
  const std::string file = test::write_config(scratch.path, config);
  int64_t kills = 0;
  for (const int64_t epochs : {0, 2, 4}) {  // at once when scores are there, and a little later
    for (const int milliseconds : {0, 15}) {
      std::vector<std::string> arguments{"train", file};
      if (fs::exists(fs::path(config.run.dir) / "checkpoints/last.safetensors"))
        arguments.emplace_back("--resume");
      fs::remove(scores_of(config, epochs));
      Process process(arguments);
      while (process.running() && !fs::exists(scores_of(config, epochs)))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      process.send(SIGKILL);
      kills += process.wait().code == -SIGKILL ? 1 : 0;
      if (kills == 0) MESSAGE(process.err_so_far());
    }
  }
  CHECK(kills > 2);
  const test::Outcome outcome = Process({"train", file, "--resume"}).wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(results_of(config) == whole);
}

TEST_CASE("ranks draw and score the samples of one") {
  for (const TaskName task : kDrawnTasks) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = curriculum_config(scratch.path, task);
    config.ranks.reduction = RankReduction::ordered;
    config.run.dir = (scratch.path / "one").string();
    test::train_here(config);
    const auto one = results_of(config);
    for (const int ranks : {2, 3}) {
      config.run.dir = (scratch.path / std::to_string(ranks)).string();
      test::train_on_ranks(ranks, config);
      CHECK(results_of(config) == one);
    }
  }
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::mesh_dynamics);
  config.run.dir = (scratch.path / "whole").string();
  test::train_here(config);
  const auto scores = [&] { return to_f64(SafetensorsFile(scores_of(config, 0)).at("scores")); };
  const std::vector<double> whole = scores();
  config.run.dir = (scratch.path / "parts").string();
  config.ranks.partition = MeshPartition::rcb;
  test::train_on_ranks(2, config);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(scores()[i] == doctest::Approx(whole[i]).epsilon(1e-4));
}

TEST_CASE("scores are the losses of single samples") {
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::graph_classification);
  test::train_here(config);
  const auto scores = to_f64(SafetensorsFile(scores_of(config, 0)).at("scores"));
  Config alone = config;
  alone.run.dir = (scratch.path / "alone").string();
  alone.data.valid_split = "train";
  alone.train.validate_every = 1;
  test::train_here(alone);
  double mean = 0.0;
  for (const double score : scores) mean += score / static_cast<double>(scores.size());
  CHECK(test::validations_of(alone).at(0).at("valid_loss") == doctest::Approx(mean).epsilon(1e-6));
}

TEST_CASE("memory is the same after each chunk of scores") {
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::graph_regression);
  config.curriculum.chunk = 4;
  std::map<int64_t, std::set<int64_t>> memory;  // by step
  int64_t chunks = 0, scorings = 0;
  for (const RunEvent& event : events_of(config)) {
    if (event.kind != RunEventKind::scores) continue;
    for (const auto& [name, value] : event.fields)
      if (name == "memory_now") memory[event.step].insert(std::get<int64_t>(value));
    (event.field("file").empty() ? chunks : scorings) += 1;
  }
  CHECK(scorings == 3);
  CHECK(chunks == 3 * 8);  // but the last
  for (const auto& [step, bytes] : memory) CHECK(bytes.size() == 1);
}

TEST_CASE("the largest batch bounds those of a curriculum") {
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::graph_regression);
  config.curriculum.percentile = {90, 90};
  config.curriculum.ratio = {0.5, 0.5};  // epochs of the 4 largest graphs and 2 others
  config.curriculum.refresh_epochs = config.train.epochs = 40;
  const Task task = make_task(config, Dataset::open(config.data.path));
  for (const int64_t batch : {2, 5, 10, 30}) {
    CAPTURE(batch);
    config.train.batch = batch;
    config.train.accumulate = 1;
    BatchOrder order(config, task);
    std::vector<float> nodes;
    for (int64_t i = 0; i < order.sampler().samples(); ++i)
      nodes.push_back(static_cast<float>(task.shape("train", {task.samples("train").at(i)}).nodes));
    order.curriculum()->add_scores(nodes, "0");
    REQUIRE(order.sampler().begin_of(1) == 6);
    const BatchShape most = largest_batch(config, task);
    for (int64_t at = 0; at + batch <= order.sampler().begin_of(40); at += batch) {
      std::vector<Sample> samples;
      for (int64_t i = 0; i < batch; ++i) samples.push_back(order.sampler().at(at + i));
      REQUIRE(most.holds(task.shape("train", samples)));
    }
  }
}

TEST_CASE("another model scores once") {
  const ScratchDirectory scratch;
  Config scorer = curriculum_config(scratch.path, TaskName::graph_classification);
  Config config = scorer;
  scorer.curriculum = {};
  scorer.train.epochs = 3;
  scorer.model.width *= 2;
  scorer.run.dir = (scratch.path / "scorer").string();
  test::train_here(scorer);
  config.curriculum.score = CurriculumScore::model;
  config.curriculum.model = scorer.run.dir;
  config.curriculum.refresh_epochs = CurriculumConfig().refresh_epochs;
  config.run.dir = (scratch.path / "whole").string();
  test::train_here(config);
  const auto whole = test::tensors_of(config);
  const std::string scores = test::read_text(scores_of(config, 0));
  CHECK(!fs::exists(scores_of(config, 2)));
  config.run.dir = (scratch.path / "pieces").string();
  int64_t calls = 0;
  CHECK(test::train_here(config, false, [&] { return ++calls == 2; }).state.step ==
        0);  // scores are half made
  CHECK(!fs::exists(scores_of(config, 0)));
  const fs::path best = fs::path(scorer.run.dir) / "checkpoints/best.safetensors";
  const std::string model = test::read_text(best);
  test::change_tensors(best, best, [](const std::string&, std::vector<double>& values) {
    for (double& value : values) value *= 0.5;
  });
  CHECK(contains(message_of([&] { test::train_here(config, true); }),
                 ", with which the run began to score its samples, got the model "));
  test::write_bytes(best, std::as_bytes(std::span(model)));
  CHECK(test::train_here(config, true, [&] { return ++calls == 20; }).stopped);
  fs::remove_all(scorer.run.dir);  // it has done its work
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == whole);
  CHECK(test::read_text(scores_of(config, 0)) == scores);
}

TEST_CASE("scoring models that do not fit are refused") {
  const ScratchDirectory scratch;
  Config scorer = curriculum_config(scratch.path, TaskName::graph_classification);
  Config config = scorer;
  scorer.curriculum = {};
  scorer.train.epochs = 1;
  config.curriculum.score = CurriculumScore::model;
  config.curriculum.refresh_epochs = CurriculumConfig().refresh_epochs;
  config.run.dir = (scratch.path / "refused").string();
  const auto refused = [&](const fs::path& model) {
    config.curriculum.model = model.string();
    fs::remove_all(config.run.dir);
    return message_of([&] { test::train_here(config); });
  };
  const auto scored_by = [&](const char* name, const auto& change) {
    Config other = scorer;
    change(other);
    other.run.dir = (scratch.path / name).string();
    test::train_here(other);
    return refused(other.run.dir);
  };
  CHECK(contains(refused("nowhere"),
                 "[curriculum.model] needed a checkpoint, or the folder of a run, got \"nowhere\""));
  CHECK(
      contains(scored_by("task",
                         [](Config& c) {
                           c.task.name = TaskName::graph_regression;
                           c.data.targets = {"total"};
                         }),
               "[curriculum.model] needed a model with task.name = \"graph_classification\", as this run has "
               "it, got task.name = \"graph_regression\" in "));
  CHECK(contains(scored_by("fields", [](Config& c) { c.data.node_types = 3; }),
                 "[curriculum.model] needed a model with data.node_types = 9"));
  CHECK(!fs::exists(config.run.dir));
  CHECK(scored_by("fits", [](Config&) {}).empty());
  const fs::path wild = scratch.path / "wild.safetensors";
  test::change_tensors(scratch.path / "fits/checkpoints/last.safetensors", wild,
                       [](const std::string& name, std::vector<double>& values) {
                         if (name.starts_with("model."))
                           for (double& value : values) value *= 1e38;
                       });
  const std::string message = refused(wild);
  CAPTURE(message);
  CHECK(contains(message, "[curriculum.score] needed a finite score of each sample by "));
  CHECK(contains(message, " of sample 0 (frame 0 of "));
  CHECK(contains(message, "; fix: look for bad values in these samples, or name another curriculum.model"));
}

TEST_CASE("a curriculum resumes with its own scores alone") {
  const ScratchDirectory scratch;
  Config config = curriculum_config(scratch.path, TaskName::graph_classification);
  int64_t calls = 0;
  const auto refused = [&] {
    return message_of([&] { test::train_here(config, true, [&] { return true; }); });
  };
  CHECK(test::train_here(config, false, [&] { return ++calls == 40; }).stopped);
  CHECK(refused().empty());
  const std::string scores = test::read_text(scores_of(config, 0));
  const auto hash = [&] {
    return open_checkpoint(fs::path(config.run.dir) / "checkpoints/last.safetensors")
        .view()
        .metadata_at(kScoresKey);
  };
  CHECK(contains(hash(), write_scores(scratch.path / "other", std::vector<float>(36, 1.0f), "train")) ==
        false);
  write_scores(scores_of(config, 0), std::vector<float>(36, 1.0f), "train");
  CHECK(contains(refused(), "scores-000000.safetensors] needed scores of the hash " + hash().substr(0, 16)));
  fs::remove(scores_of(config, 0));
  CHECK(contains(refused(), "got no such file"));
  test::write_bytes(scores_of(config, 0), std::as_bytes(std::span(scores)));
  CHECK(refused().empty());
  Config changed = config;
  for (const auto& change :
       {+[](Config& c) { c.train.epochs = 7; }, +[](Config& c) { c.curriculum.chunk = 8; },
        +[](Config& c) { c.curriculum = {}; }}) {
    config = changed;
    change(config);
    CHECK(contains(refused(), ", with which "));
  }
}

TEST_CASE("a device draws as a curriculum has it" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  const Config config = curriculum_config(scratch.path, TaskName::graph_classification);
  test::check_trains_on_device(config);
}

}  // namespace meshgrad
