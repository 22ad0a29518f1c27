// SPDX-License-Identifier: Apache-2.0
// Values at points and integrals: exact for linear fields on every kind of cell. Tables and arrays of
// predictions, and what is said of points outside.
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/tools/program/mesh_weights.h>
#include <meshgrad/train/tools/program/npz_file.h>
#include <meshgrad/train/tools/program/prediction_tables.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "support.h"
#include "train/fault_case.h"
#include "train/npz_arrays.h"
#include "train/vtu_file.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::check_fails;
using test::contains;
using test::message_of;
using test::Outcome;
using test::run_meshgrad;

using In = ProbePlace::In;
using Over = MeshRegion::Over;

/// A mesh by hand; cells as VTK numbers their corners.
struct HandMesh {
  std::vector<float> positions;
  std::vector<int32_t> corners, ends, node_type, cells;
  std::vector<uint8_t> types;
  SourceMesh source;
  MeshView view;

  HandMesh(int dim, std::vector<float> at, const std::vector<std::vector<int32_t>>& all,
           std::vector<uint8_t> vtk, std::vector<int32_t> of_nodes = {})
      : positions(std::move(at)), node_type(std::move(of_nodes)), types(std::move(vtk)) {
    for (const auto& cell : all) {
      corners.insert(corners.end(), cell.begin(), cell.end());
      ends.push_back(static_cast<int32_t>(corners.size()));
    }
    view.dim = dim;
    view.nodes = static_cast<int64_t>(positions.size()) / dim;
    if (node_type.empty()) node_type.assign(static_cast<size_t>(view.nodes), 0);
    view.positions = positions;
    view.node_type = node_type;
    source = {{}, corners, ends, types};
    if (!all.empty()) view.source = &source;
  }
  HandMesh(const HandMesh&) = delete;
  HandMesh& operator=(const HandMesh&) = delete;

  /// 1 + 2 x + 3 y + 4 z at the nodes.
  double sum(const NodeWeights& weights) const {
    double total = 0.0;
    for (size_t i = 0; i < weights.nodes.size(); ++i) total += weights.weights[i] * linear(weights.nodes[i]);
    return total;
  }
  double linear(int32_t node) const {
    double value = 1.0;
    for (int axis = 0; axis < view.dim; ++axis)
      value += (axis + 2) * static_cast<double>(positions[static_cast<size_t>(node * view.dim + axis)]);
    return value;
  }
};

Probe at(std::vector<double> where) { return {"probe", std::move(where)}; }

// A hexahedron, a wedge on it, a pyramid beside it, a tetrahedron at its corner.
const std::vector<float> kSolidPoints{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0,   1,   1, 0, 1,
                                      1, 1, 1, 0, 1, 1, 0, 0, 2, 0, 1, 2, 2, 0.5, 0.5, 0, 0, -1};
const std::vector<std::vector<int32_t>> kSolidCells{
    {0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 8, 7, 6, 9}, {1, 2, 6, 5, 10}, {0, 1, 3, 11}};

TEST_CASE("a point in a cell has the value of a linear field") {
  // A quad, a triangle and a pentagon.
  const HandMesh flat(2, {0, 0, 1, 0, 1, 1, 0, 1, 2, 0, 3, 0, 3, 2, 2, 2},
                      {{0, 1, 2, 3}, {1, 4, 2}, {4, 5, 6, 7, 2}}, {9, 5, 7});
  for (const auto& [x, y] : {std::pair{0.25, 0.6}, {1.3, 0.2}, {2.5, 1.5}, {1.0, 1.0}, {0.0, 0.5}}) {
    CAPTURE(x);
    const ProbePlace place = place_of(at({x, y}), flat.view);
    CHECK(place.in == In::cell);
    CHECK(flat.sum(place.weights) == doctest::Approx(1 + 2 * x + 3 * y));
  }
  const HandMesh solid(3, kSolidPoints, kSolidCells, {12, 13, 14, 10});
  for (const auto& [x, y, z] :
       {std::array{0.3, 0.7, 0.9}, {0.5, 0.4, 1.2}, {1.2, 0.5, 0.5}, {0.1, 0.2, -0.3}}) {
    CAPTURE(x);
    const ProbePlace place = place_of(at({x, y, z}), solid.view);
    CHECK(place.in == In::cell);
    CHECK(solid.sum(place.weights) == doctest::Approx(1 + 2 * x + 3 * y + 4 * z));
  }
  const ProbePlace corner = place_of(at({0.9, 0.05, 0.0}), solid.view);
  CHECK(corner.nearest == 1);
  CHECK(corner.distance == doctest::Approx(std::hypot(0.1, 0.05)));
}

