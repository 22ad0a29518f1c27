// SPDX-License-Identifier: Apache-2.0
// Arrays of a host application on the CPU: they are read where they are, and predictions copy none to the
// heap.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/embed/host_copies.h>
#include <meshgrad/train/embed/mesh_predictor.h>

#include <utility>
#include <vector>

#include "counted_new.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::caller_arrays_test {
namespace {

TEST_CASE("on the CPU arrays are read and written where they are") {
  const Runtime runtime({.threads = 1});
  HostCopies copies(runtime);
  std::vector<float> floats(6);
  std::vector<double> doubles(6);
  std::vector<int32_t> integers{0, 1, 2, 0, 2, 3};
  CHECK(copies.read(Numbers(floats), "").data() == floats.data());
  CHECK(copies.read(Numbers(doubles), "").data() == doubles.data());
  CHECK(copies.room_for(WritableNumbers(floats), "").data() == floats.data());
  CHECK(copies.room_for(WritableNumbers(doubles), "").data() == doubles.data());
  CHECK(copies.read(Integers(integers), "").data() == integers.data());
  const MeshArrays mesh = copies.read({.positions = doubles, .cells = integers, .nodes_per_cell = 3});
  CHECK(mesh.positions.data() == doubles.data());
  CHECK(mesh.cells.data() == integers.data());
}

TEST_CASE("later predictions allocate no block of an array's size") {
  const test::ScratchDirectory scratch;
  test::NpzArrays arrays = test::square_arrays(8);
  arrays["load"] = test::npy<float>("<f4", "(4, 3)", test::counting(12));
  test::write_npz(scratch.path / "square.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "square.npz";
  options.output = scratch.path / "square.mgd";
  options.split = {1.0};
  convert(options);
  Config config = test::small_config(scratch.path, options.output);
  config.data.inputs = {"load", "u"};
  config.data.targets = {"u"};
  config.train.steps = 2;
  config.train.validate_every = 0;
  test::train_here(config);

  const test::SquareRecord grid = test::wave_record(70, 1, 0.3);
  const std::vector<int32_t> types(grid.node_type.begin(), grid.node_type.end());
  const std::vector<float> u(types.size()), load(3 * types.size());
  const std::vector<double> wide_u(u.size()), wide_load(load.size());
  std::vector<float> predicted(u.size());
  Runtime runtime({.threads = 1});
  MeshPredictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  predictor.set_mesh(
      {.positions = grid.mesh_pos, .cells = grid.cells, .nodes_per_cell = 3, .node_type = types});
  const auto largest_block = [&](const Numbers& target, const Numbers& other) {
    largest_allocation = 0;
    counting = true;
    predictor.set_field("u", target);
    predictor.set_field("load", other);
    predictor.predict(2);
    predictor.get_field("u", predicted);
    counting = false;
    return largest_allocation.load();
  };
  // A byte of each node; the arrays have 4 to 24.
  for (const auto& [target, other] : {std::pair<Numbers, Numbers>{u, load}, {wide_u, wide_load}}) {
    largest_block(target, other);
    const size_t largest = largest_block(target, other);
    if (kNewIsCounted) CHECK(largest < types.size());
  }
  counting = true;
  const std::vector<float> copied = load;
  counting = false;
  CHECK((largest_allocation.load() >= copied.size() * sizeof(float)) == kNewIsCounted);
}

}  // namespace
}  // namespace meshgrad::caller_arrays_test
