// SPDX-License-Identifier: Apache-2.0
// OnlineTrainer: learns from frames as they come, in bounded memory, with the same bits after a restart.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <limits>
#include <optional>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::online_trainer_test {
namespace {

using test::contains;
using test::message_of;

/// A solver: a wave on a square.
struct Solver {
  test::SquareRecord record;
  int64_t frames;
  int64_t nodes() const { return static_cast<int64_t>(record.node_type.size()); }

  explicit Solver(int side = 6, int64_t count = 60, double phase = 0)
      : record(test::wave_record(side, count, phase)),
        frames(count),
        types(record.node_type.begin(), record.node_type.end()) {}
  MeshArrays mesh() const {
    return {.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3, .node_type = types};
  }
  std::span<const float> velocity(int64_t t) const {
    const auto size = static_cast<size_t>(2 * nodes());
    return std::span(record.velocity).subspan(static_cast<size_t>(t) * size, size);
  }

 private:
  std::vector<int32_t> types;
};

Config online_config() {
  Config config;
  config.run.seed = 5;
  config.model.width = 16;
  config.model.blocks = 2;
  config.train.steps = 400;
  config.train.batch = 2;
  config.train.noise = 0.001;
  config.optimizer.lr = 2e-3;
  return config;
}

OnlineOptions online_options() {
  return {
      .dim = 2, .dt = 0.5, .fields = {{.name = "velocity", .components = 2, .unit = "m/s"}}, .capacity = 16};
}

void append_frames(OnlineTrainer& trainer, const Solver& solver, int64_t first, int64_t end) {
  for (int64_t t = first; t < end; ++t) {
    trainer.set_field("velocity", solver.velocity(t));
    trainer.append();
  }
}

TEST_CASE("a field that varies too little is a warning, once") {
  const Solver solver;
  for (const double factor : {1.0, 1e-9, 0.0}) {
    CAPTURE(factor);
    std::vector<std::string> messages;
    Runtime runtime(
        {.threads = 1, .log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); }});
    Config config = online_config();
    config.train.noise = 0.0;
    OnlineTrainer trainer(runtime, config, online_options());
    trainer.set_mesh(solver.mesh());
    for (int64_t t = 0; t < 4; ++t) {
      std::vector<double> small;
      for (const float value : solver.velocity(t)) small.push_back(factor * static_cast<double>(value));
      trainer.set_field("velocity", small);
      trainer.append();
      trainer.train(1);
    }
    REQUIRE(messages.size() == (factor == 1e-9 ? 2 : 0));
    if (factor != 1e-9) continue;
    CHECK(contains(messages[0],
                   "velocity has varied by less than 1e-08 so far; such values count as constant"));
    CHECK(contains(messages[1], "velocity: what is predicted of it has varied"));
  }
}

TEST_CASE("the held-out loss falls while the solver runs") {
  const Solver solver;
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, online_config(), online_options());
  CHECK(trainer.train(3).steps == 0);  // no sample yet
  trainer.set_mesh(solver.mesh());
  append_frames(trainer, solver, 0, 20);
  CHECK(trainer.seen() == 19);
  CHECK(trainer.samples() == 16);
  const double before = trainer.held_out_loss();
  for (int64_t t = 20; t < 60; ++t) {
    append_frames(trainer, solver, t, t + 1);
    CHECK(trainer.train(10).steps == 10);
    CHECK(trainer.samples() == 16);
  }
  CHECK(trainer.steps() == 400);
  CHECK(trainer.held_out_loss() < 0.5 * before);
}

