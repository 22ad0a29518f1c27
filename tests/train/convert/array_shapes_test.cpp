// SPDX-License-Identifier: Apache-2.0
// Shapes and numbers of arrays that can be read in two ways.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <filesystem>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/vtu_file.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::counting;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::write_npz;
using meshgrad::test::write_vtu;

namespace {

std::string array_of(const std::string& shape, size_t count) {
  return npy<float>("<f4", shape, counting(count));
}

/// Five nodes, the last in no cell.
struct Shapes {
  ScratchDirectory scratch;
  NpzArrays arrays{{"mesh_pos", npy<float>("<f4", "(5, 2)", {0, 0, 1, 0, 1, 1, 0, 1, 2, 2})},
                   {"cells", npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 0, 2, 3})}};
  ConvertOptions options;
  ConvertReport report;
  Shapes() {
    options.input = scratch.path / "a.npz";
    options.output = scratch.path / "out.mgd";
    options.split = {1};
  }
  std::string error() {
    write_npz(options.input, arrays, false);
    return message_of([&] { report = convert(options); });
  }
  std::vector<float> frame(const std::string& field, int64_t i) const {
    const Dataset data = Dataset::open(options.output);
    const auto values = data.trajectory(0).field(field).frame(i);
    return {values.begin(), values.end()};
  }
};

}  // namespace

TEST_CASE("frames or components first needs a word where nothing tells") {
  Shapes given;
  for (const char* shape : {"(2, 5)", "(3, 5)"}) {
    given.arrays["u"] = array_of(shape, shape[1] == '2' ? 10 : 15);
    CHECK(contains(given.error(), "array u] needed a shape that can be read in one way"));
  }
  given.arrays["u"] = array_of("(2, 5)", 10);
  given.options.axes = {{"u", "components,nodes"}};
  CHECK(given.error() == "");
  CHECK(given.frame("u", 0) == std::vector<float>{0, 5, 1, 6, 2, 7, 3, 8, 4, 9});
  given.options.axes = {};
  given.arrays["dt"] = npy<float>("<f4", "()", {0.5F});  // which may stand beside one frame
  CHECK(contains(given.error(), "got [2, 5], which is [frames,nodes] or [components,nodes]"));
  given.arrays["times"] = npy<float>("<f4", "(2,)", {0, 0.5F});
  CHECK(given.error() == "");
  CHECK(given.report.frames == 2);
  given.arrays.erase("times");
  given.arrays.erase("dt");
  given.arrays["p"] = array_of("(2, 5, 1)", 10);  // or another field with so many frames
  CHECK(given.error() == "");
  given.arrays["u"] = array_of("(4, 5)", 20);
  given.arrays.erase("p");
  CHECK(given.error() == "");
  CHECK(given.report.frames == 4);
  // Ten columns are no tensor, and three are frames where there are three times.
  given.arrays["u"] = array_of("(2, 5, 10)", 100);
  CHECK(contains(given.error(), "which is [frames,nodes,components] or [components,nodes,frames]"));
  given.arrays["u"] = array_of("(2, 5, 3)", 30);
  CHECK(given.error() == "");
  CHECK(given.report.frames == 2);
  given.arrays["times"] = npy<float>("<f4", "(3,)", {0, 1, 2});
  CHECK(contains(given.error(), "which is [frames,nodes,components] or [components,nodes,frames]"));
}

TEST_CASE("as many times as nodes are refused") {
  Shapes given;
  given.arrays["u"] = array_of("(5, 5, 2)", 50);
  given.options.axes = {{"u", "frames,nodes,components"}};
  given.arrays["times"] = npy<float>("<f4", "(5,)", {0, 1, 2, 3, 4});
  CHECK(contains(given.error(),
                 "array times] needed a length that tells times from a field on nodes, got [5], of 5"));
}

