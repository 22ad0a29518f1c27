// SPDX-License-Identifier: Apache-2.0
// How far inputs are outside of what a model was trained on.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <limits>
#include <vector>

#include "train/mesh_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::range_excess_test {
namespace {

using test::message_of;

struct Fixture {
  test::ScratchDirectory scratch;
  Runtime runtime{{.threads = 1}};
  std::vector<float> positions{0, 0, 1, 0, 1, 1, 0, 1};
  std::vector<int32_t> cells{0, 1, 2, 0, 2, 3}, types{0, 0, 0, 0};
  MeshArrays mesh{.positions = positions, .cells = cells, .nodes_per_cell = 3, .node_type = types};

  static Config config() {
    Config config;
    config.data.inputs = {"u", "load"};
    config.data.targets = {"u"};
    config.data.node_types = 1;
    config.data.predicted_types = {0};
    config.model.width = 8;
    config.model.blocks = 1;
    config.train.noise = 0;
    return config;
  }
  OnlineTrainer trainer() {
    return {runtime,
            config(),
            {.dim = 2,
             .fields = {{.name = "u", .components = 2},
                        {.name = "load", .components = 1, .on = FieldOn::graph}}}};
  }
  /// u[0] from 0 to `most`, u[1] always 3, load from 10 to 14.
  void append(OnlineTrainer& to, float most) const {
    for (int frame = 0; frame < 5; ++frame) {
      const float part = static_cast<float>(frame) / 4;
      to.set_field("u", std::vector<float>{0, 3, 0, 3, part * most, 3, 0, 3});
      to.set_field("load", std::vector<float>{10.0f + static_cast<float>(frame)});
      to.append();
    }
  }
  static RangeExcess excess_of(MeshPredictor& predictor, const std::vector<float>& u, float load) {
    const std::vector<float> loads{load};  // borrowed
    predictor.set_field("u", u);
    predictor.set_field("load", loads);
    return predictor.range_excess();
  }
};

/// A predictor of a trainer that has seen u[0] from 0 to `most`, and made `steps`.
struct Seen : Fixture {
  OnlineTrainer online = trainer();
  MeshPredictor predictor;
  explicit Seen(float most, int steps = 0) : predictor(seen(most, steps)) { predictor.set_mesh(mesh); }
  OnlineTrainer& seen(float most, int steps) {
    online.set_mesh(mesh);
    append(online, most);
    if (steps > 0) online.train(steps);
    return online;
  }
};

TEST_CASE("range_excess names the farthest field and its distance") {
  Seen f(2);
  MeshPredictor& predictor = f.predictor;
  CHECK(predictor.range_excess().excess == 0);  // nothing is set
  const RangeExcess within = f.excess_of(predictor, {0, 3, 2, 3, 1, 3, 0, 3}, 14);
  CHECK(within.excess == 0);
  CHECK(within.field.empty());
  const RangeExcess above = f.excess_of(predictor, {0, 3, 0, 3, 3, 3, 0, 3}, 14);
  CHECK(above.excess == doctest::Approx(0.5));
  CHECK(above.field == "u");
  CHECK(f.excess_of(predictor, {-1, 3, 0, 3, 0, 3, 0, 3}, 12).excess == doctest::Approx(0.5));
  const RangeExcess load = f.excess_of(predictor, {0, 3, 0, 3, 3, 3, 0, 3}, 18);
  CHECK(load.excess == doctest::Approx(1.0));
  CHECK(load.field == "load");
  // A component that never varied.
  CHECK(f.excess_of(predictor, {0, 3, 0, 3, 0, 3.001f, 0, 3}, 12).excess > 100);
}

TEST_CASE("range_excess of a value that is not finite is infinite") {
  Seen f(2);
  MeshPredictor& predictor = f.predictor;
  // Finite values that the network overflows on.
  CHECK(std::isfinite(f.excess_of(predictor, {0, 3, 3e38f, 3, 9, 3, 0, 3}, 18).excess));
  predictor.predict(1);
  const RangeExcess found = predictor.range_excess();
  CHECK(found.excess == std::numeric_limits<double>::infinity());
  CHECK(found.field == "u");
}

TEST_CASE("range_excess follows predictions") {
  Seen f(1e-3f, 1);
  MeshPredictor& predictor = f.predictor;
  const std::vector<float> load{12};
  predictor.set_field("u", std::vector<float>{0, 3, 0, 3, 0, 3, 0, 3});
  predictor.set_field("load", load);
  CHECK(predictor.range_excess().excess == 0);
  for (int i = 0; i < 50; ++i) predictor.predict(1);
  CHECK(predictor.range_excess().excess > 0);  // a model that has learned nothing drifts
}

TEST_CASE("a trainer's file keeps the ranges, and goes on with them") {
  Fixture f;
  const auto file = f.scratch.path / "saved.safetensors";
  {
    OnlineTrainer trainer = f.trainer();
    trainer.set_mesh(f.mesh);
    f.append(trainer, 2);
    trainer.save(file);
  }
  MeshPredictor saved(f.runtime, file);
  saved.set_mesh(f.mesh);
  CHECK(f.excess_of(saved, {0, 3, 0, 3, 3, 3, 0, 3}, 14).excess == doctest::Approx(0.5));
  OnlineTrainer loaded(f.runtime, file);
  loaded.set_mesh(f.mesh);
  f.append(loaded, 0.5f);
  MeshPredictor later(loaded);
  later.set_mesh(f.mesh);
  CHECK(f.excess_of(later, {0, 3, 0, 3, 2, 3, 0, 3}, 14).excess == 0);
}

TEST_CASE("range_excess of a run has the training split's ranges") {
  Fixture f;
  Config config = test::small_config(f.scratch.path, test::pack_waves(f.scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  const auto checkpoint = test::train_here(config).checkpoint;
  MeshPredictor predictor(f.runtime, checkpoint);
  const Dataset data = Dataset::open(config.data.path);
  const TrajectoryView trajectory = data.trajectory("train", 0);
  predictor.set_mesh(test::arrays_of(trajectory.mesh()));
  const auto frame = trajectory.field("velocity").frame(3);
  std::vector<float> velocity(frame.begin(), frame.end());
  predictor.set_field("velocity", velocity);
  CHECK(predictor.range_excess().excess == 0);
  velocity[0] = 50;
  predictor.set_field("velocity", velocity);
  CHECK(predictor.range_excess().excess > 10);
}

TEST_CASE("range_excess of a model without ranges is refused") {
  Fixture f;
  OnlineTrainer trainer = f.trainer();
  MeshPredictor predictor(trainer);
  predictor.set_mesh(f.mesh);
  CHECK(test::contains(message_of([&] { predictor.range_excess(); }), "which values it was trained on"));
}

}  // namespace
}  // namespace meshgrad::range_excess_test
