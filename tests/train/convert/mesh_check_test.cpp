// SPDX-License-Identifier: Apache-2.0
// Data that could be read in two ways, or that has doubtful places: read right, refused, or warned about.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/mesh_check.h>
#include <meshgrad/train/data/dataset.h>

#include <algorithm>
#include <cmath>

#include "paths.h"
#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::counting;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_arrays;
using meshgrad::test::write_npz;

namespace {

namespace fs = std::filesystem;

struct Converted {
  std::string error;
  ConvertReport report;
  bool warns(const std::string& text) const {
    return std::any_of(report.warnings.begin(), report.warnings.end(),
                       [&](const std::string& warning) { return contains(warning, text); });
  }
};

Converted convert_arrays(const NpzArrays& arrays, std::optional<CellKind> cells = {}) {
  const ScratchDirectory scratch;
  write_npz(scratch.path / "a.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "a.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1.0};
  options.cells = cells;
  Converted converted;
  converted.error = message_of([&] { converted.report = convert(options); });
  CHECK(fs::exists(options.output) == converted.error.empty());
  return converted;
}

std::string with(const std::string& array, const std::string& content) {
  NpzArrays arrays = square_arrays(5);
  arrays[array] = content;
  return convert_arrays(arrays).error;
}

std::string shape(size_t a, size_t b) { return "(" + std::to_string(a) + ", " + std::to_string(b) + ")"; }

// 10 x 10 quads on a sheet in 3-D: z = bend * x * y.
NpzArrays sheet(float bend, int side = 10) {
  std::vector<float> positions;
  std::vector<int32_t> cells;
  for (int y = 0; y <= side; ++y) {
    for (int x = 0; x <= side; ++x) {
      const auto fx = static_cast<float>(x);
      const auto fy = static_cast<float>(y);
      positions.insert(positions.end(), {fx, fy, bend * fx * fy});
      if (x == side || y == side) continue;
      const int32_t at = y * (side + 1) + x;
      for (const int32_t node : {at, at + 1, at + side + 2, at + side + 1}) cells.push_back(node);
    }
  }
  const size_t nodes = positions.size() / 3;
  return {{"mesh_pos", npy<float>("<f4", shape(nodes, 3), positions)},
          {"cells", npy<int32_t>("<i4", shape(cells.size() / 4, 4), cells)},
          {"node_type", npy<int32_t>("<i4", shape(nodes, 1), std::vector<int32_t>(nodes, 0))},
          {"u", npy<float>("<f4", "(2, " + std::to_string(nodes) + ", 1)", counting(2 * nodes))}};
}

// A cube cut into 6 tetrahedra around its diagonal, flattened in z.
NpzArrays tetrahedra(float height) {
  std::vector<float> positions;
  for (int i = 0; i < 8; ++i) {
    positions.insert(positions.end(), {static_cast<float>(i & 1), static_cast<float>(i >> 1 & 1),
                                       height * static_cast<float>(i >> 2 & 1)});
  }
  const std::vector<int32_t> cells{0, 1, 3, 7, 0, 1, 5, 7, 0, 2, 3, 7, 0, 2, 6, 7, 0, 4, 5, 7, 0, 4, 6, 7};
  return {{"mesh_pos", npy<float>("<f4", "(8, 3)", positions)},
          {"cells", npy<int32_t>("<i4", "(6, 4)", cells)},
          {"node_type", npy<int32_t>("<i4", "(8,)", std::vector<int32_t>(8, 0))},
          {"u", npy<float>("<f4", "(2, 8, 1)", counting(16))}};
}

}  // namespace

TEST_CASE("quads of a surface in 3-D are not taken for tetrahedra") {
  for (const float bend : {0.0F, 0.01F}) {
    CAPTURE(bend);
    const Converted converted = convert_arrays(sheet(bend));
    REQUIRE(converted.error == "");
    // 2 * 10 * 11 sides of quads, plus 2 diagonals in each of 100 tetrahedra
    CHECK(converted.report.edges_max == 2 * 220);
    REQUIRE(converted.report.notes.size() == 1);
    CHECK(contains(converted.report.notes[0],
                   "cells of 4 nodes were read as quads, since they are flat; --cells tet"));
  }
  CHECK(convert_arrays(sheet(0), CellKind::tetrahedron).report.edges_max == 2 * (220 + 200));
  CHECK(convert_arrays(sheet(0), CellKind::tetrahedron).report.notes.empty());
}

