// SPDX-License-Identifier: Apache-2.0
// A mesh in parts of which a rank has no nodes, or no edges.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "simulated_ranks.h"
#include "train/given_parts_case.h"
#include "train/process.h"

namespace meshgrad::empty_part_test {
namespace {

using namespace test::given_parts;
using test::given_parts::Part;  // not that of nn

/// Waves whose nodes belong to these ranks in turn.
std::vector<Wave> waves_on(std::vector<int32_t> ranks) {
  std::vector<Wave> waves{Wave(6, 5, 0.3), Wave(7, 5, 1.1)};
  for (Wave& wave : waves)
    for (int32_t node = 0; node < wave.nodes(); ++node)
      wave.owners[static_cast<size_t>(node)] = ranks[static_cast<size_t>(node) / 4 % ranks.size()];
  return waves;
}

struct Result {
  Learned learned;
  std::vector<float> velocity;   // of all nodes, predicted
  std::vector<double> gradient;  // of the sum of its squares
  double later_loss = 0;
};

/// What rank `rank` adds to it.
void predict(const OnlineTrainer& trainer, const Wave& wave, const Part& part, bool gives_fields,
             Result& to) {
  MeshPredictor predictor(trainer);
  predictor.set_mesh(part.arrays());
  predictor.record_steps(true);
  std::vector<float> velocity = part.rows(wave.velocity(1));
  if (gives_fields) predictor.set_field("velocity", velocity);
  predictor.predict(3);
  predictor.get_field("velocity", velocity);
  predictor.set_gradient("velocity", velocity);
  predictor.backward();
  std::vector<double> gradient(velocity.size());
  predictor.get_gradient("velocity", gradient);
  for (size_t i = 0; i < 2 * static_cast<size_t>(part.owned); ++i) {
    const size_t at = 2 * static_cast<size_t>(part.nodes[i / 2]) + i % 2;
    to.velocity[at] = velocity[i];
    to.gradient[at] = gradient[i];
  }
}

Result run(const std::vector<Wave>& waves, int ranks, const Config& config) {
  const test::ScratchDirectory scratch;
  const auto values = static_cast<size_t>(2 * waves.back().nodes());
  Result result{.velocity = std::vector<float>(values), .gradient = std::vector<double>(values)};
  test::on_ranks(ranks, [&](Ranks& own) {
    const std::string file = scratch.path / fmt::format("rank{}", own.rank());
    const Part part(waves.back(), own.rank());
    Runtime runtime({.threads = 1});
    OnlineTrainer trainer(runtime, config, parts_options(), &own);
    const Learned learned = learn_parts(trainer, waves, own.rank());
    predict(trainer, waves.back(), part, !part.nodes.empty(), result);
    trainer.save(file);
    OnlineTrainer resumed(runtime, file, &own);
    double later[2];
    for (OnlineTrainer* const each : {&trainer, &resumed}) {
      each->set_field("velocity", part.rows(waves.back().velocity(2)));
      each->append();
      later[each == &resumed ? 1 : 0] = each->train(2).loss;
    }
    if (later[0] != later[1]) throw std::runtime_error("another result after a restart");
    if (own.rank() != 0) return;
    result.learned = learned;
    result.later_loss = later[0];
  });
  return result;
}

TEST_CASE("a rank without nodes changes nothing") {
  Config config = parts_config();
  config.train.noise = 0.05;
  const Result without = run(waves_on({0, 1}), 2, config);
  CHECK(without.learned.loss > 0);
  for (const std::vector<int32_t>& owners : {std::vector{0, 1}, {0, 2}, {1, 2}}) {
    CAPTURE(owners.front());
    const Result with = run(waves_on(owners), 3, config);
    CHECK(with.learned.loss == without.learned.loss);
    CHECK(with.learned.held_out == without.learned.held_out);
    CHECK(with.later_loss == without.later_loss);
    CHECK(with.velocity == without.velocity);
    CHECK(with.gradient == without.gradient);
  }
}

TEST_CASE("a rank without edges trains as the whole mesh") {
  std::vector<Wave> waves = waves_on({0, 2});
  for (Wave& wave : waves) {
    wave.owners[0] = 1;  // a corner, without its cells
    std::vector<int32_t> cells;
    for (size_t cell = 0; cell < wave.record.cells.size(); cell += 3) {
      const auto nodes = std::span(wave.record.cells).subspan(cell, 3);
      if (std::ranges::count(nodes, 0) == 0) cells.insert(cells.end(), nodes.begin(), nodes.end());
    }
    wave.record.cells = cells;
    wave.types[0] = 0;  // predicted
  }
  const Result parts = run(waves, 3, parts_config());
  Runtime runtime({.threads = 1});
  OnlineTrainer whole(runtime, parts_config(), parts_options());
  const Learned learned = learn_whole(whole, waves);
  CHECK(parts.learned.loss == doctest::Approx(learned.loss).epsilon(1e-5));
  CHECK(parts.learned.held_out == doctest::Approx(learned.held_out).epsilon(1e-5));
  MeshPredictor predictor(whole);
  predictor.set_mesh(waves.back().whole());
  predictor.set_field("velocity", waves.back().velocity(1));
  predictor.predict(3);
  std::vector<float> expected(parts.velocity.size());
  predictor.get_field("velocity", expected);
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(std::abs(static_cast<double>(parts.velocity[i] - expected[i])) < 1e-5);
}

TEST_CASE("a mesh in parts without any edge is refused on all ranks") {
  std::vector<std::string> errors(6);
  test::on_ranks(3, [&](Ranks& ranks) {
    const Wave wave = [] {
      Wave without = waves_on({0, 1}).front();
      without.record.cells.clear();
      return without;
    }();
    const Part part(wave, ranks.rank());
    Runtime runtime({.threads = 1});
    OnlineTrainer trainer(runtime, parts_config(), parts_options(), &ranks);
    MeshPredictor predictor(trainer);
    const auto rank = static_cast<size_t>(ranks.rank());
    errors[rank] = test::message_of([&] { trainer.set_mesh(part.arrays()); });
    errors[3 + rank] = test::message_of([&] { predictor.set_mesh(part.arrays()); });
  });
  for (const std::string& error : errors)
    CHECK(test::contains(error,
                         "[mesh in parts] needed a mesh with at least one edge, got no edge on any rank"));
}

}  // namespace
}  // namespace meshgrad::empty_part_test
