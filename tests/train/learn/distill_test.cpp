// SPDX-License-Identifier: Apache-2.0
// Students of a trained model: what a share of 0 and of 1 comes to, other normalisers, runs, and errors.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/planning/plan.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <fmt/format.h>

#include <algorithm>

#include "support.h"
#include "train/distill_case.h"
#include "train/graph_target_case.h"
#include "train/world_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::config_of;
using test::contains;
using test::kTasksOfStudents;
using test::last_checkpoint_of;
using test::message_of;
using test::ScratchDirectory;
using test::taught_config;

std::map<std::string, std::string> weights_of(const Config& config) {
  std::map<std::string, std::string> weights = test::tensors_of(config);
  std::erase_if(weights, [](const auto& tensor) { return !tensor.first.starts_with("model."); });
  return weights;
}

}  // namespace

TEST_CASE("a teacher without a share changes no bit") {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = taught_config(scratch.path, task);
    config.distill.alpha = 0.0;
    test::train_here(config);
    const auto taught = test::tensors_of(config);
    config.run.dir = (scratch.path / "alone").string();
    config.distill = {};
    test::train_here(config);
    CHECK(test::tensors_of(config) == taught);
    config.run.dir = (scratch.path / "shared").string();
    config.distill.teacher = (scratch.path / "teacher").string();
    test::train_here(config);
    CHECK(test::tensors_of(config) != taught);
  }
}

TEST_CASE("a student that equals its teacher has nothing to learn") {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = taught_config(scratch.path, task);
    config.model.width *= 2;
    config.train.init = last_checkpoint_of({.run = {.dir = config.distill.teacher}}).string();
    config.distill.teacher = config.train.init;
    config.distill.alpha = 1.0;
    config.train.validate_every = 0;
    test::train_here(config);
    for (const double loss : test::losses_of(config.run.dir)) CHECK(loss == 0.0);
    Config teacher = config;
    teacher.run.dir = (scratch.path / "teacher").string();
    CHECK(weights_of(config) == weights_of(teacher));
  }
}

/// What a teacher with normalisers of its own gives in the student's batch, beside what it gives in its own
/// batch, both in physical units: the largest difference, in standard deviations.
double difference_in_units(Config config, Config teacher) {
  teacher.run.dir = fmt::format("{}-{}", config.run.dir, name_of(config.precision));
  test::train_here(teacher);
  config.distill.teacher = last_checkpoint_of(teacher).string();
  Runtime runtime({.threads = 1});
  const Task task = make_taught_task(runtime, config, Dataset::open(config.data.path));
  Normalizers student = first_normalizers(config, task), own = task.online_normalizers();
  Model model = make_model(runtime, teacher, task.sizes());
  load_weights(last_checkpoint_of(teacher), runtime.stream(), model.parameters, &own);
  const std::vector<Sample> samples{task.samples("train").at(1), task.samples("train").at(3)};
  const NoiseOptions noise = noise_of(config);
  const Batch batch = training_batch(task, runtime, config.precision, "train", samples, noise, student);
  const Task plain = make_task(teacher, Dataset::open(config.data.path));
  const Batch alone = training_batch(plain, runtime, config.precision, "train", samples, noise, own);
  if (task.find_mesh() != nullptr) {
    task.mesh().world.find(runtime, batch);
    plain.mesh().world.find(runtime, alone);
  }
  Tape tape(runtime, Tape::Mode::evaluate);
  const auto wide = [](const Tensor& tensor) { return values_of(tensor); };
  std::vector<double> expected = wide(forward(model, tape, alone.graph).front().value());
  std::vector<double> got = wide(task.teacher()->predict(runtime, batch).values);
  CHECK(batch.has("teacher.nodes.scale"));
  if (own.targets.width() > 0) {
    own.targets.denormalize(std::span(expected));
    student.targets.denormalize(std::span(got));
  }
  double largest = 0.0;
  const bool masked = own.targets.width() > 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (masked && batch.tensor("mask").data<uint8_t>()[i / own.targets.width()] == 0) continue;
    const double unit =
        own.targets.width() > 0 ? own.targets.standard_deviation(i % own.targets.width()) : 1.0;
    largest = std::max(largest, std::abs(got[i] - expected[i]) / unit);
  }
  CHECK(got.size() == expected.size());
  return largest;
}

TEST_CASE("a teacher reads and gives values in units of its own") {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = config_of(scratch.path, task);
    Config teacher = config;
    teacher.normalize.mode = NormalizeMode::none;
    CHECK(difference_in_units(config, teacher) < 1e-4);
    config.precision = teacher.precision = DType::bf16;
    CHECK(difference_in_units(config, teacher) < 0.1);
  }
  const test::Moving moving("plate");
  Config config = test::world_run(moving);
  config.train.steps = 4;
  config.train.validate_every = 0;
  Config teacher = config;
  teacher.normalize.mode = NormalizeMode::online;
  teacher.normalize.warmup_steps = 1;
  CHECK(difference_in_units(config, teacher) < 1e-4);
}

