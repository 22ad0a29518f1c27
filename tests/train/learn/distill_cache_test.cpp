// SPDX-License-Identifier: Apache-2.0
// The file of a teacher's predictions: students that read it, runs that stop while they write it or wait for
// it, and files that are not what they have to be.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "support.h"
#include "train/distill_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::kTasksOfStudents;
using test::last_checkpoint_of;
using test::message_of;
using test::ScratchDirectory;
using test::taught_config;
using test::tensors_of;

using Tensors = std::map<std::string, std::string>;

/// The weights and state after a run in FOLDER/NAME.
Tensors trained_in(Config config, const fs::path& folder, const char* name) {
  config.run.dir = (folder / name).string();
  test::train_here(config);
  return tensors_of(config);
}

/// Of a student without noise, whose cache is FOLDER/teacher.cache.
struct CachedStudent {
  ScratchDirectory scratch;
  Config config;
  explicit CachedStudent(TaskName task) : config(taught_config(scratch.path, task, false)) {
    if (task != TaskName::node_classification) config.train.batch = 3;
    config.distill.cache = (scratch.path / "teacher.cache").string();
  }
  fs::path cache() const { return config.distill.cache; }
  Config resident() const {
    Config other = config;
    other.distill.cache.clear();
    return other;
  }
  /// Files beside those of the test's own making that a writer could leave.
  size_t left() const {
    return static_cast<size_t>(std::count_if(
        fs::directory_iterator(scratch.path), fs::directory_iterator(), [](const fs::directory_entry& entry) {
          return entry.path().filename().string().find("teacher.cache") != std::string::npos;
        }));
  }
};

}  // namespace

TEST_CASE("a cached teacher teaches the same bits") {
  for (const TaskName task : kTasksOfStudents) {
    for (const DType precision : {DType::f32, DType::bf16}) {
      CAPTURE(name_of(task));
      CAPTURE(name_of(precision));
      CachedStudent student(task);
      student.config.precision = precision;
      const Tensors expected = trained_in(student.resident(), student.scratch.path, "resident");
      CHECK(trained_in(student.config, student.scratch.path, "cached") == expected);
      const auto written = fs::last_write_time(student.cache());
      CHECK(trained_in(student.config, student.scratch.path, "again") == expected);
      CHECK(fs::last_write_time(student.cache()) == written);
      student.config.distill.alpha = 0.0;
      CHECK(trained_in(student.config, student.scratch.path, "alone") != expected);
      CHECK(student.left() == 1);
    }
  }
}

TEST_CASE("a cached teacher is in no memory while a student trains") {
  CachedStudent student(TaskName::steady_field);
  Config alone = student.config;
  alone.distill = {};
  const auto parameters_of = [](Config config, const fs::path& dir) {
    config.run.dir = dir.string();
    Runtime runtime({.threads = 1});
    TrainOptions options;
    int64_t most = 0;
    options.observer.progress = [&](const TrainObserver::Progress&) {
      const auto stats = runtime.allocator().stats();
      most = std::max(most, stats.by_tag[static_cast<size_t>(Tag::parameters)].allocated.current);
    };
    train(runtime, config, options);
    return most;
  };
  const int64_t expected = parameters_of(alone, student.scratch.path / "alone");
  CHECK(parameters_of(student.config, student.scratch.path / "cached") == expected);
  CHECK(parameters_of(student.resident(), student.scratch.path / "resident") > 2 * expected);
}

TEST_CASE("resumed or on ranks, cached students keep their bits") {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    CachedStudent student(task);
    student.config.ranks.reduction = RankReduction::ordered;
    const Tensors expected = trained_in(student.resident(), student.scratch.path, "resident");
    Config config = student.config;
    config.run.dir = (student.scratch.path / "ranks").string();
    test::train_on_ranks(2, config);
    CHECK(tensors_of(config) == expected);
    CHECK(student.left() == 1);
    config.run.dir = (student.scratch.path / "pieces").string();
    fs::remove(student.cache());
    const auto exists = [&] { return fs::exists(student.cache()); };
    int64_t calls = 0;
    CHECK(test::train_here(config, false, [&] { return exists() && ++calls == 3; }).stopped);
    CHECK(test::train_here(config, true).state.step == config.train.steps);
    CHECK(tensors_of(config) == expected);
  }
}

TEST_CASE("a run that stops while it writes a cache leaves none") {
  CachedStudent student(TaskName::mesh_dynamics);
  Config& config = student.config;
  const Tensors expected = trained_in(student.resident(), student.scratch.path, "resident");
  for (int64_t asked = 1; asked <= 3; ++asked) {
    int64_t calls = 0;
    size_t most = 0;
    const TrainResult result = test::train_here(config, asked > 1, [&] {
      most = std::max(most, student.left());
      return ++calls >= asked;
    });
    CHECK(result.stopped);
    CHECK(result.state.step == 0);
    CHECK(most == (asked > 1 ? 1 : 0));
    CHECK(student.left() == 0);
  }
  test::train_here(config, true);
  CHECK(tensors_of(config) == expected);
}