TEST_CASE("tetrahedra stay tetrahedra, also thin ones") {
  for (const float height : {1.0F, 0.01F}) {
    CAPTURE(height);
    const Converted converted = convert_arrays(tetrahedra(height));
    REQUIRE(converted.error == "");
    CHECK(converted.report.edges_max == 2 * 19);
    REQUIRE(converted.report.notes.size() == 1);
    CHECK(contains(converted.report.notes[0],
                   "cells of 4 nodes were read as tetrahedra; --cells quad changes it"));
  }
  CHECK(convert_arrays(tetrahedra(1), CellKind::quad).report.edges_max < 2 * 19);
}

TEST_CASE("a kind of cells that the data do not have is refused") {
  CHECK(contains(convert_arrays(square_arrays(5), CellKind::quad).error,
                 "[cells] needed cells of 4 nodes, got 3 nodes a cell in 2-D"));
  CHECK(contains(convert_arrays(sheet(0), CellKind::hexahedron).error,
                 "[cells] needed cells of 8 nodes in 3-D, got 4"));
  NpzArrays edges = square_arrays(5);
  edges.erase("cells");
  edges["mesh_edge"] = npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 1, 2, 3});
  CHECK(contains(convert_arrays(edges, CellKind::triangle).error, "a.npz without cells"));
  CHECK(convert_arrays(edges).error == "");
}

TEST_CASE("node types that change over time are refused") {
  std::vector<int32_t> types(20, 0);
  CHECK(with("node_type", npy<int32_t>("<i4", "(5, 4, 1)", types)) == "");
  types[13] = 6;
  CHECK(contains(with("node_type", npy<int32_t>("<i4", "(5, 4, 1)", types)),
                 "array node_type] needed [nodes]: types that do not change over time, got [5, 4, 1]"));
  CHECK(contains(with("mesh_pos", npy<float>("<f4", "(5, 4, 4)", counting(80))),
                 "array mesh_pos] needed [nodes, 2 or 3], or over frames [frames, nodes, 2 or 3], got"));
  CHECK(contains(with("mesh_pos", npy<float>("<f4", "(3, 4, 2)", counting(24))),
                 "array u] needed 3 frames, as the arrays before it, got [5, 4, 1]"));
  NpzArrays twice = square_arrays(5);
  twice["mesh_pos"] = twice["world_pos"] = npy<float>("<f4", "(5, 4, 2)", counting(40));
  CHECK(contains(convert_arrays(twice).error,
                 "needed positions over frames, or a field \"world_pos\", got positions over frames and a "
                 "field \"world_pos\""));
  twice["mesh_pos"] = square_arrays(5)["mesh_pos"];
  CHECK(convert_arrays(twice).error == "");
}

TEST_CASE("HDF5: changing rows of node types are refused") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = test::data_file("two_meshes_unnamed.h5");
  options.output = scratch.path / "a.mgd";
  options.split = {1.0};
  const auto error = [&](std::vector<std::string> names) {
    options.fields = std::move(names);
    return message_of([&] { convert(options); });
  };
  const std::string good = error({"x", "y", "z", "u_x", "u_y", "kind"});
  if (contains(good, "a build of meshgrad with HDF5")) return;
  CHECK(good == "");
  CHECK(error({"a", "b", "c", "x", "y", "kind"}) == "");
  const Dataset moving = Dataset::open(options.output);
  const auto positions = moving.trajectory(0).field("world_pos");
  REQUIRE(positions.components == 2);
  CHECK(std::ranges::equal(positions.frame(0), moving.trajectory(0).mesh().positions));
  CHECK_FALSE(std::ranges::equal(positions.frame(1), moving.trajectory(0).mesh().positions));
  CHECK(contains(error({"x", "y", "z", "node_type", "u", "kind"}),
                 "nodal_data: row node_type] needed node types that do not change over time, got a change at "
                 "frame 1, node 0"));
}