TEST_CASE("a student learns classes from its teacher alone") {
  const ScratchDirectory scratch;
  Config teacher = config_of(scratch.path, TaskName::graph_classification, 200);
  teacher.model.width = 16;
  teacher.train.steps = 200;
  teacher.run.dir = (scratch.path / "teacher").string();
  test::train_here(teacher);
  Config student = teacher;
  student.run.dir = (scratch.path / "student").string();
  student.model.width = 8;
  student.model.blocks = 1;
  student.distill.teacher = teacher.run.dir;
  student.distill.alpha = 1.0;
  student.train.steps = 400;
  test::train_here(student);
  Runtime runtime({.threads = 1});
  const auto accuracy = [&](const Config& config) {
    const Evaluation result = evaluate(Predictor(runtime, last_checkpoint_of(config)), {.split = "test"});
    CHECK(result.metrics.at(0).name == "accuracy");
    return result.metrics.at(0).value;
  };
  const double taught = accuracy(teacher);
  fs::remove_all(teacher.run.dir);  // a student's checkpoint is one like others
  CHECK(taught >= 0.9);
  CHECK(accuracy(student) >= 0.8);  // half of the graphs are of a class
}

TEST_CASE("resumed or on ranks, students keep their bits") {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = taught_config(scratch.path, task);
    config.ranks.reduction = RankReduction::ordered;
    config.normalize.mode = NormalizeMode::online;
    config.normalize.warmup_steps = 1;
    config.train.batch = task == TaskName::node_classification ? 1 : 3;
    config.run.dir = (scratch.path / "whole").string();
    test::train_here(config);
    const auto whole = test::tensors_of(config);
    config.run.dir = (scratch.path / "pieces").string();
    int64_t calls = 0;
    test::train_here(config, false, [&] { return ++calls == 4; });
    CHECK(test::train_here(config, true, nullptr, 3).state.step == config.train.steps);
    CHECK(test::tensors_of(config) == whole);
    config.run.dir = (scratch.path / "ranks").string();
    test::train_on_ranks(2, config);
    CHECK(test::tensors_of(config) == whole);
    config.run.dir = (scratch.path / "recomputed").string();
    config.recompute.mode = RecomputeMode::block;
    config.recompute.include = {"*"};
    test::train_here(config);
    CHECK(test::tensors_of(config) == whole);
  }
}

TEST_CASE("parts of meshes on ranks have a teacher too") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::mesh_dynamics);
  test::train_here(config);
  const std::vector<double> whole = test::losses_of(config.run.dir);
  config.run.dir = (scratch.path / "parts").string();
  config.ranks.partition = MeshPartition::rcb;
  test::train_on_ranks(2, config);
  const std::vector<double> parts = test::losses_of(config.run.dir);
  REQUIRE(parts.size() == whole.size());
  for (size_t i = 0; i < parts.size(); ++i) CHECK(parts[i] == doctest::Approx(whole[i]).epsilon(2e-4));
}

TEST_CASE("a run resumes with the teacher that it had") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::steady_field);
  const fs::path teacher = last_checkpoint_of({.run = {.dir = config.distill.teacher}});
  config.distill.teacher = (scratch.path / "moved.safetensors").string();
  fs::copy_file(teacher, config.distill.teacher);
  test::train_here(config);
  const auto resumed = [&] { return message_of([&] { test::train_here(config, true); }); };
  config.train.steps += 2;
  CHECK(resumed().empty());
  config.train.steps += 2;
  config.distill.teacher = teacher.string();  // the same bytes
  CHECK(resumed().empty());
  test::change_tensors(teacher, scratch.path / "other.safetensors", [](const std::string&, auto& values) {
    for (double& value : values) value *= 1.5;
  });
  config.distill.teacher = (scratch.path / "other.safetensors").string();
  CHECK(contains(resumed(), "[distill.teacher] needed the teacher "));
  config.distill.teacher = "";
  CHECK(contains(resumed(), "with which"));
  CHECK(contains(resumed(), "got none; fix: name the same checkpoint"));
  config.distill.teacher = teacher.string();
  config.distill.alpha = 0.5;
  CHECK(contains(resumed(), "[distill.alpha] needed 0.7, with which"));
  Config alone = config;
  alone.distill = {};
  alone.run.dir = (scratch.path / "alone").string();
  test::train_here(alone);
  alone.distill.teacher = teacher.string();
  alone.train.steps += 2;
  const std::string added = message_of([&] { test::train_here(alone, true); });
  CHECK(contains(added, "[distill.teacher] needed \"\", with which "));
  CHECK(contains(added, ", got the teacher "));
  CHECK(contains(added, "fix: leave out distill.teacher, or start a new run with another run.dir"));
}