TEST_CASE("as many frames as nodes need a word") {
  Shapes given;
  given.arrays["u"] = array_of("(5, 5)", 25);
  CHECK(contains(given.error(), "got [5, 5], which is [frames,nodes] or [nodes,frames]"));
  given.options.axes = {{"u", "nodes,frames"}};
  CHECK(given.error() == "");
  CHECK(given.frame("u", 1) == std::vector<float>{1, 6, 11, 16, 21});
  given.arrays["u"] = array_of("(5, 5, 2)", 50);
  given.options.axes = {};
  CHECK(contains(given.error(), "which is [frames,nodes,components] or [nodes,frames,components]"));
  given.options.axes = {{"u", "frames,nodes,components"}};
  CHECK(given.error() == "");
  CHECK(given.frame("u", 1)[0] == 10);
}

TEST_CASE("nodes before frames are refused, or said") {
  Shapes given;
  given.arrays["u"] = array_of("(5, 20)", 100);
  CHECK(contains(given.error(), "got [5, 20], which is [nodes,components] or [nodes,frames]"));
  given.options.axes = {{"u", "nodes,frames"}};
  CHECK(given.error() == "");
  CHECK(given.report.frames == 20);
  CHECK(given.frame("u", 1) == std::vector<float>{1, 21, 41, 61, 81});
  given.options.axes = {{"u", "nodes,time"}};
  CHECK(contains(given.error(), "[axes] needed frames, components, and nodes"));
  given.options.axes = {{"u", "frames,nodes,components"}};
  CHECK(contains(given.error(), "array u] needed an axis for each of frames,nodes,components"));
  given.options.axes = {{"v", "nodes,frames"}};
  CHECK(contains(given.error(), "needed the array v, as --axes v=nodes,frames says"));
}

TEST_CASE("cells that count from 1 are refused, or said") {
  Shapes given;
  given.arrays["u"] = array_of("(5,)", 5);
  given.arrays["cells"] = npy<int32_t>("<i4", "(2, 3)", {1, 2, 3, 1, 3, 4});
  CHECK(contains(given.error(),
                 "array cells] needed nodes that count from 0 or from 1, got 1 to 4 of 5 nodes: from 0 "
                 "with node 0 unused, or from 1; fix: --first-node 0 or"));
  given.options.first_node = 1;
  CHECK(given.error() == "");
  {
    const Dataset data = Dataset::open(given.options.output);
    const auto cells = data.trajectory(0).mesh().cells;
    CHECK(std::vector<int32_t>(cells.begin(), cells.end()) == std::vector<int32_t>{0, 1, 2, 0, 2, 3});
  }
  given.options.first_node = 0;
  CHECK(given.error() == "");
  given.arrays["cells"] = npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 0, 2, 3});
  given.options.first_node = 1;
  CHECK(contains(given.error(), "needed nodes from 1 to 5, as --first-node 1 says, got 0 to 3"));
  given.options.first_node.reset();
  given.arrays.erase("cells");
  given.arrays["edges"] = npy<int32_t>("<i4", "(3, 2)", {1, 2, 2, 3, 3, 5});
  CHECK(contains(given.error(),
                 "array mesh_edge] needed nodes that count from 0 or from 1, got 1 to 5 of 5 nodes: from "
                 "0 with node 0 unused is too many; from 1 fits"));
}

