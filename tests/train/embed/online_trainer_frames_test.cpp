// SPDX-License-Identifier: Apache-2.0
// OnlineTrainer with models that read several frames (data.history), and what is known of the next one
// (data.kinematic_types).
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "train/given_parts_case.h"
#include "train/moving_data.h"

namespace meshgrad::online_frames_test {
namespace {

using test::given_parts::Wave;

std::vector<double> saved(const std::string& file, const std::string& name) {
  const SafetensorsFile opened(file);
  return to_f64(opened.view().at(name));
}

/// Appends frames of a wave, trains, saves, goes on; a trainer of the file does the same. The last file.
std::string trained(const test::ScratchDirectory& scratch, Runtime& runtime, const Config& config,
                    const Wave& wave) {
  const std::string half = scratch.path / "half.safetensors", end = scratch.path / "end.safetensors";
  const auto append = [&](OnlineTrainer& trainer, int64_t first, int64_t stop) {
    for (int64_t t = first; t < stop; ++t) {
      trainer.set_field("velocity", wave.velocity(t));
      trainer.append();
    }
  };
  const auto go_on = [&](OnlineTrainer& trainer) {
    append(trainer, wave.frames / 2, wave.frames);
    trainer.train(180);
    trainer.save(end);
    return test::read_text(end);
  };
  OnlineTrainer trainer(
      runtime, config,
      {.fields = {{.name = "velocity", .components = 2}}, .capacity = 256, .held_out_every = 0});
  trainer.set_mesh(wave.whole());
  append(trainer, 0, wave.frames / 2);
  trainer.train(20);
  trainer.save(half);
  const std::string straight = go_on(trainer);
  OnlineTrainer resumed(runtime, half);
  CHECK(go_on(resumed) == straight);
  return end;
}

/// Squared error of one step after frame t, and of no change.
std::pair<double, double> errors(Runtime& runtime, const std::string& file, const Wave& wave, int64_t t) {
  MeshPredictor predictor(runtime, file);
  const DataConfig& data = predictor.config().data;
  predictor.set_mesh(wave.whole());
  predictor.set_field("velocity", wave.velocity(t));
  const int64_t before = data.history - (data.predict == Prediction::second_change ? 0 : 1);
  for (int64_t age = 1; age <= before; ++age)
    predictor.set_previous_field("velocity", wave.velocity(t - age), 0, age);
  if (!data.kinematic_types.empty()) predictor.set_next_field("velocity", wave.velocity(t + 1));
  predictor.predict();
  std::vector<float> ours(2 * wave.types.size());
  predictor.get_field("velocity", ours);
  double error = 0, change = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const int32_t type = wave.types[i / 2];
    const auto truth = static_cast<double>(wave.velocity(t + 1)[i]);
    if (type == 4 && !data.kinematic_types.empty()) CHECK(ours[i] == wave.velocity(t + 1)[i]);
    if (type != 0) continue;
    error += std::pow(static_cast<double>(ours[i]) - truth, 2);
    change += std::pow(static_cast<double>(wave.velocity(t)[i]) - truth, 2);
  }
  return {error, change};
}

Config frames_config() {
  Config config = test::given_parts::parts_config();
  config.train.steps = 200;
  return config;
}

TEST_CASE("OnlineTrainer takes data.history as inputs") {
  const Wave wave(6, 30, 0.2);
  Runtime runtime({.threads = 1});
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const test::ScratchDirectory scratch;
    Config config = frames_config();
    config.data.history = 3;
    config.data.predict = predict;
    const std::string file = trained(scratch, runtime, config, wave);
    // Columns: value and two changes, or three changes; a sample has as many frames before it.
    const bool second = predict == Prediction::second_change;
    const int64_t first = second ? 3 : 2;
    const std::vector<double> means = saved(file, "normalizer.nodes.mean");
    CHECK(saved(file, "normalizer.nodes.count").front() ==
          static_cast<double>((wave.frames - 1 - first) * wave.nodes()));
    for (int64_t block = 0; block < 3; ++block) {
      double sum = 0, count = 0;
      for (int64_t t = first; t + 1 < wave.frames; ++t) {
        const int64_t age = second ? block : block - 1;  // of the change
        for (size_t i = 0; i < wave.velocity(t).size(); i += 2, ++count) {
          sum += block == 0 && !second ? static_cast<double>(wave.velocity(t)[i])
                                       : static_cast<double>(wave.velocity(t - age)[i]) -
                                             static_cast<double>(wave.velocity(t - age - 1)[i]);
        }
      }
      CHECK(means[static_cast<size_t>(2 * block)] == doctest::Approx(sum / count).epsilon(1e-4));
    }
    const auto [error, change] = errors(runtime, file, wave, 12);
    CHECK(error < 0.7 * change);
  }
}

TEST_CASE("OnlineTrainer takes data.kinematic_types as inputs") {
  const Wave wave(6, 30, 0.2);
  Runtime runtime({.threads = 1});
  const test::ScratchDirectory scratch;
  Config config = frames_config();
  config.data.kinematic_types = {4};
  const std::string file = trained(scratch, runtime, config, wave);
  // Columns after the value: the known change, 0 at other nodes.
  double sum = 0, count = 0;
  for (int64_t t = 0; t + 1 < wave.frames; ++t) {
    for (size_t node = 0; node < wave.types.size(); ++node, ++count) {
      if (wave.types[node] != 4) continue;
      sum += static_cast<double>(wave.velocity(t + 1)[2 * node + 1]) -
             static_cast<double>(wave.velocity(t)[2 * node + 1]);
    }
  }
  CHECK(saved(file, "normalizer.nodes.mean")[3] == doctest::Approx(sum / count).epsilon(1e-3));
  const auto [error, change] = errors(runtime, file, wave, 12);
  CHECK(error < 0.7 * change);
}

}  // namespace
}  // namespace meshgrad::online_frames_test
