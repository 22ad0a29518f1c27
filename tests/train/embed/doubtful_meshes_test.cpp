// SPDX-License-Identifier: Apache-2.0
// Meshes and fields that a host application gives by mistake: refused with their row, or a warning.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "simulated_ranks.h"
#include "train/given_parts_case.h"
#include "train/process.h"

namespace meshgrad::doubtful_meshes_test {
namespace {

using namespace test::given_parts;
using test::contains;
using test::message_of;
using test::given_parts::Part;  // not that of nn

/// A runtime that keeps warnings.
struct Noting {
  std::vector<std::string> warnings;
  Runtime runtime{RuntimeOptions{.threads = 1, .log = [this](LogLevel level, std::string_view text) {
                                   if (level == LogLevel::warning) warnings.emplace_back(text);
                                 }}};
  int64_t with(std::string_view part) const { return count(warnings, part); }
  static int64_t count(const std::vector<std::string>& texts, std::string_view part) {
    return std::ranges::count_if(texts, [&](const std::string& text) { return contains(text, part); });
  }
};

std::vector<float> predicted(MeshPredictor& predictor, const Wave& wave, const MeshArrays& mesh) {
  predictor.set_mesh(mesh);
  predictor.set_field("velocity", wave.velocity(0));
  predictor.predict();
  std::vector<float> values(wave.velocity(0).size());
  predictor.get_field("velocity", values);
  return values;
}

TEST_CASE("cells that are no cells are refused with their row") {
  const Wave wave(5, 2, 0.3);
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, parts_config(), parts_options());
  MeshPredictor predictor(trainer);
  const auto refused = [&](const MeshArrays& mesh, std::string_view part) {
    CHECK(contains(message_of([&] { trainer.set_mesh(mesh); }), part));
    CHECK(contains(message_of([&] { predictor.set_mesh(mesh); }), part));
  };
  std::vector<int32_t> cells = wave.record.cells;
  std::fill_n(cells.begin() + 3 * 4, 3, 7);
  MeshArrays mesh = wave.whole();
  mesh.cells = cells;
  refused(mesh, "[mesh: cells, row 4] needed a cell of several nodes, got the same node 3 times");
  std::fill_n(cells.begin() + 3 * 4, 1, 6);  // a line
  trainer.set_mesh(mesh);
  predictor.set_mesh(mesh);
  mesh = wave.whole();
  mesh.first = mesh.second = cells;
  refused(mesh, "[mesh] needed cells or edges, not both");
  mesh = wave.whole();
  mesh.nodes_per_cell = 0;
  refused(mesh, "[mesh: nodes_per_cell] needed the number of nodes of each cell, got 0");
}

TEST_CASE("edges from a node to itself are left out") {
  const Wave wave(5, 2, 0.3);
  Runtime runtime({.threads = 1});
  const OnlineTrainer trainer(runtime, parts_config(), parts_options());
  MeshPredictor predictor(trainer);
  std::vector<int32_t> first{0, 1, 2, 3}, second{1, 2, 3, 4};
  MeshArrays mesh = wave.whole();
  mesh.cells = {};
  mesh.nodes_per_cell = 0;
  mesh.first = first;
  mesh.second = second;
  const std::vector<float> expected = predicted(predictor, wave, mesh);
  for (const int32_t node : {2, 9}) {
    first.push_back(node);
    second.push_back(node);
  }
  mesh.first = first;
  mesh.second = second;
  CHECK(predicted(predictor, wave, mesh) == expected);
}

TEST_CASE("a target that was never set is not read") {
  const Wave wave(5, 2, 0.3);
  Runtime runtime({.threads = 1});
  const OnlineTrainer trainer(runtime, parts_config(), parts_options());
  MeshPredictor predictor(trainer);
  predictor.set_mesh(wave.whole());
  std::vector<float> values(wave.velocity(0).size());
  const auto get = [&] { return message_of([&] { predictor.get_field("velocity", values); }); };
  CHECK(contains(get(), "field velocity] needed values, got none; fix: call set_field or predict"));
  predictor.set_field("velocity", wave.velocity(0));
  CHECK(get().empty());
  predictor.set_mesh(wave.whole());
  CHECK(contains(get(), "needed values, got none"));

  Config steady = parts_config();  // may be predicted without
  steady.task.name = TaskName::steady_field;
  steady.data.inputs = {"load"};
  steady.data.targets = {"velocity"};
  const OnlineTrainer of_steady(
      runtime, steady,
      {.fields = {{.name = "load", .components = 1}, {.name = "velocity", .components = 2}}});
  MeshPredictor solution(of_steady);
  solution.set_mesh(wave.whole());
  CHECK(contains(message_of([&] { solution.get_field("velocity", values); }), "needed values, got none"));
  solution.set_field("load", std::vector<float>(values.size() / 2, 1.0f));
  solution.predict();
  solution.get_field("velocity", values);
}

TEST_CASE("a mesh whose nodes are all at one place is a warning") {
  constexpr const char* kText = "positions are the same at both ends of every edge";
  const Wave wave(5, 2, 0.3);
  Noting noting;
  OnlineTrainer trainer(noting.runtime, parts_config(), parts_options());
  trainer.set_mesh(wave.whole());
  MeshPredictor(trainer).set_mesh(wave.whole());
  CHECK(noting.with(kText) == 0);
  const std::vector<double> zeros(2 * wave.types.size());
  MeshArrays mesh = wave.whole();
  mesh.positions = zeros;
  trainer.set_mesh(mesh);
  CHECK(noting.with(kText) == 1);
  Noting of_predictor;
  const OnlineTrainer other(of_predictor.runtime, parts_config(), parts_options());
  MeshPredictor(other).set_mesh(mesh);
  CHECK(of_predictor.with(kText) == 1);
}

TEST_CASE("ghosts that are not where their owners are give a warning") {
  constexpr const char* kText = "is not where rank ";
  const Wave wave(6, 2, 0.3);
  for (const bool moved : {false, true}) {
    std::vector<std::string> texts(2 * Wave::kRanks);
    test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
      Part part(wave, ranks.rank());
      if (moved && ranks.rank() == 1) part.positions.back() += 0.01f;
      for (const bool predicts : {false, true}) {
        Noting noting;
        OnlineTrainer trainer(noting.runtime, parts_config(), parts_options(), &ranks);
        if (predicts) {
          MeshPredictor(trainer).set_mesh(part.arrays());
        } else {
          trainer.set_mesh(part.arrays());
        }
        std::string& text = texts[static_cast<size_t>(2 * ranks.rank() + (predicts ? 1 : 0))];
        for (const std::string& warning : noting.warnings)
          if (contains(warning, kText)) text += warning;
      }
    });
    const std::string last = fmt::format("ghost {} ", Part(wave, 1).ghost_owner.size() - 1);
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      CHECK((moved && i / 2 == 1 ? contains(texts[i], last) : texts[i].empty()));
    }
  }
}