TEST_CASE("a saved trainer goes on to the same bits, and predicts") {
  for (const Replay replay : {Replay::reservoir, Replay::most_recent}) {
    for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
      const test::ScratchDirectory scratch;
      const Solver first(5), second(6, 30, 1.0);
      Config config = online_config();
      config.data.predict = predict;
      OnlineOptions options = online_options();
      options.replay = replay;
      Runtime runtime({.threads = 1});
      const std::string file = scratch.path / "half.safetensors";
      const auto go_on = [&](OnlineTrainer& trainer, const char* name) {
        append_frames(trainer, first, 20, 40);
        trainer.train(4);
        trainer.set_mesh(second.mesh());
        append_frames(trainer, second, 0, 30);
        trainer.train(4);
        trainer.save(scratch.path / name);
        return test::read_text(scratch.path / name);
      };
      OnlineTrainer trainer(runtime, config, options);
      trainer.set_mesh(first.mesh());
      append_frames(trainer, first, 0, 20);
      trainer.train(7);
      trainer.save(file);
      const std::string straight = go_on(trainer, "straight.safetensors");

      Runtime other({.threads = 2});
      OnlineTrainer resumed(other, file);
      CHECK(resumed.steps() == 7);
      CHECK(resumed.options().capacity == 16);
      CHECK(go_on(resumed, "resumed.safetensors") == straight);

      MeshPredictor predictor(runtime, scratch.path / "straight.safetensors");
      predictor.set_mesh(second.mesh());
      predictor.set_field("velocity", second.velocity(1));
      if (predict == Prediction::second_change) predictor.set_previous_field("velocity", second.velocity(0));
      predictor.predict();
      std::vector<float> ours(static_cast<size_t>(2 * second.nodes()));
      predictor.get_field("velocity", ours);
      double error = 0, change = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        error += std::pow(static_cast<double>(ours[i] - second.velocity(2)[i]), 2);
        change += std::pow(static_cast<double>(second.velocity(2)[i] - second.velocity(0)[i]), 2);
      }
      CHECK(error < change);
      CHECK(predictor.dt() == 0.5);
    }
  }
}

TEST_CASE("a predictor of a trainer is that of its file, and stays") {
  const test::ScratchDirectory scratch;
  const Solver solver(5);
  const auto predicted = [&](MeshPredictor& predictor) {
    predictor.set_mesh(solver.mesh());
    predictor.set_field("velocity", solver.velocity(1));
    predictor.predict(2);
    std::vector<float> values(static_cast<size_t>(2 * solver.nodes()));
    predictor.get_field("velocity", values);
    return values;
  };
  for (const DType precision : {DType::f32, DType::f64, DType::bf16}) {
    CAPTURE(name_of(precision));
    Config config = online_config();
    config.precision = precision;
    Runtime runtime({.threads = 1});
    std::optional<OnlineTrainer> trainer(std::in_place, runtime, config, online_options());
    trainer->set_mesh(solver.mesh());
    append_frames(*trainer, solver, 0, 6);
    trainer->train(3);
    MeshPredictor now(*trainer);
    trainer->save(scratch.path / "now.safetensors");
    CHECK(now.dt() == 0.5);
    CHECK(now.inputs().front().name == "velocity");
    const std::vector<float> first = predicted(now);
    append_frames(*trainer, solver, 20, 30);
    trainer->train(3);
    MeshPredictor later(*trainer);
    trainer.reset();
    CHECK(predicted(now) == first);
    CHECK(predicted(later) != first);
    MeshPredictor of_file(runtime, scratch.path / "now.safetensors");
    CHECK(predicted(of_file) == first);
  }
}

TEST_CASE("noise rises over train.noise_warmup_steps") {
  const Solver solver(5);
  Runtime runtime({.threads = 1});
  const auto loss = [&](double noise, int64_t rise) {
    Config config = online_config();
    config.train.noise = noise;
    config.train.noise_warmup_steps = rise;
    OnlineTrainer trainer(runtime, config, online_options());
    trainer.set_mesh(solver.mesh());
    append_frames(trainer, solver, 0, 2);
    return trainer.train(1).loss;
  };
  CHECK(loss(0.1, 1) == loss(0.1, 0));
  CHECK(loss(0.1, 4) == doctest::Approx(loss(0.025, 0)));
  CHECK(loss(0.1, 4) != loss(0.1, 0));
}

