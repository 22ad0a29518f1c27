// SPDX-License-Identifier: Apache-2.0
// What a prediction on the CPU takes of the heap: no copy of a host application's arrays.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/host_copies.h>
#include <meshgrad/train/embed/mesh_predictor.h>

#include <vector>

#include "counted_new.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::caller_arrays_test {
namespace {

TEST_CASE("on the CPU arrays are read and written where they are") {
  const Runtime runtime({.threads = 1});
  HostCopies copies(runtime);
  std::vector<float> floats(6);
  std::vector<double> doubles(6);
  std::vector<int32_t> integers(6);
  CHECK(copies.read(Numbers(floats), "").data() == floats.data());
  CHECK(copies.read(Numbers(doubles), "").data() == doubles.data());
  CHECK(copies.room_for(WritableNumbers(floats), "").data() == floats.data());
  CHECK(copies.room_for(WritableNumbers(doubles), "").data() == doubles.data());
  CHECK(copies.read(Integers(integers), "").data() == integers.data());
  const MeshArrays mesh = copies.read({.positions = doubles, .cells = integers, .nodes_per_cell = 3});
  CHECK(mesh.positions.data() == doubles.data());
  CHECK(mesh.cells.data() == integers.data());
}

TEST_CASE("predictions after the first take no block of an array's size from the heap") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 2;
  config.train.validate_every = 0;
  test::train_here(config);
  const test::SquareRecord record = test::wave_record(70, 1, 0.3);
  const std::vector<int32_t> types(record.node_type.begin(), record.node_type.end());
  const std::vector<double> wide(record.velocity.begin(), record.velocity.end());
  std::vector<float> predicted(record.velocity.size());
  Runtime runtime({.threads = 1});
  MeshPredictor predictor(runtime, config.run.dir + "/checkpoints/last.safetensors");
  predictor.set_mesh(
      {.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3, .node_type = types});
  const auto largest_block = [&](const Numbers& velocity) {
    largest_allocation = 0;
    counting = true;
    predictor.set_field("velocity", velocity);
    predictor.predict(2);
    predictor.get_field("velocity", predicted);
    counting = false;
    return largest_allocation.load();
  };
  largest_block(record.velocity);
  // A byte of each node; the arrays have four to sixteen.
  CHECK(largest_block(record.velocity) < types.size());
  CHECK(largest_block(wide) < types.size());
  counting = true;
  const std::vector<float> copied = record.velocity;
  counting = false;
  CHECK(largest_allocation.load() >= copied.size() * sizeof(float));  // what counts is in place
}

}  // namespace
}  // namespace meshgrad::caller_arrays_test
