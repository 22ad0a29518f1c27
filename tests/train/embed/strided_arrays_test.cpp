// SPDX-License-Identifier: Apache-2.0
// Arrays with gaps, or with components apart: the same bits as arrays without.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <array>
#include <functional>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::strided_arrays_test {
namespace {

constexpr int kSide = 5;
constexpr size_t kNodes = kSide * kSide;
constexpr double kUntouched = -77;

/// A node as a solver has it.
struct Node {
  double x, y;
  float u, v;
  double between = kUntouched;
  int32_t type;
};

/// A frame of a wave: without gaps, as structures, and by components.
struct Frame {
  std::vector<float> positions, velocity;
  std::vector<double> wide_positions;
  std::vector<int32_t> cells, types;
  std::vector<Node> nodes;
  std::vector<double> u, v;

  explicit Frame(int64_t t, double far = 0) {
    const test::SquareRecord record = test::wave_record(kSide, 8, 0.3);
    cells = record.cells;
    types.assign(record.node_type.begin(), record.node_type.end());
    for (size_t i = 0; i < kNodes; ++i) {
      const float* const at = &record.velocity[2 * (static_cast<size_t>(t) * kNodes + i)];
      nodes.push_back({.x = far + static_cast<double>(record.mesh_pos[2 * i]),
                       .y = static_cast<double>(record.mesh_pos[2 * i + 1]),
                       .u = at[0],
                       .v = at[1],
                       .type = types[i]});
      wide_positions.insert(wide_positions.end(), {nodes[i].x, nodes[i].y});
      velocity.insert(velocity.end(), at, at + 2);
      u.push_back(static_cast<double>(at[0]));
      v.push_back(static_cast<double>(at[1]));
    }
  }
  MeshArrays mesh(Numbers at) const {
    return {.positions = at, .cells = cells, .nodes_per_cell = 3, .node_type = types};
  }
  MeshArrays mesh() const { return mesh(wide_positions); }
  MeshArrays strided_mesh() const { return mesh(strided_rows(&nodes[0].x, kNodes, 2, sizeof(Node))); }
  auto strided_velocity() { return strided_rows(&nodes[0].u, kNodes, 2, sizeof(Node)); }
};

OnlineTrainer trainer_on(Runtime& runtime) {
  Config config;
  config.model.width = 16;
  config.model.blocks = 2;
  config.train.noise = 0;
  return {runtime, config, {.fields = {{.name = "velocity", .components = 2}}, .held_out_every = 0}};
}

/// The file of a trainer with so many frames.
std::string trained(Runtime& runtime, const std::filesystem::path& file, double far, bool strided,
                    const std::function<void(OnlineTrainer&, Frame&)>& set_frame) {
  OnlineTrainer trainer = trainer_on(runtime);
  for (int64_t t = 0; t < 5; ++t) {
    Frame frame(t, far);
    if (t == 0) trainer.set_mesh(strided ? frame.strided_mesh() : frame.mesh());
    set_frame(trainer, frame);
    trainer.append();
  }
  trainer.train(2);
  trainer.save(file);
  return test::read_text(file);
}

TEST_CASE("arrays with gaps train to the bits of arrays without") {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 1});
  for (const double far : {0.0, 5e6}) {  // far ones are rounded less an origin
    const auto file = [&](bool strided, const std::function<void(OnlineTrainer&, Frame&)>& set_frame) {
      return trained(runtime, scratch.path / "saved", far, strided, set_frame);
    };
    const std::string expected =
        file(false, [](OnlineTrainer& to, Frame& f) { to.set_field("velocity", f.velocity); });
    CHECK(file(true, [](OnlineTrainer& to, Frame& f) { to.set_field("velocity", f.strided_velocity()); }) ==
          expected);
    CHECK(file(true, [](OnlineTrainer& to, Frame& f) {
            to.set_field("velocity", separate_components(f.u, f.v));
          }) == expected);
  }
}

TEST_CASE("arrays with gaps are predicted from, and written") {
  Runtime runtime({.threads = 1});
  const OnlineTrainer trainer = trainer_on(runtime);
  MeshPredictor predictor(trainer);
  const Frame start(2);
  predictor.set_mesh(start.mesh());
  predictor.set_field("velocity", start.velocity);
  predictor.predict();
  std::vector<float> expected(2 * kNodes);
  predictor.get_field("velocity", expected);
  Frame other(2);
  predictor.set_mesh(other.strided_mesh());
  predictor.set_field("velocity", other.strided_velocity());
  predictor.predict();
  Frame as_rows(0), apart(0);
  predictor.get_field("velocity", as_rows.strided_velocity());
  predictor.get_field("velocity", separate_components(apart.u, apart.v));
  for (size_t i = 0; i < kNodes; ++i) {
    CHECK(std::array{as_rows.nodes[i].u, as_rows.nodes[i].v} ==
          std::array{expected[2 * i], expected[2 * i + 1]});
    CHECK(as_rows.nodes[i].between == kUntouched);
    CHECK(std::array{apart.u[i], apart.v[i]} ==
          std::array{static_cast<double>(expected[2 * i]), static_cast<double>(expected[2 * i + 1])});
  }
  other.nodes[7].x += 0.05;  // they stay borrowed
  predictor.set_field("velocity", separate_components(other.u, other.v));
  predictor.positions_changed();
  predictor.predict();
  std::vector<float> moved(2 * kNodes);
  predictor.get_field("velocity", moved);
  CHECK(moved != expected);
}

TEST_CASE("arrays with gaps are read and written where they say") {
  std::vector<double> u{1, 2, 3}, v{4, 5, 6}, w{7, 8, 9};
  const Numbers all = separate_components(u, v, w);
  CHECK(all.size() == 9);
  CHECK(all.has_gaps());
  for (size_t i = 0; i < 9; ++i) CHECK(all[i] == std::array{u, v, w}[i % 3][i / 3]);
  WritableNumbers to = separate_components(w, u, v);
  to.set(1, -1);
  to.set(8, -2);
  CHECK(u[0] == -1);
  CHECK(v[2] == -2);
  CHECK_FALSE(Numbers(strided_rows(u.data(), 3, 1, sizeof(double))).has_gaps());
  CHECK(Numbers(strided_rows(u.data(), 3, 1, sizeof(double))).doubles().data() == u.data());
  CHECK(Numbers(strided_rows(&u[2], 3, 1, static_cast<size_t>(-8)))[2] == u[0]);  // backwards
  v.pop_back();
  CHECK(test::contains(test::message_of([&] { separate_components(u, v); }),
                       "[separate_components] needed components of the same size, got 2"));
}

}  // namespace
}  // namespace meshgrad::strided_arrays_test
