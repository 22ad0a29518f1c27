// SPDX-License-Identifier: Apache-2.0
// OnlineTrainer on several ranks: one model, on frames of each rank's own.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <fmt/format.h>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "simulated_ranks.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::online_ranks_test {
namespace {

using test::contains;

Config online_config() {
  Config config;
  config.run.seed = 5;
  config.model.width = 8;
  config.model.blocks = 1;
  config.train.batch = 1;
  config.train.noise = 0;
  return config;
}

OnlineOptions online_options() {
  return {.fields = {{.name = "velocity", .components = 2}}, .capacity = 8, .held_out_every = 4};
}

/// Appends `frames` frames of a wave of its own.
void append_frames(OnlineTrainer& trainer, int64_t frames, double phase, int side = 5) {
  const test::SquareRecord record = test::wave_record(side, frames, phase);
  const std::vector<int32_t> types(record.node_type.begin(), record.node_type.end());
  trainer.set_mesh(
      {.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3, .node_type = types});
  const size_t size = 2 * types.size();
  for (size_t t = 0; t < static_cast<size_t>(frames); ++t) {
    trainer.set_field("velocity", std::span(record.velocity).subspan(t * size, size));
    trainer.append();
  }
}

std::vector<float> predicted(MeshPredictor& predictor) {
  const test::SquareRecord record = test::wave_record(4, 1, 0.7);
  const std::vector<int32_t> types(record.node_type.begin(), record.node_type.end());
  predictor.set_mesh(
      {.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3, .node_type = types});
  predictor.set_field("velocity", record.velocity);
  predictor.predict(2);
  std::vector<float> values(record.velocity.size());
  predictor.get_field("velocity", values);
  return values;
}

/// What the model of a saved file predicts.
std::vector<float> predicted(Runtime& runtime, const std::string& file) {
  MeshPredictor predictor(runtime, file);
  return predicted(predictor);
}

TEST_CASE("a predictor of a trainer on ranks is that of its file") {
  const test::ScratchDirectory scratch;
  std::array<bool, 3> same{};
  test::on_ranks(3, [&](Ranks& ranks) {
    const std::string file = scratch.path / fmt::format("rank{}.safetensors", ranks.rank());
    Runtime runtime({.threads = 1});
    OnlineTrainer trainer(runtime, online_config(), online_options(), &ranks);
    append_frames(trainer, 3, 0.5);
    trainer.train(3);
    if (ranks.rank() == 1) append_frames(trainer, 7, 0.9);  // the others have not learned of these yet
    MeshPredictor now(trainer);
    trainer.save(file);
    same[static_cast<size_t>(ranks.rank())] = predicted(now) == predicted(runtime, file);
  });
  CHECK(same == std::array{true, true, true});
}

TEST_CASE("ranks with the same single sample train as one rank") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 1});
  const std::string alone = scratch.path / "alone.safetensors";
  OnlineTrainer trainer(runtime, online_config(), online_options());
  append_frames(trainer, 2, 0.3);
  const double loss = trainer.train(4).loss;
  trainer.save(alone);
  CHECK(loss > 0);
  test::on_ranks(2, [&](Ranks& ranks) {
    Runtime own({.threads = 1});
    OnlineTrainer together(own, online_config(), online_options(), &ranks);
    append_frames(together, 2, 0.3);
    const OnlineTrainer::Trained trained = together.train(4);
    const std::string file = scratch.path / fmt::format("rank{}.safetensors", ranks.rank());
    together.save(file);
    if (trained.loss != loss || predicted(own, file) != predicted(own, alone))
      throw std::runtime_error("the ranks trained another model");
  });
}