TEST_CASE("statics that repeat for every frame are read once") {
  Shapes given;
  const auto twice = [](std::vector<int32_t> values) {
    values.insert(values.end(), values.begin(), values.end());
    return values;
  };
  given.arrays["mesh_pos"] =
      npy<float>("<f4", "(2, 5, 2)", {0, 0, 1, 0, 1, 1, 0, 1, 2, 2, 0, 0, 1, 0, 1, 1, 0, 1, 2, 2});
  given.arrays["cells"] = npy<int32_t>("<i4", "(2, 2, 3)", twice({0, 1, 2, 0, 2, 3}));
  given.arrays["node_type"] = npy<int32_t>("<i4", "(2, 5, 1)", twice({0, 0, 4, 0, 0}));
  given.arrays["u"] = array_of("(2, 5, 1)", 10);
  given.arrays["stiffness"] = npy<float>("<f4", "(2, 5)", {1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
  CHECK(given.error() == "");
  REQUIRE(given.report.fields.size() == 2);
  CHECK(given.report.fields[0].name == "stiffness");
  CHECK_FALSE(given.report.fields[0].dynamic);
  CHECK(given.report.fields[1].dynamic);
  CHECK(given.report.node_types == std::vector<int64_t>{8, 0, 0, 0, 2});
  given.arrays["cells"] = npy<int32_t>("<i4", "(2, 2, 3)", {0, 1, 2, 0, 2, 3, 0, 1, 3, 1, 2, 3});
  CHECK(contains(given.error(),
                 "array cells] needed one mesh in all frames, got [2, 2, 3], where frame 1 differs"));
}

TEST_CASE("what repeats in one trajectory only stays over time") {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch.path / "in");
  for (const int run : {0, 1}) {
    const float more = run == 0 ? 0.0F : 1.0F;
    write_npz(scratch.path / "in" / fmt::format("{}.npz", run),
              {{"mesh_pos", npy<float>("<f4", "(3, 2)", {0, 0, 1, 0, 1, 1})},
               {"cells", npy<int32_t>("<i4", "(1, 3)", {0, 1, 2})},
               {"u", npy<float>("<f4", "(2, 3, 1)", {0, 1, 2, 3, 4, 5})},
               {"inflow", npy<float>("<f4", "(2, 3, 1)", {0, 1, 2, 0, 1, 2 + more})}},
              false);
  }
  ConvertOptions options;
  options.input = scratch.path / "in";
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  const ConvertReport report = convert(options);
  CHECK(report.trajectories == 2);
  CHECK(report.fields[0].name == "inflow");
  CHECK(report.fields[0].dynamic);
}

TEST_CASE("array files named by steps need a word") {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch.path / "in");
  ConvertOptions options;
  options.input = scratch.path / "in";
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  const auto write = [&](const std::string& name, const std::string& shape) {
    write_npz(options.input / name,
              {{"mesh_pos", npy<float>("<f4", "(3, 2)", {0, 0, 1, 0, 1, 1})},
               {"cells", npy<int32_t>("<i4", "(1, 3)", {0, 1, 2})},
               {"u", npy<float>("<f4", shape, counting(shape == "(3,)" ? 3 : 12))}},
              false);
  };
  for (const char* name : {"step_1.npz", "step_2.npz", "step_10.npz"}) write(name, "(3,)");
  CHECK(contains(
      message_of([&] { convert(options); }),
      "needed files of whole simulations, got 3 files of one frame, step_{frame}.npz: the steps of a "
      "simulation, or as many solutions; fix: --separate"));
  CHECK_FALSE(std::filesystem::exists(options.output));
  options.separate_frames = true;
  CHECK(convert(options).trajectories == 3);
  options.separate_frames = false;
  for (const char* name : {"step_1.npz", "step_2.npz", "step_10.npz"}) write(name, "(4, 3, 1)");
  CHECK(convert(options).frames == 12);
}

TEST_CASE("a third component is empty in all trajectories, or in none") {
  const auto vectors = [](const std::string& third) {
    return "<DataArray type=\"Float64\" Name=\"U\" NumberOfComponents=\"3\">1 2 " + third + " 3 4 " + third +
           " 5 6 " + third + " 7 8 " + third + "</DataArray>";
  };
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = scratch.path / "in";
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  const auto components = [&](const std::string& a, const std::string& b) {
    write_vtu(options.input / "case_a.vtu", {.more = vectors(a)});
    write_vtu(options.input / "case_b.vtu", {.more = vectors(b)});
    const ConvertReport report = convert(options);
    CHECK(report.trajectories == 2);
    return report.fields[0].components;
  };
  CHECK(components("0", "0") == 2);
  CHECK(components("nan", "nan") == 2);
  CHECK(components("nan", "0") == 2);
  CHECK(components("0", "9") == 3);
  CHECK(components("9", "0") == 3);
  {
    const Dataset data = Dataset::open(options.output);
    CHECK(data.trajectory(0).field("U").frame(0)[2] == 9);
    CHECK(data.trajectory(1).field("U").frame(0)[2] == 0);
  }
  CHECK(contains(
      message_of([&] { components("nan", "9"); }),
      "case_a.vtu: field U] needed numbers in the third component, as another trajectory has, got nan"));
}