TEST_CASE("a point outside of all cells has no value") {
  const HandMesh flat(2, {0, 0, 1, 0, 1, 1, 0, 1, 3, 0, 3, 1}, {{0, 1, 2, 3}, {4, 5, 2}}, {9, 5});
  const ProbePlace gap = place_of(at({1.5, 0.2}), flat.view);
  CHECK(gap.in == In::outside);
  CHECK(gap.weights.nodes.empty());
  CHECK(gap.nearest == 1);
  CHECK(contains(message_of([&] {
                   place_of(at({1, 2, 3}), flat.view);
                 }),
                 "[--probe] needed 2 coordinates, as the mesh has, got \"probe\""));
  // Without cells, or with surfaces in space, the nearest node.
  const HandMesh cloud(2, {0, 0, 1, 0, 1, 1}, {}, {});
  const ProbePlace near = place_of(at({0.9, 0.2}), cloud.view);
  CHECK(near.in == In::node);
  CHECK(near.weights.nodes == std::vector<int32_t>{1});
  CHECK(place_of(at({1.5, 0.2}), cloud.view).in == In::outside);
  const HandMesh shell(3, {0, 0, 0, 1, 0, 0, 0, 1, 1}, {{0, 1, 2}}, {5});
  CHECK(place_of(at({0.9, 0.1, 0.1}), shell.view).in == In::node);
}

// As of a file that changed after it was checked.
TEST_CASE("a cell of a node that is not there has the last node") {
  const HandMesh mesh(2, {0, 0, 1, 0, 0, 1}, {{0, 1, 99}}, {5});
  const ProbePlace place = place_of(at({0.25, 0.25}), mesh.view);
  REQUIRE(place.in == In::cell);
  CHECK(place.weights.nodes == std::vector<int32_t>{0, 1, 2});
}

TEST_CASE("integrals of a linear field are exact") {
  // The square from 0 to 2 of 4 quads: 1 at the left, 2 at the right, 3 below and above, 0 in the middle.
  const HandMesh square(2, {0, 0, 1, 0, 2, 0, 0, 1, 1, 1, 2, 1, 0, 2, 1, 2, 2, 2},
                        {{0, 1, 4, 3}, {1, 2, 5, 4}, {3, 4, 7, 6}, {4, 5, 8, 7}}, {9, 9, 9, 9},
                        {1, 3, 2, 1, 0, 2, 1, 3, 2});
  const std::vector<MeshRegion> regions = regions_of(square.view);
  REQUIRE(regions.size() == 5);
  CHECK(regions[0].over == Over::mesh);
  CHECK(regions[0].measure == doctest::Approx(4.0));
  CHECK(square.sum(regions[0].weights) == doctest::Approx(4.0 * 6.0));  // at the centre: 1 + 2 + 3
  CHECK(regions[1].over == Over::nodes);
  CHECK(regions[1].node_type == 0);
  CHECK(regions[1].measure == 1.0);
  CHECK(square.sum(regions[1].weights) == doctest::Approx(6.0));
  CHECK(regions[2].over == Over::boundary);
  CHECK(regions[2].measure == doctest::Approx(2.0));
  CHECK(square.sum(regions[2].weights) == doctest::Approx(2.0 * 4.0));
  CHECK(square.sum(regions[3].weights) == doctest::Approx(2.0 * 8.0));
  CHECK(regions[4].over == Over::nodes);  // no side has two nodes of type 3
  CHECK(regions[4].measure == 2.0);
}

