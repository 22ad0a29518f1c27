// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/tools/extras/first_config.h>

#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_arrays;
using meshgrad::test::write_npz;

TEST_CASE("init predicts second changes only of smooth motion") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1};
  const auto predicted = [&](bool smooth, bool alone) {
    std::vector<float> moved;
    for (int frame = 0; frame < 12; ++frame) {
      const int at = smooth ? frame * frame : frame * 7 % 5;
      for (int i = 0; i < 8; ++i) moved.push_back(0.01F * static_cast<float>((i + 1) * at));
    }
    NpzArrays arrays = square_arrays(12);
    arrays.erase("u");
    if (!alone)
      arrays["temperature"] =
          npy<float>("<f4", "(12, 4, 2)", std::vector<float>(moved.rbegin(), moved.rend()));
    arrays["disp"] = npy<float>("<f4", "(12, 4, 2)", moved);
    write_npz(options.input, arrays, false);
    convert(options);
    return first_config(Dataset::open(options.output), {}).config.data.predict;
  };
  CHECK(predicted(true, true) == Prediction::second_change);
  CHECK(predicted(false, true) == Prediction::change);
  CHECK(predicted(true, false) == Prediction::change);
}

TEST_CASE("init needs three frames for second changes") {
  const ScratchDirectory scratch;
  std::vector<float> moved;
  for (int frame = 0; frame < 12; ++frame)
    for (int i = 0; i < 8; ++i) moved.push_back(0.01F * static_cast<float>((i + 1) * frame + frame * frame));
  NpzArrays arrays = square_arrays(12);
  arrays.erase("u");
  arrays["disp"] = npy<float>("<f4", "(12, 4, 2)", moved);
  write_npz(scratch.path / "run.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  for (const bool whole : {false, true}) {
    options.split = whole ? std::vector<double>{1} : std::vector<double>{0.8, 0.1, 0.1};  // 8, 2 and 2 frames
    convert(options);
    const Config config = first_config(Dataset::open(options.output), {}).config;
    CHECK(config.data.targets == std::vector<std::string>{"world_pos"});
    CHECK(config.data.predict == (whole ? Prediction::second_change : Prediction::change));
  }
}

TEST_CASE("init sees a field that changes alike everywhere") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square_arrays(5);
  arrays["u"] = npy<float>("<f4", "(5, 4, 1)", {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4});
  write_npz(scratch.path / "run.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1};
  convert(options);
  const Config config = first_config(Dataset::open(options.output), {}).config;
  CHECK(config.task.name == TaskName::mesh_dynamics);
  CHECK(config.data.targets == std::vector<std::string>{"u"});
}
