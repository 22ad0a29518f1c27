// SPDX-License-Identifier: Apache-2.0
// meshgrad.h on a mesh in parts: arrays that one rank cannot read are refused on all ranks.
#include <doctest/doctest.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "simulated_ranks.h"
#include "train/given_parts_case.h"
#include "train/process.h"

namespace meshgrad::c_parts_test {
namespace {

using namespace test::given_parts;
using namespace std::chrono_literals;
using test::contains;

template <class T>
meshgrad_array array_of(std::vector<T>& values, int64_t columns) {
  return {.data = values.data(),
          .dtype = std::is_same_v<T, float> ? MESHGRAD_F32 : MESHGRAD_I32,
          .rank = columns > 1 ? 2 : 1,
          .shape = {static_cast<int64_t>(values.size()) / columns, columns, 0},
          .device = MESHGRAD_CPU};
}

meshgrad_mesh mesh_of(test::given_parts::Part& part) {
  meshgrad_mesh mesh;
  meshgrad_mesh_init(&mesh);
  mesh.positions = array_of(part.positions, 2);
  mesh.cells = array_of(part.cells, 3);
  mesh.node_type = array_of(part.types, 1);
  mesh.ghost_owner = array_of(part.ghost_owner, 1);
  mesh.ghost_number = array_of(part.ghost_number, 1);
  return mesh;
}

/// Of one field, or of a list of one that is not there.
int create_trainer(meshgrad_runtime& runtime, meshgrad_trainer*& trainer, bool has_field = true) {
  const meshgrad_field field{.name = "velocity", .components = 2};
  const std::string config = to_toml(parts_config());
  meshgrad_trainer_options options;
  meshgrad_trainer_options_init(&options);
  options.config = config.c_str();
  options.fields = has_field ? &field : nullptr;
  options.field_count = 1;
  return meshgrad_trainer_create(&runtime, &options, &trainer);
}

using Spoil = std::function<void(meshgrad_mesh&)>;
using Texts = std::array<std::string, Wave::kRanks>;

/// The error of each rank where rank 1 gives a mesh that is spoilt, or none, to a trainer or a predictor;
/// afterwards all give the right one, and a step is taken.
Texts errors_of(const std::string& checkpoint, const Spoil& spoil) {
  Texts texts;
  const Wave wave(6, 5, 0.3);
  test::on_ranks({.ranks = Wave::kRanks, .timeout = 600s, .loss = {}}, [&](Ranks& on) {
    const auto rank = static_cast<size_t>(on.rank());
    meshgrad_runtime runtime{.runtime = Runtime({.threads = 1}), .ranks = std::move(on)};
    test::given_parts::Part part(wave, static_cast<int>(rank));
    const auto try_mesh = [&](const std::function<int(const meshgrad_mesh*)>& set_mesh) {
      meshgrad_mesh mesh = mesh_of(part);
      if (rank == 1) spoil(mesh);
      if (set_mesh(&mesh) != MESHGRAD_OK) texts[rank] = meshgrad_last_error();
      mesh = mesh_of(part);
      if (set_mesh(&mesh) != MESHGRAD_OK) throw std::runtime_error(meshgrad_last_error());
    };
    const auto need = [](int status) {
      if (status != MESHGRAD_OK) throw std::runtime_error(meshgrad_last_error());
    };
    std::vector<float> velocity = part.rows(wave.velocity(0));
    const meshgrad_array values = array_of(velocity, 2);
    if (!checkpoint.empty()) {
      meshgrad_predictor* predictor = nullptr;
      need(meshgrad_predictor_create(&runtime, checkpoint.c_str(), &predictor));
      try_mesh([&](const meshgrad_mesh* mesh) { return meshgrad_predictor_set_mesh(predictor, mesh); });
      need(meshgrad_predictor_set_field(predictor, 0, "velocity", &values));
      need(meshgrad_predictor_predict(predictor, 1));
      return meshgrad_predictor_destroy(predictor);
    }
    meshgrad_trainer* trainer = nullptr;
    if (create_trainer(runtime, trainer, rank != 1) == MESHGRAD_OK)
      throw std::runtime_error("a trainer that one rank refuses");
    need(create_trainer(runtime, trainer));
    try_mesh([&](const meshgrad_mesh* mesh) { return meshgrad_trainer_set_mesh(trainer, mesh); });
    for (int64_t t = 0; t < 3; ++t) {
      need(meshgrad_trainer_set_field(trainer, "velocity", &values));
      need(meshgrad_trainer_append(trainer));
    }
    int64_t taken = 0;
    need(meshgrad_trainer_train(trainer, 1, -1, &taken, nullptr));
    if (taken != 1) throw std::runtime_error("no step");
    meshgrad_trainer_destroy(trainer);
  });
  return texts;
}

TEST_CASE("a part that one rank cannot read is refused on all, at once, and the next mesh is taken") {
  const auto begin = std::chrono::steady_clock::now();
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  test::train_here(config);
  for (const std::string& checkpoint : {std::string(), config.run.dir + "/checkpoints/last.safetensors"}) {
    const auto refused = [&](const std::string& text, const Spoil& spoil) {
      const Texts texts = errors_of(checkpoint, spoil);
      CHECK_MESSAGE(contains(texts[1], text), texts[1]);
      for (const size_t other : {size_t{0}, size_t{2}}) CHECK(texts[other] != "");
    };
    refused("mesh: positions] needed data, got a null pointer",
            [](meshgrad_mesh& mesh) { mesh.positions.data = nullptr; });
    refused("mesh: node_type: dtype] needed MESHGRAD_I32",
            [](meshgrad_mesh& mesh) { mesh.node_type.dtype = MESHGRAD_F32; });
    refused("mesh: ghost_owner: dtype] needed MESHGRAD_I32",
            [](meshgrad_mesh& mesh) { mesh.ghost_owner.dtype = MESHGRAD_F64; });
    refused("cells [cells, nodes of a cell] or edges", [](meshgrad_mesh& mesh) { mesh.cells.rank = 3; });
  }
  CHECK(std::chrono::steady_clock::now() - begin < 500s);
}

TEST_CASE("where a rank's mesh is no structure at all, ranks that wait for its part end at once") {
  const Wave wave(6, 5, 0.3);
  Texts texts;
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> made = 0, told = 0;
  test::on_ranks({.ranks = Wave::kRanks, .timeout = 600s, .loss = {}}, [&](Ranks& on) {
    const auto rank = static_cast<size_t>(on.rank());
    meshgrad_runtime runtime{.runtime = Runtime({.threads = 1}), .ranks = std::move(on)};
    meshgrad_trainer* trainer = nullptr;
    if (create_trainer(runtime, trainer) != MESHGRAD_OK) throw std::runtime_error(meshgrad_last_error());
    ++made;
    while (made < Wave::kRanks) std::this_thread::yield();  // no rank ends while another makes its trainer
    test::given_parts::Part part(wave, static_cast<int>(rank));
    const meshgrad_mesh mesh = mesh_of(part);
    if (meshgrad_trainer_set_mesh(trainer, rank == 1 ? nullptr : &mesh) != MESHGRAD_OK)
      texts[rank] = meshgrad_last_error();
    ++told;
    while (told < Wave::kRanks) std::this_thread::yield();  // an end would tell the others too
    meshgrad_trainer_destroy(trainer);
  });
  CHECK(std::chrono::steady_clock::now() - begin < 500s);
  CHECK(contains(texts[1], "mesh] needed a pointer, got NULL"));
  for (const size_t other : {size_t{0}, size_t{2}})
    CHECK_MESSAGE(contains(texts[other], "end of rank"), texts[other]);
}

}  // namespace
}  // namespace meshgrad::c_parts_test