TEST_CASE("faces of solids are a boundary where one cell has them") {
  std::vector<int32_t> types(12, 0);
  for (const size_t node : {0, 3, 4, 7}) types[node] = 5;  // the hexahedron's face at x = 0
  for (const size_t node : {1, 2, 5, 6}) types[node] = 6;  // the face that the pyramid shares
  const HandMesh solid(3, kSolidPoints, kSolidCells, {12, 13, 14, 10}, types);
  const std::vector<MeshRegion> regions = regions_of(solid.view);
  REQUIRE(regions.size() == 4);
  CHECK(regions[0].measure == doctest::Approx(1.0 + 0.5 + 1.0 / 3.0 + 1.0 / 6.0));
  CHECK(regions[1].over == Over::nodes);
  CHECK(regions[2].node_type == 5);
  CHECK(regions[2].over == Over::boundary);
  CHECK(regions[2].measure == doctest::Approx(1.0));
  CHECK(solid.sum(regions[2].weights) == doctest::Approx(1 + 3 * 0.5 + 4 * 0.5));
  CHECK(regions[3].over == Over::nodes);
}

TEST_CASE("a mesh of cells has integrals over its cells") {
  const std::vector<float> points{0, 0, 1, 0, 1, 1, 0, 1, 3, 0, 3, 1};
  HandMesh cells(2, {0.5F, 0.5F, 2.0F, 0.5F}, {{0, 1, 2, 3}, {1, 4, 5, 2}}, {9, 9}, {0, 4});
  cells.source.points = points;
  const std::vector<MeshRegion> regions = regions_of(cells.view);
  REQUIRE(regions.size() == 3);
  CHECK(regions[0].measure == doctest::Approx(3.0));
  CHECK(regions[2].over == Over::cells);
  CHECK(regions[2].node_type == 4);
  CHECK(regions[2].measure == doctest::Approx(2.0));
  CHECK(cells.sum(regions[2].weights) == doctest::Approx(2.0 * (1 + 2 * 2.0 + 3 * 0.5)));
  const ProbePlace place = place_of(at({2.9, 0.9}), cells.view);
  CHECK(place.in == In::cell);
  CHECK(cells.sum(place.weights) == doctest::Approx(1 + 2 * 2.0 + 3 * 0.5));
}

TEST_CASE("a probe is two or three numbers") {
  CHECK(parse_probe("-1,2.5").at == std::vector<double>{-1, 2.5});
  CHECK(parse_probe("1e-3,2,3").at == std::vector<double>{1e-3, 2, 3});
  for (const char* text : {"", "1", "1,", "1,x", "1,2,3,4", "1;2", "nan,1"}) {
    CAPTURE(text);
    CHECK(
        contains(message_of([&] { parse_probe(text); }), "[--probe] needed a point of two or three numbers"));
  }
}

TEST_CASE("an NPZ file is read as it was written") {
  const test::ScratchDirectory scratch;
  NpzFile file;
  const std::vector<float> positions{0, 0, 1, 0, 0, 1}, u = test::counting(6);
  file.add<float>("mesh_pos", {3, 2}, positions);
  file.add<int32_t>("cells", {1, 3}, std::vector<int32_t>{0, 1, 2});
  file.add<float>("u", {2, 3, 1}, u);
  file.add<double>("times", {2}, std::vector<double>{0.0, 0.5});
  file.write(scratch.path / "a.npz");
  ConvertOptions options;
  options.input = scratch.path / "a.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1.0};
  convert(options);
  const Dataset data = Dataset::open(options.output);
  CHECK(data.dt() == 0.5);
  const FieldView field = data.trajectory(0).field("u");
  CHECK(std::vector(field.values.begin(), field.values.end()) == u);
}

/// Lines of a table without its comments, by columns.
std::vector<std::vector<std::string>> rows_of(const fs::path& table) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream text(test::read_text(table));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
  }
  return rows;
}