TEST_CASE("ranks with different sample counts take the same steps") {
  const test::ScratchDirectory scratch;
  constexpr int kRanks = 3;
  std::vector<std::vector<float>> straight(kRanks), resumed(kRanks);
  std::vector<double> losses(kRanks);
  test::on_ranks(kRanks, [&](Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const std::string half = scratch.path / fmt::format("half{}.safetensors", rank);
    const std::string end = scratch.path / fmt::format("end{}.safetensors", rank);
    Runtime runtime({.threads = 1});
    const auto go_on = [&](OnlineTrainer& trainer) {
      append_frames(trainer, 6, 0.1 * static_cast<double>(rank));
      if (trainer.train(5).steps != 5) throw std::runtime_error("steps are missing");
      losses[rank] = trainer.held_out_loss();
      trainer.save(end);
      return predicted(runtime, end);
    };
    {
      OnlineTrainer trainer(runtime, online_config(), online_options(), &ranks);
      if (trainer.train(3).steps != 0) throw std::runtime_error("trained without a sample");
      if (rank == 1) append_frames(trainer, 7, 0.5);  // the others have nothing yet
      if (trainer.train(3).steps != 3) throw std::runtime_error("ranks without samples do not train");
      trainer.save(half);
      straight[rank] = go_on(trainer);
    }
    OnlineTrainer trainer(runtime, half, &ranks);
    resumed[rank] = go_on(trainer);
    // The rank whose time is over stops all.
    if (trainer.train(100, rank == 2 ? -1.0 : 1e9).steps != 0)
      throw std::runtime_error("time was not agreed");
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK(straight[rank] == straight[0]);
    CHECK(resumed[rank] == straight[0]);
    CHECK(losses[rank] == losses[0]);
  }
  CHECK(std::isfinite(losses[0]));
}

TEST_CASE("a rank short of memory within a step tells the others") {
  const auto begin = std::chrono::steady_clock::now();
  std::array<std::string, 3> errors;
  std::atomic<int> told = 0;
  test::on_ranks({.ranks = 3, .loss = {}}, [&](Ranks& ranks) {
    const bool small = ranks.rank() == 1;
    Runtime runtime({.threads = 1, .allocator = {.memory_limit = small ? 4 << 20 : 0}});
    OnlineTrainer trainer(runtime, online_config(), online_options(), &ranks);
    append_frames(trainer, 2, 0.3, small ? 60 : 5);
    errors[static_cast<size_t>(ranks.rank())] = test::message_of([&] { trainer.train(2); });
    ++told;
    while (told < 3) std::this_thread::yield();  // an end would tell the others too
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));  // ranks.timeout is 300 s
  CHECK(contains(errors[1], "memory"));
  for (const size_t other : {size_t{0}, size_t{2}})
    CHECK(contains(errors[other], "needed all ranks to go on, got the end of rank"));
}

TEST_CASE("a rank that cannot make its trainer refuses it on all") {
  std::array<std::string, 3> errors;
  test::on_ranks({.ranks = 3, .loss = {}}, [&](Ranks& ranks) {
    const bool small = ranks.rank() == 1;
    Runtime runtime({.threads = 1, .allocator = {.memory_limit = small ? 4 << 20 : 0}});
    Config config = online_config();
    config.model.width = 512;
    errors[static_cast<size_t>(ranks.rank())] =
        test::message_of([&] { const OnlineTrainer trainer(runtime, config, online_options(), &ranks); });
    OnlineTrainer trainer(runtime, online_config(), online_options(), &ranks);
    append_frames(trainer, 2, 0.3);
    if (trainer.train(1).steps != 1) throw std::runtime_error("no step");
  });
  CHECK(contains(errors[1], "memory"));
  for (const size_t other : {size_t{0}, size_t{2}})
    CHECK(contains(errors[other], "[OnlineTrainer] needed no error on any rank, got an error on rank "));
}

TEST_CASE("ranks that would train different models are refused") {
  std::array<std::string, 2> errors;
  std::atomic<int> told = 0;
  test::on_ranks(2, [&](Ranks& ranks) {
    Runtime runtime({.threads = 1});
    Config config = online_config();
    config.optimizer.lr *= 1 + ranks.rank();
    errors[static_cast<size_t>(ranks.rank())] =
        test::message_of([&] { const OnlineTrainer trainer(runtime, config, online_options(), &ranks); });
    ++told;
    while (told < 2) std::this_thread::yield();  // the end of one would be the other's error
  });
  for (const std::string& error : errors)
    CHECK(contains(error, "[optimizer.lr] needed the same value on all ranks, got "));
  Runtime runtime({.threads = 1});
  Config config = online_config();
  config.ranks.parts_in_turn = 2;
  CHECK(contains(test::message_of([&] { OnlineTrainer trainer(runtime, config, online_options()); }),
                 "whole meshes with OnlineTrainer"));
}

}  // namespace
}  // namespace meshgrad::online_ranks_test