TEST_CASE("noise that does not fit the changes is a warning") {
  const Wave wave(6, 6, 0.3);
  const auto warnings = [&](float factor, double noise, Prediction predict, int64_t rise) {
    Noting noting;
    Config config = parts_config();
    config.data.predict = predict;
    config.train.noise = noise;
    config.train.noise_warmup_steps = rise;
    OnlineTrainer trainer(noting.runtime, config, parts_options());
    trainer.set_mesh(wave.whole());
    for (int64_t t = 0; t < wave.frames; ++t) {
      std::vector<float> velocity(wave.velocity(t).begin(), wave.velocity(t).end());
      for (float& value : velocity) value *= factor;
      trainer.set_field("velocity", velocity);
      trainer.append();
      trainer.train(1);
    }
    return noting.warnings;
  };
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    const auto count = [&](float factor, double noise, int64_t rise = 0) {
      const std::vector<std::string> all = warnings(factor, noise, predict, rise);
      return std::array{
          Noting::count(all, "train.noise is 0.02, more than the standard deviation of velocity's "),
          Noting::count(all, "train.noise is 0.02, less than a hundredth of the standard")};
    };
    CHECK(count(1e-5f, 0.02) == std::array<int64_t, 2>{1, 0});
    CHECK(count(1e-5f, 0.02, 5) == std::array<int64_t, 2>{0, 0});
    CHECK(count(1e4f, 0.02) == std::array<int64_t, 2>{0, 1});
    CHECK(count(1e-5f, 0.0) == std::array<int64_t, 2>{0, 0});
    CHECK(count(20.0f, 0.02) == std::array<int64_t, 2>{0, 0});
  }
}

}  // namespace
}  // namespace meshgrad::doubtful_meshes_test