/// A model of waves, and the first frame of one.
struct WaveModel {
  test::ScratchDirectory scratch;
  Config config;
  fs::path wave;
  WaveModel() {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 2;
    config.train.validate_every = 0;
    test::train_here(config);
    wave = write("wave.npz", 1.0F);
  }
  fs::path write(const std::string& name, float scale) const {
    test::SquareRecord record = test::wave_record(7, 1, 3.0);
    for (float& value : record.mesh_pos) value *= scale;
    const fs::path path = scratch.path / name;
    test::write_npz(path,
                    {{"mesh_pos", test::npy<float>("<f4", "(49, 2)", record.mesh_pos)},
                     {"cells", test::npy<int32_t>("<i4", "(72, 3)", record.cells)},
                     {"node_type", test::npy<int32_t>("<i4", "(49,)", record.node_type)},
                     {"velocity", test::npy<float>("<f4", "(49, 2)", record.velocity)}},
                    false);
    return path;
  }
  Outcome roll_out(std::vector<std::string> words) const {
    std::vector<std::string> all{
        "rollout", config.run.dir, wave.string(), "--steps", "3", "-o", (scratch.path / "out").string()};
    all.insert(all.end(), words.begin(), words.end());
    return run_meshgrad(all);
  }
};

TEST_CASE("a rollout writes arrays, points and integrals") {
  const WaveModel model;
  const fs::path out = model.scratch.path / "out" / "wave";
  const Outcome outcome =
      model.roll_out({"--format", "vtu,npz", "--probe", "0.2,0.3", "--probe", "0.31,0.12", "--integrals"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  for (const char* name : {"rollout.pvd", "rollout.npz", "rollout_probes.csv", "rollout_integrals.csv"}) {
    CHECK(fs::exists(out / name));
    CHECK(contains(outcome.out, name));
  }
  // The arrays are those of the VTU files, and convert reads them.
  ConvertOptions options;
  options.input = out / "rollout.npz";
  options.output = model.scratch.path / "back.mgd";
  options.split = {1.0};
  convert(options);
  const Dataset back = Dataset::open(options.output);
  const FieldView velocity = back.trajectory(0).field("velocity");
  CHECK(velocity.frames == 4);
  CHECK(back.dt() == doctest::Approx(Dataset::open(model.config.data.path).dt()));
  const auto probes = rows_of(out / "rollout_probes.csv");
  REQUIRE(probes.size() == 1 + 2 * 4);
  CHECK(probes[0] == std::vector<std::string>{"time", "probe", "x", "y", "in", "nearest_node", "distance",
                                              "velocity[0]", "velocity[1]"});
  const size_t node = 3 * 7 + 2;  // at 0.2, 0.3
  for (size_t t = 0; t < 4; ++t) {
    const std::vector<std::string>& row = probes[1 + 2 * t];
    CHECK(row[4] == "cell");
    CHECK(row[5] == std::to_string(node));
    CHECK(std::stod(row[7]) ==
          doctest::Approx(velocity.frame(static_cast<int64_t>(t))[2 * node]).epsilon(1e-5));
  }
  const auto integrals = rows_of(out / "rollout_integrals.csv");
  REQUIRE(integrals.size() == 1 + 4 * 2 * 5);  // the mesh and types 0, 4, 5, 6; integral and mean
  CHECK(integrals[1][1] == "mesh");
  CHECK(integrals[1][2] == "all");
  CHECK(std::stod(integrals[1][4]) == doctest::Approx(0.36));
  CHECK(integrals[3][1] == "nodes");
  CHECK(integrals[3][3] == "sum");
  CHECK(integrals[5][1] == "boundary");
  CHECK(std::stod(integrals[5][5]) ==
        doctest::Approx(std::stod(integrals[6][5]) * std::stod(integrals[5][4])));
  // A second call replaces its own files, of which fewer remain.
  REQUIRE(model.roll_out({"--format", "npz"}).code == 0);
  CHECK_FALSE(fs::exists(out / "rollout.pvd"));
  CHECK_FALSE(fs::exists(out / "frame_00001.vtu"));
  CHECK_FALSE(fs::exists(out / "rollout_probes.csv"));
  CHECK(fs::exists(out / "rollout.npz"));
}

TEST_CASE("a probe outside of the mesh is named") {
  const WaveModel model;
  const std::string large = model.write("large.npz", 10.0F).string();
  check_fails(
      {"rollout", model.config.run.dir, model.wave.string(), "--steps", "1", "--probe", "3,3"}, 1,
      {"[--probe 3,3] needed a point inside of " + model.wave.string(),
       "got 3.39 from the nearest node, 48 at 0.6,0.6", "fix: give it in the unit of the data's positions"});
  const Outcome one = model.roll_out({large, "--probe", "3,3"});
  CAPTURE(one.err);
  REQUIRE(one.code == 0);
  CHECK(contains(one.out, "probe 3,3 is outside of 1 of 2 meshes, where its values are nan"));
  CHECK(rows_of(model.scratch.path / "out" / "wave" / "rollout_probes.csv")[1][7] == "nan");
  check_fails({"rollout", model.config.run.dir, model.wave.string(), "--steps", "1", "--probe", "3,3,3"}, 2,
              {"[--probe] needed 2 coordinates, as the mesh has, got \"3,3,3\""});
  check_fails({"rollout", model.config.run.dir, "--probe", "3,3"}, 2,
              {"[--probe] needed NEW with it, got none"});
  check_fails({"rollout", model.config.run.dir, model.wave.string(), "--format", "hdf"}, 2,
              {"[--format] needed vtu or npz, got \"hdf\""});
}

TEST_CASE("several lists in one folder give files of their names") {
  const WaveModel model;
  const test::SquareRecord record = test::wave_record(7, 1, 3.0);
  const auto write_frame = [&](const std::string& name) {
    std::string points, types, velocity, corners;
    for (size_t node = 0; node < record.node_type.size(); ++node) {
      points += fmt::format("{} {} 0 ", record.mesh_pos[2 * node], record.mesh_pos[2 * node + 1]);
      types += fmt::format("{} ", record.node_type[node]);
      velocity += fmt::format("{} {} 0 ", record.velocity[2 * node], record.velocity[2 * node + 1]);
    }
    std::vector<size_t> ends(record.cells.size() / 3);
    for (size_t i = 0; i < ends.size(); ++i) ends[i] = 3 * (i + 1);
    test::write_text(
        model.scratch.path / "cases" / name,
        fmt::format(
            "<VTKFile type=\"UnstructuredGrid\"><UnstructuredGrid><Piece NumberOfPoints=\"49\" "
            "NumberOfCells=\"72\"><Points><DataArray type=\"Float32\" NumberOfComponents=\"3\">{}"
            "</DataArray></Points><Cells><DataArray type=\"Int32\" Name=\"connectivity\">{}</DataArray>"
            "<DataArray type=\"Int32\" Name=\"offsets\">{}</DataArray><DataArray type=\"UInt8\" "
            "Name=\"types\">{}</DataArray></Cells><PointData><DataArray type=\"Float32\" "
            "Name=\"velocity\" NumberOfComponents=\"3\">{}</DataArray><DataArray type=\"Int32\" "
            "Name=\"node_type\">{}</DataArray></PointData></Piece></UnstructuredGrid></VTKFile>",
            points, fmt::join(record.cells, " "), fmt::join(ends, " "),
            fmt::join(std::vector<int>(ends.size(), 5), " "), velocity, types));
  };
  for (const std::string name : {"slow", "fast"}) {
    write_frame(name + "_0.vtu");
    test::write_pvd(model.scratch.path / "cases" / (name + ".pvd"), {name + "_0.vtu"});
  }
  const fs::path out = model.scratch.path / "lists";
  const Outcome outcome =
      run_meshgrad({"rollout", model.config.run.dir, (model.scratch.path / "cases").string(), "--steps", "1",
                    "-o", out.string()});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(fs::exists(out / "slow" / "rollout.pvd"));
  CHECK(fs::exists(out / "fast" / "rollout.pvd"));
}

}  // namespace
}  // namespace meshgrad
