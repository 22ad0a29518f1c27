// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/tools/extras/first_config.h>

#include "train/graph_target_case.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::Outcome;
using meshgrad::test::run_meshgrad;
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

namespace {

namespace fs = std::filesystem;

/// Squares of 4 nodes, of types 0, 0, 1 (clamped) and 2 (loaded), whose fields all look alike to a reader.
fs::path pack_parts(const fs::path& folder, const std::vector<std::string>& names) {
  const fs::path input = folder / "parts";
  fs::create_directories(input);
  for (int i = 0; i < 6; ++i) {
    const float s = 1.0F + static_cast<float>(i);
    NpzArrays arrays = square_arrays(1);
    arrays.erase("u");
    arrays["node_type"] = npy<int32_t>("<i4", "(4,)", {0, 0, 1, 2});
    const std::vector<std::vector<float>> columns{
        {s, s, s, s}, {0, 0, 0, s}, {s, 2 * s, 0, 3 * s}, {s, s * s, 7, 2 * s}};
    for (size_t f = 0; f < names.size(); ++f) arrays[names[f]] = npy<float>("<f4", "(4, 1)", columns[f]);
    write_npz(input / ("part_" + std::to_string(i) + ".npz"), arrays, false);
  }
  ConvertOptions options;
  options.input = input;
  options.output = folder / "parts.mgd";
  options.separate_frames = true;
  convert(options);
  return options.output;
}

}  // namespace

TEST_CASE("init tells results from what is known") {
  const ScratchDirectory scratch;
  using Names = std::vector<std::string>;
  // By the alphabet the last one, the material, would be predicted.
  const fs::path path = pack_parts(scratch.path, {"young", "force_x", "u", "von_mises"});
  const FirstConfig parts = first_config(Dataset::open(path));
  CHECK(parts.config.data.targets == Names{"u", "von_mises"});
  CHECK(parts.config.data.inputs == Names{"force_x", "young"});
  CHECK(parts.config.data.predicted_types == std::vector<int64_t>{0, 2});
  CHECK(contains(parts.reasons.at("data.inputs"), "young: one value on each mesh"));
  CHECK(contains(parts.reasons.at("data.inputs"), "force_x: 0 but on nodes of type 2"));
  CHECK(contains(parts.reasons.at("data.targets"), "von_mises: named \"mises\""));
  // A pressure on one face is a load, a temperature of the whole mesh a condition.
  const FirstConfig named = first_config(
      Dataset::open(pack_parts(scratch.path / "named", {"temperature", "pressure", "velocity", "stress"})));
  CHECK(named.config.data.targets == Names{"stress", "velocity"});
  CHECK(named.config.data.inputs == Names{"pressure", "temperature"});
}

TEST_CASE("init takes numbers of meshes as targets that are named") {
  const ScratchDirectory scratch;
  using Names = std::vector<std::string>;
  for (const int64_t frames : {1, 4}) {
    const Dataset data = Dataset::open(test::pack_targets(scratch.path, {.frames = frames, .train = 4}));
    const DataConfig chosen = first_config(data, {}, {"u", "drag"}).config.data;
    CHECK(chosen.targets == (frames == 1 ? Names{"drag", "u"} : Names{"u", "drag"}));
    CHECK(chosen.inputs == (frames == 1 ? Names{"load", "g"} : Names{"u", "g", "load"}));
    CHECK(first_config(data, {}, {"drag"}).config.task.name == TaskName::graph_regression);
  }
}

TEST_CASE("init asks where nothing tells results from what is known") {
  const ScratchDirectory scratch;
  using Names = std::vector<std::string>;
  const fs::path path = pack_parts(scratch.path, {"a", "b", "c", "d"});
  CHECK(contains(message_of([&] { first_config(Dataset::open(path)); }),
                 "got candidates c and d; fix: name those to predict, for example meshgrad init --data " +
                     path.string() + " --targets d"));
  CHECK(first_config(Dataset::open(path), {}, {"c", "d"}).config.data.inputs == Names{"a", "b"});
  const Outcome chosen = run_meshgrad({"init", "--data", path.string(), "--targets", "d"});
  CHECK(chosen.code == 0);
  CHECK(contains(chosen.out, "targets = [\"d\"]"));
  for (const char* wrong : {"e", "d,d", "a,b,c,d"})
    CHECK(run_meshgrad({"init", "--data", path.string(), "--targets", wrong}).code == 2);
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