TEST_CASE("doubtful places of a mesh are counted, with the first") {
  NpzArrays arrays = square_arrays(5);
  CHECK(convert_arrays(arrays).report.warnings.empty());
  arrays["mesh_pos"] = npy<float>("<f4", "(4, 2)", {0, 0, 1, 0, 1, 1, 1, 0});
  CHECK(convert_arrays(arrays).warns("a.npz] nodes at the place of another node: 1, first nodes 1 and 3"));
  arrays["mesh_pos"] = square_arrays(5)["mesh_pos"];
  arrays["cells"] = npy<int32_t>("<i4", "(3, 3)", {0, 1, 2, 0, 0, 1, 1, 1, 1});
  const Converted degenerate = convert_arrays(arrays);
  CHECK(degenerate.warns("a.npz] cells that repeat a node: 2, first cell 1"));
  CHECK(degenerate.warns("a.npz] nodes without an edge: 1, first node 3"));
  arrays.erase("cells");
  arrays["mesh_edge"] = npy<int32_t>("<i4", "(2, 6)", {0, 1, 2, 1, 0, 3, 1, 2, 3, 2, 1, 3});
  const Converted edges = convert_arrays(arrays);
  CHECK(edges.warns("a.npz] edges listed again: 2, first column 3"));
  CHECK(edges.warns("a.npz] edges from a node to itself: 1, first column 5"));
}

TEST_CASE("a triangle among quads repeats its last node; -1 says so") {
  NpzArrays arrays = square_arrays(5);
  arrays["cells"] = npy<int32_t>("<i4", "(2, 4)", {0, 1, 2, 2, 0, 2, 3, 3});
  const Converted mixed = convert_arrays(arrays);
  CHECK(mixed.error == "");
  CHECK(mixed.report.warnings.empty());
  CHECK(mixed.report.edges_max == 10);
  arrays["cells"] = npy<int32_t>("<i4", "(2, 4)", {0, 1, 2, -1, 0, 2, 3, -1});
  CHECK(contains(
      convert_arrays(arrays).error,
      "got -1 in cell 0; fix: mixed cells: repeat the last node in place of -1, as in [a, b, c, c]"));
}

TEST_CASE("arrays that are no fields are left out and listed") {
  NpzArrays arrays = square_arrays(5);
  arrays["kappa"] = npy<double>("<f8", "()", {0.5});
  arrays["levels"] = npy<float>("<f4", "(3,)", {1, 2, 3});
  arrays["label"] = npy<int32_t>("<U2", "(1,)", {'a', 'b'});
  arrays["extra"] = npy<int64_t>("|O", "(1,)", {1});
  const Converted converted = convert_arrays(arrays);
  REQUIRE(converted.error == "");
  CHECK(converted.report.fields.size() == 1);
  CHECK(
      converted.warns("a.npz] left out, since they are no fields on 4 nodes: extra (no numbers), kappa [], "
                      "label (no numbers), levels "
                      "[3]"));
  CHECK(contains(with("cells", npy<int32_t>("<U2", "(3,)", {1, 2, 3, 4, 5, 6})), "array cells] needed"));
  CHECK(
      contains(with("w", npy<float>(">f4", "(5, 4)", counting(20))), "array w] needed little-endian floats"));
}

TEST_CASE("evenly spaced times give dt") {
  NpzArrays arrays = square_arrays(5);
  arrays["times"] = npy<double>("<f8", "(5,)", {2.0, 2.25, 2.5, 2.75, 3.0});
  Converted converted = convert_arrays(arrays);
  CHECK(converted.report.dt == 0.25);
  CHECK(converted.report.warnings.empty());
  arrays["dt"] = npy<double>("<f8", "()", {0.2});
  CHECK(contains(convert_arrays(arrays).error,
                 "array times] needed times 0.2 apart, as dt says, got 0.25 apart"));
  arrays.erase("dt");
  arrays["times"] = npy<double>("<f8", "(5,)", {2.0, 2.25, 2.5, 2.75, 3.5});
  converted = convert_arrays(arrays);
  CHECK(converted.report.dt == 0);
  CHECK(converted.warns("a.npz] times are not evenly spaced ("));
  arrays["times"] = npy<double>("<f8", "(6,)", {0, 1, 2, 3, 4, 5});
  CHECK(convert_arrays(arrays).warns("no fields on 4 nodes: times [6]"));
}