TEST_CASE("a run waits for the process that writes its cache") {
  const CachedStudent student(TaskName::graph_classification);
  const Tensors expected = trained_in(student.config, student.scratch.path, "first");
  const std::string bytes = test::read_text(student.cache());
  fs::remove(student.cache());
  std::unique_ptr<AtomicFile> other = AtomicFile::sole(student.cache());
  REQUIRE(other != nullptr);
  Config config = student.config;
  config.run.dir = (student.scratch.path / "second").string();
  std::vector<std::string> told;
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) {
    if (event.kind != RunEventKind::teacher) return;
    told.push_back(event.text);
    CHECK(event.field("file") == config.distill.cache);
    if (!other || told.size() > 1) return;
    other->write(bytes);
    other->commit();
    other.reset();
  };
  Runtime runtime({.threads = 1});
  train(runtime, config, options);
  REQUIRE(told.size() == 1);
  CHECK(contains(told.front(), "which another process writes"));
  CHECK(tensors_of(config) == expected);
}

TEST_CASE("runs that start at once write one cache") {
  const CachedStudent student(TaskName::graph_classification);
  const Tensors expected = trained_in(student.resident(), student.scratch.path, "resident");
  std::vector<std::thread> threads;
  for (const char* name : {"a", "b", "c"})
    threads.emplace_back([&student, name] { trained_in(student.config, student.scratch.path, name); });
  for (std::thread& thread : threads) thread.join();
  for (const char* name : {"a", "b", "c"}) {
    Config config = student.config;
    config.run.dir = (student.scratch.path / name).string();
    CHECK(tensors_of(config) == expected);
  }
  CHECK(student.left() == 1);
}

TEST_CASE("a cache of something else is refused, and stays") {
  CachedStudent student(TaskName::steady_field);
  const fs::path& folder = student.scratch.path;
  trained_in(student.config, folder, "first");
  const std::string bytes = test::read_text(student.cache());
  int64_t number = 0;
  const auto refused = [&](const auto& change) {
    Config other = student.config;
    change(other);
    other.run.dir = (folder / std::to_string(++number)).string();
    const std::string message = message_of([&] { test::train_here(other); });
    if (!message.empty()) {
      CHECK(contains(message, "[" + student.cache().string() + "] needed "));
      CHECK(contains(message, "; fix: remove it, so that it is written anew, or name another file"));
    }
    return message;
  };
  CHECK(refused([](Config&) {}).empty());
  test::change_tensors(last_checkpoint_of({.run = {.dir = student.config.distill.teacher}}),
                       folder / "other.safetensors", [](const std::string&, auto& values) {
                         for (double& value : values) value *= 1.5;
                       });
  CHECK(contains(refused([&](Config& c) { c.distill.teacher = (folder / "other.safetensors").string(); }),
                 "needed predictions of the teacher "));
  CHECK(contains(refused([](Config& c) { c.data.train_split = "test"; }),
                 "needed predictions for the split test, got predictions for the split train"));
  CHECK(contains(refused([](Config& c) { c.precision = DType::bf16; }), "values in BF16, got "));
  fs::create_directory(folder / "mK");
  CHECK(contains(refused([&](Config& c) { c.data.path = test::pack_squares(folder / "mK", "").string(); }),
                 "needed predictions for data with the fingerprint "));
  CHECK(test::read_text(student.cache()) == bytes);
  const auto with = [&](const std::string& content) {
    test::write_bytes(student.cache(), std::as_bytes(std::span(content)));
    const std::string message = refused([](Config&) {});
    CHECK(test::read_text(student.cache()) == content);
    return message;
  };
  CHECK(contains(with(bytes.substr(0, bytes.size() - 100)), "or a file that was cut"));
  CHECK(contains(with(bytes.substr(0, 20)), "got 20 bytes of something else"));
  CHECK(contains(with(""), "got 0 bytes"));
  CHECK(contains(with(test::read_text(last_checkpoint_of({.run = {.dir = (folder / "first").string()}}))),
                 "needed a teacher's predictions, as a run with distill.cache writes them"));
  for (const size_t from_end : {1, 9, 400}) {
    std::string damaged = bytes;
    damaged[damaged.size() - from_end] ^= 4;
    CHECK(contains(with(damaged), "needed the checksum "));
  }
  CHECK(with(bytes).empty());
}