TEST_CASE("teachers that do not fit are refused in one sentence") {
  const ScratchDirectory scratch;
  const Config config = taught_config(scratch.path, TaskName::graph_classification);
  Runtime runtime({.threads = 1});
  const auto refused = [&](const auto& change) {
    Config other = config;
    change(other);
    return message_of([&] { make_taught_task(runtime, other, Dataset::open(other.data.path)); });
  };
  CHECK(refused([](Config&) {}).empty());
  CHECK(contains(refused([](Config& c) { c.distill.teacher = "nowhere"; }),
                 "[distill.teacher] needed a checkpoint, or the folder of a run, got \"nowhere\""));
  const fs::path damaged = scratch.path / "damaged.safetensors";
  std::string bytes = test::read_text(last_checkpoint_of({.run = {.dir = config.distill.teacher}}));
  bytes[bytes.size() - 9] ^= 1;
  test::write_bytes(damaged, std::as_bytes(std::span(bytes)));
  CHECK(contains(refused([&](Config& c) { c.distill.teacher = damaged.string(); }), "the file is damaged"));
  const auto taught_otherwise = [&](const char* name, const auto& change) {
    Config teacher = config;
    teacher.distill = {};
    change(teacher);
    teacher.run.dir = (scratch.path / name).string();
    test::train_here(teacher);
    return refused([&](Config& c) { c.distill.teacher = teacher.run.dir; });
  };
  CHECK(
      contains(taught_otherwise("task",
                                [](Config& c) {
                                  c.task.name = TaskName::graph_regression;
                                  c.data.targets = {"total"};
                                }),
               "[distill.teacher] needed a model with task.name = \"graph_classification\", as this run has "
               "it, got task.name = \"graph_regression\" in "));
  CHECK(contains(taught_otherwise("fields", [](Config& c) { c.data.node_types = 3; }),
                 "needed a model with data.node_types = 9"));
  const std::string classes = taught_otherwise("classes", [](Config& c) { c.data.classes = 3; });
  CHECK(contains(classes, "is a checkpoint of another model"));
  CHECK(contains(classes, "decoder"));
  CHECK(taught_otherwise("model", [](Config& c) { c.model.name = ModelName::gat; }).empty());
}

TEST_CASE("a teacher of values in another unit is refused") {
  const ScratchDirectory scratch;
  const Config config = taught_config(scratch.path, TaskName::steady_field);
  const auto message = [&](const std::string& unit) {
    Config other = config;
    const fs::path folder = scratch.path / ("in" + unit);
    fs::create_directory(folder);
    other.data.path = test::pack_squares(folder, unit).string();
    Runtime runtime({.threads = 1});
    return message_of([&] { make_taught_task(runtime, other, Dataset::open(other.data.path)); });
  };
  CHECK(message("K").empty());
  CHECK(message("").empty());
  CHECK(contains(message("mK"),
                 "[distill.teacher] needed a model with the unit of g = mK, as this run has it, got the unit "
                 "of g = K in "));
}

TEST_CASE("a teacher beside targets on graphs is refused") {
  const ScratchDirectory scratch;
  Config config = test::target_config(scratch.path);
  config.distill.teacher = scratch.path.string();
  Runtime runtime({.threads = 1});
  CHECK(contains(message_of([&] { make_taught_task(runtime, config, Dataset::open(config.data.path)); }),
                 "[data.targets] needed fields on nodes with distill.teacher, got drag on graphs; fix: leave "
                 "out these targets, or the teacher"));
}