TEST_CASE("frames come first; the other order is refused") {
  CHECK(
      contains(with("v", npy<float>("<f4", "(4, 5)", counting(20))),
               "array v] needed [frames, nodes], frames first, got [4, 5] and 5 frames; fix: transpose it"));
  CHECK(contains(with("v", npy<float>("<f4", "(4, 5, 2)", counting(40))),
                 "got [4, 5, 2]; fix: move the axis of frames to the front"));
  CHECK(with("v", npy<float>("<f4", "(1, 4, 5)", counting(20))) == "");
  CHECK(with("v", npy<float>("<f4", "(4, 6)", counting(24))) == "");
  NpzArrays arrays = square_arrays(5);
  arrays["u"] = npy<float>("<f4", "(4, 20)", counting(80));
  CHECK(contains(convert_arrays(arrays).error, "got [4, 20], which is [nodes,components] or [nodes,frames]"));
  arrays["times"] = npy<float>("<f4", "(20,)", counting(20));
  CHECK(contains(convert_arrays(arrays).error, "got [4, 20] and 20 frames"));
}

TEST_CASE("mesh_edge beside cells is said to be of no use") {
  NpzArrays arrays = square_arrays(5);
  arrays["mesh_edge"] = npy<int32_t>("<i4", "(2, 1)", {0, 1});
  CHECK(convert_arrays(arrays).warns("a.npz] mesh_edge was not used: the sides of the cells are the edges"));
}

TEST_CASE("edges with fields are counted as they are listed") {
  NpzArrays arrays = square_arrays(5);
  arrays.erase("cells");
  arrays["edges"] = npy<int32_t>("<i4", "(4, 2)", {2, 3, 0, 1, 1, 0, 3, 2});
  arrays["edge:length"] = npy<float>("<f4", "(4,)", {23, 1, 10, 32});
  CHECK_FALSE(convert_arrays(arrays).warns("itself"));
  arrays.erase("edge:length");
  arrays["edges"] = npy<int32_t>("<i4", "(4, 2)", {2, 3, 0, 1, 1, 0, 2, 2});
  CHECK(convert_arrays(arrays).warns("edges from a node to itself: 1, first column 3"));
}

TEST_CASE("names of fields have no control characters") {
  CHECK(contains(
      with("u\n", npy<float>("<f4", "(5, 4)", counting(20))),
      "a.npz] needed field names without control characters, got \"u\\x0a\"; fix: rename the field"));
}

TEST_CASE("a trajectory in two splits is named") {
  const ScratchDirectory scratch;
  fs::create_directories(scratch.path / "data");
  NpzArrays arrays = square_arrays(5);
  for (const char* name : {"a_train", "b_train", "c_test", "d_valid", "e_test"}) {
    const bool copy = name[0] == 'b' || name[0] == 'c' || name[0] == 'e';
    std::vector<float> u = counting(20);
    u[7] = copy ? 1.0F : static_cast<float>(name[0]);
    arrays["u"] = npy<float>("<f4", "(5, 4)", u);
    write_npz(scratch.path / "data" / (std::string(name) + ".npz"), arrays, false);
  }
  ConvertOptions options;
  options.input = scratch.path / "data";
  options.output = scratch.path / "a.mgd";
  const ConvertReport report = convert(options);
  const std::string expected =
      "[c_test.npz] in split test: mesh and fields are those of b_train.npz in split train, so errors there "
      "say little "
      "(and 1 more like it)";
  REQUIRE(report.warnings.size() == 1);
  CHECK(report.warnings[0] == expected);
  CHECK(Dataset::open(options.output).warnings() == report.warnings);
  fs::remove(scratch.path / "data/c_test.npz");
  fs::remove(scratch.path / "data/e_test.npz");
  CHECK(convert(options).warnings.empty());
}

TEST_CASE("a value that flattens the normaliser is named with its place") {
  const size_t frames = 50;
  std::vector<float> u(frames * 4);
  for (size_t i = 0; i < u.size(); ++i) u[i] = std::sin(static_cast<float>(i));
  NpzArrays arrays = square_arrays(5);
  const auto with_value = [&](float value) {
    std::vector<float> values = u;
    values[17 * 4 + 3] = value;
    arrays["u"] = npy<float>("<f4", "(50, 4, 1)", values);
    return convert_arrays(arrays);
  };
  CHECK(with_value(1e30F).warns(
      "a.npz] field u has 1e+30 at frame 17, node 3, where 98 % of the values span 2"));
  CHECK(with_value(-4000.0F).warns("field u has -4000 at frame 17, node 3"));
  CHECK(with_value(1000.0F).report.warnings.empty());
  CHECK(convert_arrays(square_arrays(5)).report.warnings.empty());
  // A source at one node of a field that is 0 elsewhere is no fault.
  std::ranges::fill(u, 0.0F);
  CHECK(with_value(1e6F).report.warnings.empty());
}