TEST_CASE("a teacher that gives no number is refused by its sample") {
  CachedStudent student(TaskName::graph_classification);
  const fs::path teacher = student.scratch.path / "huge.safetensors";
  test::change_tensors(last_checkpoint_of({.run = {.dir = student.config.distill.teacher}}), teacher,
                       [](const std::string& name, auto& values) {
                         if (name.starts_with("model.")) std::ranges::fill(values, 1e38);
                       });
  student.config.distill.teacher = teacher.string();
  const std::string message = message_of([&] { test::train_here(student.config); });
  CHECK(contains(message, "[" + student.config.data.path + ": frame 0 of "));
  CHECK(contains(message, "] needed finite predictions of the teacher " + teacher.string()));
  CHECK(contains(message, " in row 0, column 0; fix: look for bad values in that sample"));
  CHECK(student.left() == 0);
}

TEST_CASE("a cached teacher has normalisers of its own") {
  for (const NormalizeMode mode : {NormalizeMode::dataset, NormalizeMode::online}) {
    CachedStudent student(TaskName::mesh_dynamics);
    Config teacher = student.resident();
    teacher.distill = {};
    teacher.normalize.mode = NormalizeMode::none;
    teacher.run.dir = (student.scratch.path / "raw").string();
    test::train_here(teacher);
    student.config.distill.teacher = teacher.run.dir;
    student.config.normalize.mode = mode;
    student.config.normalize.warmup_steps = 1;
    Config resident = student.resident();
    resident.run.dir = (student.scratch.path / "resident").string();
    test::train_here(resident);
    test::train_here(student.config);
    const std::vector<double> expected = test::losses_of(resident.run.dir);
    const std::vector<double> losses = test::losses_of(student.config.run.dir);
    REQUIRE(losses.size() == expected.size());
    for (size_t i = mode == NormalizeMode::online ? 1 : 0; i < losses.size(); ++i)
      CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  }
}

TEST_CASE("parts of meshes read their rows of a cache") {
  const CachedStudent student(TaskName::mesh_dynamics);
  Config parts = student.config;
  parts.run.dir = (student.scratch.path / "parts").string();
  parts.ranks.partition = MeshPartition::rcb;
  CHECK(contains(message_of([&] { test::train_on_ranks(2, parts); }),
                 "[distill.cache] needed a file that is there where meshes are cut"));
  parts.run.dir = (student.scratch.path / "parts of a file").string();
  trained_in(student.config, student.scratch.path, "whole");
  test::train_on_ranks(2, parts);
  const std::vector<double> whole = test::losses_of(student.scratch.path / "whole");
  const std::vector<double> losses = test::losses_of(parts.run.dir);
  REQUIRE(losses.size() == whole.size());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(whole[i]).epsilon(2e-4));
}

TEST_CASE("a device reads a cache, captured too" * doctest::skip(cuda_devices().empty())) {
  for (const TaskName task : {TaskName::steady_field, TaskName::graph_classification}) {
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      CAPTURE(name_of(task));
      CachedStudent student(task);
      student.config.run.device = "cuda";
      student.config.graphs = graphs;
      const auto losses = [&](Config config, const char* name) {
        config.run.dir = (student.scratch.path / name).string();
        Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = config.memory});
        train(runtime, config, {});
        return test::losses_of(config.run.dir);
      };
      const std::vector<double> expected = losses(student.resident(), "resident");
      const std::vector<double> cached = losses(student.config, "cached");
      REQUIRE(cached.size() == expected.size());
      for (size_t i = 0; i < cached.size(); ++i)
        CHECK(cached[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a plan counts no cached teacher and writes no file") {
  const CachedStudent student(TaskName::steady_field);
  const auto plan = [](const Config& config) {
    return plan_memory(config, {.device_memory = int64_t{1} << 30});
  };
  const MemoryPlan resident = plan(student.resident()), cached = plan(student.config);
  CHECK(resident.budget.teacher > 0);
  CHECK(cached.budget.teacher == 0);
  CHECK(cached.step.live < resident.step.live);
  CHECK(cached.budget.fitting() >= resident.budget.fitting());
  CHECK(student.left() == 0);
}

TEST_CASE("a cache beside training noise is refused") {
  const auto refused = [](std::vector<std::string> settings) {
    settings.emplace_back("distill.cache=a.cache");
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(
      contains(refused({"distill.teacher=a", "train.noise=0.02"}),
               "[distill.cache] needed \"\" with train.noise, which is drawn anew for each use of a sample"));
  CHECK(refused({"distill.teacher=a", "train.noise=0"}).empty());
  CHECK(contains(refused({"train.noise=0"}), "[distill.cache] needed \"\" where distill.teacher is empty"));
}

}  // namespace meshgrad
