// SPDX-License-Identifier: Apache-2.0
// Runs of MeshGraphNets with slices between their blocks: resumed, recomputed, in 16 bits, on ranks, captured
// on a GPU or the simulated device where there is one; and what refuses them.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <numeric>

#include "support.h"
#include "train/graph_case.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

Config with_slices(Config config) {
  config.model.blocks = 3;
  config.model.slices = 4;
  config.model.slices_every = 1;
  config.model.slice_heads = 2;
  return config;
}
Config slices_on_waves(const fs::path& folder) {
  Config config = with_slices(test::small_config(folder, test::pack_waves(folder, 4, 6)));
  config.train.steps = 20;
  config.train.validate_every = 5;
  config.train.checkpoint_every = 5;
  config.train.log_every = 1;
  return config;
}
/// Whether the mean of the last five losses is lower than that of the first five.
bool learns(const Config& config) {
  const std::vector<double> losses = test::losses_of(config.run.dir);
  const auto mean = [](auto from) { return std::accumulate(from, from + 5, 0.0) / 5.0; };
  return mean(losses.end() - 5) < mean(losses.begin());
}

TEST_CASE("keys of slices are checked") {
  const auto refused = [](const std::vector<std::string>& settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(refused({"model.slices=64"}).empty());
  CHECK(contains(refused({"model.slice_heads=4"}),
                 "[model.slice_heads] needed 8 with model.slices = 0, got 4; fix: leave it out, or set "
                 "model.slices"));
  CHECK(contains(refused({"model.slices=4", "model.slice_heads=7"}),
                 "[model.slice_heads] needed a divisor of model.width = 128, got 7"));
  CHECK(contains(refused({"model.slices=64", "model.slice_heads=1"}),
                 "[model.slices] needed 1 to 128 slices of 1 to 128 columns a head, of which at most 4096 "
                 "together; a head has 128, got 64"));
  CHECK(contains(refused({"model.slices=4", "model.slices_every=15"}),
                 "[model.slices_every] needed less than model.blocks = 15"));
  CHECK(contains(refused({"model.slices=4", "ranks.partition=rcb"}),
                 "[ranks.partition] needed whole meshes with model.slices above 0, got \"rcb\""));
  CHECK(contains(refused({"model.slices=4", "ranks.parts_in_turn=2"}), "[ranks.parts_in_turn] needed whole"));
  CHECK(contains(refused({"model.name=gat", "model.width=64", "model.slices=4"}),
                 "[model.slices] needed 0 with model.name = \"gat\""));
}

TEST_CASE("a model with slices learns, and resumes to the same bits") {
  const ScratchDirectory scratch;
  Config config = slices_on_waves(scratch.path);
  test::train_here(config);
  CHECK(learns(config));
  const auto whole = test::tensors_of(config);
  CHECK(whole.contains("model.slices.1.temperatures"));
  Config along = config;
  along.run.dir = (scratch.path / "pieces").string();
  int64_t calls = 0;
  test::train_here(along, false, [&] { return ++calls == 7; });
  test::train_here(along, true, nullptr, 3);
  CHECK(test::tensors_of(along) == whole);
}

TEST_CASE("a model with slices has its bits recomputed or on two ranks") {
  const ScratchDirectory scratch;
  Config config = slices_on_waves(scratch.path);
  config.train.steps = 3;
  config.train.accumulate = 2;
  config.train.validate_every = 0;
  test::check_same_bits(config);
}

TEST_CASE("a model with slices learns in 16 bits") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const ScratchDirectory scratch;
    Config config = slices_on_waves(scratch.path);
    config.precision = dtype;
    test::train_here(config);
    CAPTURE(name_of(dtype));
    CHECK(learns(config));
  }
}

TEST_CASE("a model with slices of whole graphs and of nodes") {
  const ScratchDirectory scratch;
  Config graphs = with_slices(test::graph_config(
      scratch.path, test::pack_graphs(scratch.path, test::small_graphs(9)), TaskName::graph_regression));
  graphs.train.steps = 2;
  test::train_here(graphs);
  CHECK(test::tensors_of(graphs).contains("model.slices.0.out.weight"));
  const ScratchDirectory rings;
  Config nodes = with_slices(test::class_config(rings.path, test::pack_rings(rings.path, 12)));
  nodes.train.steps = 2;
  test::train_here(nodes);
  CHECK(test::tensors_of(nodes).contains("model.slices.0.out.weight"));
}

TEST_CASE("a model with slices runs on no mesh in parts") {
  const ScratchDirectory scratch;
  Config config = slices_on_waves(scratch.path);
  config.train.steps = 1;
  test::train_here(config);
  Runtime runtime({.threads = 1});
  MeshPredictor predictor(runtime, fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
  CHECK(contains(message_of([&] { predictor.set_mesh({.in_parts = true}); }),
                 "needed whole meshes, for a model with model.slices, got meshes in parts"));
}

TEST_CASE("a student without slices has no teacher with them") {
  const ScratchDirectory scratch;
  Config teacher = slices_on_waves(scratch.path);
  teacher.train.steps = 1;
  test::train_here(teacher);
  Config student = teacher;
  student.run.dir = (scratch.path / "student").string();
  student.distill.teacher = teacher.run.dir;
  test::train_here(student);
  student.run.dir = (scratch.path / "refused").string();
  student.model = Config().model;
  CHECK(contains(message_of([&] { test::train_here(student); }),
                 "[distill.teacher] needed a model with model.slices = 0, as this run has no slices, got "));
}

TEST_CASE("a device trains a model with slices as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = slices_on_waves(scratch.path);
  config.model.width = 8;
  config.train.steps = 2;
  config.train.accumulate = 1;
  config.train.validate_every = 2;
  test::check_trains_on_device(config);
}

}  // namespace
}  // namespace meshgrad
