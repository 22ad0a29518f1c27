// SPDX-License-Identifier: Apache-2.0
// World edges of meshes in parts: training and rollouts are those of the whole mesh.
#include <doctest/doctest.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/nn/partition/owners.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/mesh_parts.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "simulated_ranks.h"
#include "train/moving_data.h"
#include "train/small_run.h"
#include "train/world_case.h"

namespace meshgrad::world_parts_test {
namespace {

using test::Moving;

Config with(const Moving& plate, const std::string& name) {
  Config config = test::world_run(plate);
  config.run.dir = (plate.scratch.path / name).string();
  config.train.steps = 6;
  config.train.checkpoint_every = 0;
  config.train.log_every = 1;
  config.train.validate_every = 3;
  config.train.validate_rollouts = 1;
  return config;
}

void check_same_run(const Config& config, const TrainResult& result, const Config& whole,
                    const TrainResult& expected) {
  const std::vector<double> losses = test::losses_of(config.run.dir), wanted = test::losses_of(whole.run.dir);
  REQUIRE(losses.size() == wanted.size());
  REQUIRE(losses.size() >= 6);
  for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(2e-4));
  CHECK(result.state.last_valid_loss == doctest::Approx(expected.state.last_valid_loss).epsilon(2e-4));
  CHECK(result.state.last_valid_rollout == doctest::Approx(expected.state.last_valid_rollout).epsilon(2e-4));
}

TEST_CASE("ranks and parts in turn train meshes with world edges") {
  const Moving plate("plate");
  const Config whole = with(plate, "whole");
  const TrainResult expected = test::train_here(whole);
  // World edges do cross the border of two parts: contact is there.
  const Dataset dataset = plate.dataset();
  const TrajectoryView view = dataset.trajectory("train", 0);
  const Task task = make_task(whole, dataset);
  const std::vector<int32_t> owners = mesh_cut({.partition = MeshPartition::rcb}).owners(view.mesh(), 3);
  int64_t crossing = 0;
  for (int64_t t = 0; t < view.frames(); ++t)
    for (const auto& [receiver, sender] :
         test::plain_pairs(view.mesh(), view.field("world_pos").frame(t), 3, task.mesh().world.options()))
      crossing += owners[static_cast<size_t>(receiver)] != owners[static_cast<size_t>(sender)] ? 1 : 0;
  CHECK(crossing > 10);
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    Config config = with(plate, "ranks" + std::to_string(ranks));
    config.ranks.partition = MeshPartition::rcb;
    check_same_run(config, test::train_on_ranks(ranks, config), whole, expected);
  }
  Config turns = with(plate, "in_turn");
  turns.ranks.parts_in_turn = 3;
  check_same_run(turns, test::train_here(turns), whole, expected);
}

}  // namespace
}  // namespace meshgrad::world_parts_test