TEST_CASE("keys of a teacher that mean nothing are refused") {
  const auto refused = [](std::vector<std::string> settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(contains(
      refused({"task.name=graph_regression", "train.noise=0", "distill.alpha=0.5"}),
      "[distill.alpha] needed 0.7 with task.name = \"graph_regression\", which learns from no teacher"));
  CHECK(
      contains(refused({"distill.alpha=0.5"}), "[distill.alpha] needed 0.7 where distill.teacher is empty"));
  CHECK(
      contains(refused({"distill.teacher=a", "distill.temperature=2"}),
               "[distill.temperature] needed 4.0 with task.name = \"mesh_dynamics\", which has no classes"));
  CHECK(contains(refused({"distill.teacher=a", "unroll.steps=2"}),
                 "[distill.teacher] needed \"\" with unroll.steps above 1"));
  CHECK(contains(refused({"distill.teacher=a", "ranks.parts_in_turn=2"}),
                 "[distill.teacher] needed \"\" with ranks.parts_in_turn above 1"));
}

TEST_CASE("a plan counts the teacher and its run") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::steady_field);
  Config teacher = config;
  teacher.model.width *= 2;
  const auto plan = [&] { return plan_memory(config, {.device_memory = int64_t{1} << 30}); };
  for (const DType precision : {DType::f32, DType::bf16}) {
    config.precision = precision;
    Runtime runtime({.threads = 1});
    const Task task = make_taught_task(runtime, config, Dataset::open(config.data.path));
    const ParameterSet& parameters = task.teacher()->parameters();
    CHECK(!parameters.gradients().defined());
    const int64_t each = size_of(DType::f32) + (precision == DType::bf16 ? size_of(DType::bf16) : 0);
    const MemoryPlan with = plan();
    CHECK(with.budget.teacher == parameters.arena_elements() * each);
    CHECK(contains(to_text(with.budget), fmt::format("teacher=0.{:06} ", with.budget.teacher)));
    Config alone = config;
    alone.distill = {};
    const MemoryPlan without = plan_memory(alone, {.device_memory = int64_t{1} << 30});
    CHECK(without.budget.teacher == 0);
    const int64_t rounded = with.budget.parameters - without.budget.parameters;  // sizes of blocks
    CHECK(std::abs(rounded) < 1024);
    CHECK(with.budget.fixed() - without.budget.fixed() == with.budget.teacher + rounded);
    CHECK(with.budget.fitting() <= without.budget.fitting());
    CHECK(with.step.live >= without.step.live + with.budget.teacher);
  }
}

TEST_CASE("a large teacher changes no other part of a plan") {
  const ScratchDirectory scratch;
  Config teacher = config_of(scratch.path, TaskName::steady_field);
  Config student = teacher;
  student.train.batch = 1;
  teacher.model.width = 8 * student.model.width;
  teacher.run.dir = (scratch.path / "teacher").string();
  teacher.train.steps = 1;
  test::train_here(teacher);
  const MemoryBudget alone = plan_memory(student, {.device_memory = int64_t{1} << 30}).budget;
  student.distill.teacher = teacher.run.dir;
  const MemoryBudget taught = plan_memory(student, {.device_memory = int64_t{1} << 30}).budget;
  CHECK(taught.teacher > 30 * alone.parameters);
  CHECK(taught.gradients == alone.gradients);
  CHECK(taught.optimizer == alone.optimizer);
  CHECK(std::abs(taught.parameters - alone.parameters) < 1024);  // sizes of blocks
}

TEST_CASE("a plan without data has a teacher") {
  const ScratchDirectory scratch;
  const Config config = taught_config(scratch.path, TaskName::steady_field);
  const PlannedMesh mesh{.nodes = 500, .edges = 3000, .fields = {{"g", 1}, {"u", 1}}};
  const MemoryPlan plan = plan_memory(config, {.device_memory = int64_t{1} << 30, .mesh = mesh});
  CHECK(plan.budget.teacher > plan.budget.parameters);
  CHECK(plan.budget.batch_size > 0);
}

TEST_CASE("a device trains students as the CPU does" * doctest::skip(cuda_devices().empty())) {
  for (const TaskName task : kTasksOfStudents) {
    CAPTURE(name_of(task));
    const ScratchDirectory scratch;
    Config config = taught_config(scratch.path, task);
    for (const DType precision : {DType::f32, DType::bf16}) {
      CAPTURE(name_of(precision));
      const bool exact = precision == DType::f32;
      const size_t first = exact ? 0 : 1;  // online normalisers have a step without a loss
      config.precision = precision;
      config.normalize.mode = exact ? NormalizeMode::dataset : NormalizeMode::online;
      config.normalize.warmup_steps = 1;
      config.run.dir = (scratch.path / std::string(name_of(precision))).string();
      test::train_here(config);
      const std::vector<double> cpu = test::losses_of(config.run.dir);
      std::vector<std::vector<double>> losses;
      for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
        Config here = config;
        here.run.dir += graphs == GraphsMode::off ? "-plain" : "-captured";
        here.run.device = "cuda";
        here.graphs = graphs;
        Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
        int64_t captured = 0;
        TrainOptions options;
        options.observer.event = [&](const RunEvent& event) {
          captured += event.kind == RunEventKind::captured ? 1 : 0;
        };
        train(runtime, here, options);
        CHECK((captured > 0) == (graphs == GraphsMode::capture));
        losses.push_back(test::losses_of(here.run.dir));
        REQUIRE(losses.back().size() == cpu.size());
        for (size_t i = first; i < cpu.size(); ++i)
          CHECK(losses.back()[i] == doctest::Approx(cpu[i]).epsilon(exact ? 1e-3 : 0.05));
      }
      // Sums of a size class round otherwise.
      for (size_t i = first; i < cpu.size(); ++i)
        CHECK(losses[1][i] == doctest::Approx(losses[0][i]).epsilon(exact ? 1e-5 : 0.02));
    }
  }
}

}  // namespace meshgrad