TEST_CASE("time limits training, and steps are the other limit") {
  const Solver solver;
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, online_config(), online_options());
  trainer.set_mesh(solver.mesh());
  append_frames(trainer, solver, 0, 10);
  CHECK(trainer.train(1000000, 0.0).steps <= 1);
  const OnlineTrainer::Trained timed = trainer.train(1000000, 0.2);
  CHECK(timed.steps > 1);
  CHECK(timed.seconds < 2.0);
  CHECK(trainer.train(3, 1000.0).steps == 3);
}

TEST_CASE("frames across a new mesh or a restart make no sample") {
  const Solver solver(5);
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, online_config(), online_options());
  trainer.set_mesh(solver.mesh());
  append_frames(trainer, solver, 0, 1);
  CHECK(trainer.seen() == 0);
  append_frames(trainer, solver, 1, 2);
  CHECK(trainer.seen() == 1);
  trainer.set_mesh(solver.mesh());
  append_frames(trainer, solver, 2, 3);
  CHECK(trainer.seen() == 1);
  trainer.restart_trajectory();
  append_frames(trainer, solver, 3, 4);
  CHECK(trainer.seen() == 1);
}

TEST_CASE("faults of a host application are refused with the fix") {
  const test::ScratchDirectory scratch;
  const Solver solver(5);
  Runtime runtime({.threads = 1});
  Config config = online_config();
  OnlineOptions options = online_options();
  const auto error = [&] { return message_of([&] { OnlineTrainer trainer(runtime, config, options); }); };
  options.fields.front().name = "speed";
  CHECK(contains(error(), "velocity"));
  options = online_options();
  options.capacity = 0;
  CHECK(contains(error(), "capacity"));
  options = online_options();
  config.train.accumulate = 2;
  CHECK(contains(error(), "raise train.batch instead"));
  for (int64_t TrainConfig::*key : {&TrainConfig::epochs, &TrainConfig::patience}) {
    config = online_config();
    config.train.*key = 2;
    CHECK(contains(error(), "0 with OnlineTrainer"));
  }
  config = online_config();
  config.data.hops = 2;
  CHECK(contains(error(), "data.hops"));
  config = online_config();
  config.optimizer.momentum = 0.5;  // contradictions are found before a member is made
  config.data.inputs = {"missing"};
  CHECK(contains(error(), "[optimizer.momentum] needed 0 unless"));
  config = online_config();
  config.ranks.reduction = RankReduction::ordered;
  CHECK(contains(error(), "ranks.reduction"));
  config = online_config();

  OnlineTrainer trainer(runtime, config, options);
  CHECK(contains(message_of([&] { trainer.append(); }), "call set_mesh first"));
  trainer.set_mesh(solver.mesh());
  CHECK(contains(message_of([&] { trainer.append(); }), "field velocity] needed values"));
  CHECK(contains(message_of([&] { trainer.set_field("velocity", solver.velocity(0).subspan(1)); }),
                 "needed 50 numbers, got 49"));
  append_frames(trainer, solver, 0, 4);
  std::vector<float> bad(solver.velocity(0).begin(), solver.velocity(0).end());
  bad[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(contains(message_of([&] { trainer.set_field("velocity", bad); }),
                 "[OnlineTrainer: field velocity, row 3] needed finite numbers, got nan"));
  // What was refused has changed nothing.
  CHECK(trainer.train(2).steps == 2);
  Config wild = config;
  wild.optimizer.lr = 1e30;
  wild.train.clip_norm = 0;
  wild.schedule.name = RateCurve::constant;
  OnlineTrainer exploding(runtime, wild, options);
  exploding.set_mesh(solver.mesh());
  append_frames(exploding, solver, 0, 4);
  CHECK(contains(message_of([&] { exploding.train(60); }), "needed a finite loss"));

  // A checkpoint of meshgrad train holds no buffer.
  Config run = test::small_config(scratch.path, test::pack_waves(scratch.path));
  run.train.steps = 1;
  run.train.validate_every = 0;
  test::train_here(run);
  CHECK(contains(
      message_of([&] { OnlineTrainer resumed(runtime, run.run.dir + "/checkpoints/last.safetensors"); }),
      "needed a file that OnlineTrainer saved"));
}

}  // namespace
}  // namespace meshgrad::online_trainer_test
