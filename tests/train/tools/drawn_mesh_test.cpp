// SPDX-License-Identifier: Apache-2.0
// Cells of a source come back in files and pictures: types, polygons, and the mesh around a graph on cells.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/tools/program/drawn_mesh.h>
#include <meshgrad/train/tools/program/field_picture.h>
#include <meshgrad/train/tools/program/field_raster.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

struct Grid {
  std::vector<double> points;  // [points, 3]
  std::vector<std::vector<int64_t>> cells;
  std::vector<int> types;
};

// In z = 0: a quad, a triangle, and a pentagon.
const Grid kSurface{{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 2, 0, 0, 3, 0, 0, 3, 2, 0, 2, 2, 0},
                    {{0, 1, 2, 3}, {1, 4, 2}, {4, 5, 6, 7, 2}},
                    {9, 5, 7}};
const Grid kQuads{kSurface.points, {{0, 1, 2, 3}, {1, 4, 2}, {4, 5, 6, 7}}, {9, 5, 9}};
// A hexahedron, a wedge on it, a pyramid beside it, a tetrahedron.
const Grid kSolids{{0, 0, 0, 1, 0, 0, 1,   1, 0, 0,   1,   0, 0,   0,   1,   1, 0, 1,
                    1, 1, 1, 0, 1, 1, 0.5, 0, 2, 0.5, 1.5, 2, 2.5, 0.5, 0.5, 2, 1, 3},
                   {{0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 8, 7, 6, 9}, {1, 2, 6, 5, 10}, {5, 6, 10, 11}},
                   {12, 13, 14, 10}};

std::string text_of(const Grid& grid, bool on_cells) {
  std::string points, cells, ends, types, values;
  for (const double x : grid.points) points += fmt::format("{} ", x);
  size_t end = 0;
  for (const auto& cell : grid.cells) {
    for (const int64_t corner : cell) cells += fmt::format("{} ", corner);
    ends += fmt::format("{} ", end += cell.size());
  }
  for (const int type : grid.types) types += fmt::format("{} ", type);
  const size_t rows = on_cells ? grid.cells.size() : grid.points.size() / 3;
  for (size_t i = 0; i < rows; ++i) values += fmt::format("{} ", i);
  const std::string_view data = on_cells ? "CellData" : "PointData";
  return fmt::format(
      "<VTKFile type=\"UnstructuredGrid\" byte_order=\"LittleEndian\"><UnstructuredGrid><Piece "
      "NumberOfPoints=\"{}\" NumberOfCells=\"{}\"><{data}><DataArray type=\"Float32\" Name=\"u\" "
      "format=\"ascii\">{}</DataArray></{data}><Points><DataArray type=\"Float64\" NumberOfComponents=\"3\" "
      "format=\"ascii\">{}</DataArray></Points><Cells><DataArray type=\"Int64\" Name=\"connectivity\" "
      "format=\"ascii\">{}</DataArray><DataArray type=\"Int64\" Name=\"offsets\" "
      "format=\"ascii\">{}</DataArray><DataArray type=\"UInt8\" Name=\"types\" "
      "format=\"ascii\">{}</DataArray></Cells></Piece></UnstructuredGrid></VTKFile>",
      grid.points.size() / 3, grid.cells.size(), values, points, cells, ends, types, fmt::arg("data", data));
}

Dataset packed(const ScratchDirectory& scratch, const Grid& grid, bool on_cells) {
  std::ofstream(scratch.path / "in.vtu") << text_of(grid, on_cells);
  ConvertOptions options;
  options.input = scratch.path / "in.vtu";
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  convert(options);
  return Dataset::open(options.output);
}

VtkGrid written(const ScratchDirectory& scratch, const MeshView& mesh, std::span<const float> u = {},
                const PointField* positions = nullptr) {
  std::vector<PointField> fields;
  if (!u.empty()) fields.push_back({"u", 1, u});
  write_vtu(scratch.path / "f.vtu", mesh, fields, 0, positions);
  const std::string text = read_text(scratch.path / "f.vtu");
  return parse_vtk_xml(std::as_bytes(std::span(text)), "f.vtu");
}

void check_cells(const VtkGrid& found, const Grid& grid) {
  std::vector<int64_t> corners, ends;
  for (const auto& cell : grid.cells) {
    corners.insert(corners.end(), cell.begin(), cell.end());
    ends.push_back(static_cast<int64_t>(corners.size()));
  }
  CHECK(found.connectivity == corners);
  CHECK(found.ends == ends);
  CHECK(std::vector<int>(found.types.begin(), found.types.end()) == grid.types);
  const auto& points = std::get<std::vector<float>>(found.points.values);
  CHECK(std::vector<double>(points.begin(), points.end()) == grid.points);
}

}  // namespace

TEST_CASE("files have the cells of the source") {
  const ScratchDirectory scratch;
  for (const Grid& grid : {kQuads, kSurface, kSolids}) {
    const Dataset data = packed(scratch, grid, false);
    const TrajectoryView t = data.trajectory(0);
    const VtkGrid found = written(scratch, t.mesh(), t.field("u").values);
    check_cells(found, grid);
    REQUIRE(found.point_arrays.size() == 2);
    CHECK(found.cell_arrays.empty());
    CHECK(std::get<std::vector<float>>(found.point_arrays[1].values)[5] == 5);
  }
}

TEST_CASE("a graph on cells is written as cell fields") {
  const ScratchDirectory scratch;
  for (const Grid& grid : {kQuads, kSurface, kSolids}) {
    const Dataset data = packed(scratch, grid, true);
    const TrajectoryView t = data.trajectory(0);
    CHECK(t.mesh().nodes == std::ssize(grid.cells));
    const VtkGrid found = written(scratch, t.mesh(), t.field("u").values);
    check_cells(found, grid);
    CHECK(found.point_arrays.empty());
    REQUIRE(found.cell_arrays.size() == 2);
    CHECK(found.cell_arrays[0].name == "node_type");
    CHECK(std::get<std::vector<float>>(found.cell_arrays[1].values)[2] == 2);
    // Of a mesh that moves there are only positions of the centres.
    const PointField moved{"world_pos", t.mesh().dim, t.mesh().positions};
    const VtkGrid centres = written(scratch, t.mesh(), t.field("u").values, &moved);
    CHECK(centres.point_count() == t.mesh().nodes);
    CHECK(centres.types.front() == 3);
  }
}

TEST_CASE("points far from zero get their origin back") {
  const ScratchDirectory scratch;
  Grid grid = kQuads;
  for (size_t i = 0; i < grid.points.size(); i += 3) grid.points[i] += 3.0e7;
  const Dataset data = packed(scratch, grid, true);
  CHECK(data.trajectory(0).mesh().origin[0] > 2e7);
  const VtkGrid found = written(scratch, data.trajectory(0).mesh());
  CHECK(std::get<std::vector<double>>(found.points.values) == grid.points);
}

TEST_CASE("meshes with their own cells need no source") {
  const ScratchDirectory scratch;
  const auto sources = [&](const Grid& grid, bool on_cells) {
    packed(scratch, grid, on_cells);
    const auto file = PackedFile::open(scratch.path / "out.mgd");
    return file->trailer().source_mesh_count;
  };
  CHECK(sources(kQuads, false) == 0);
  CHECK(sources(kSurface, false) == 1);
  CHECK(sources(kSolids, true) == 1);
}

TEST_CASE("a damaged source is an error at the first touch") {
  const ScratchDirectory scratch;
  packed(scratch, kSurface, true);
  const std::string good = read_text(scratch.path / "out.mgd");
  PackedTrailer trailer;
  std::memcpy(&trailer, good.data() + good.size() - sizeof trailer, sizeof trailer);
  SourceMeshRecord record;
  std::memcpy(&record, good.data() + trailer.source_mesh_offset, sizeof record);
  const auto source = reinterpret_cast<const std::byte*>(good.data());
  CHECK(section_checksum(record, {source + record.offset, record.bytes}) == record.checksum);
  const SourceMeshLayout layout = *source_mesh_layout(record, 2);
  const auto error_of = [&](const std::string& text) {
    std::vector<uint64_t> words((text.size() + 7) / 8);
    std::memcpy(words.data(), text.data(), text.size());
    return message_of([&] {
      const auto file = PackedFile::from_bytes(std::as_bytes(std::span(words)).first(text.size()), "a.mgd");
      file->mesh(0);
    });
  };
  const auto put = [&](std::string& text, uint64_t at, auto value) {
    std::memcpy(text.data() + at, &value, sizeof value);
  };
  std::string flipped = good;
  flipped[record.offset + layout.types] ^= 1;
  CHECK(contains(error_of(flipped), "a.mgd: source of mesh 0] needed the checksum"));
  const auto lying = [&](uint64_t at, auto value, SourceMeshRecord changed) {
    std::string text = good;
    put(text, at, value);
    changed.checksum = section_checksum(
        changed, {reinterpret_cast<const std::byte*>(text.data()) + changed.offset, changed.bytes});
    put(text, trailer.source_mesh_offset, changed);
    return error_of(text);
  };
  const std::string cells = "source of mesh 0] needed cells of existing points";
  CHECK(contains(lying(record.offset + layout.corners, int32_t{8}, record), cells));
  CHECK(contains(lying(record.offset + layout.ends, int32_t{-1}, record), cells));
  CHECK(contains(lying(record.offset + layout.ends, int32_t{5}, record), cells));
  CHECK(contains(lying(record.offset + layout.types, uint8_t{68}, record), cells));
  SourceMeshRecord wrong = record;
  wrong.points = 1U << 31U;
  CHECK(contains(lying(0, good[0], wrong), "a consistent record"));
  wrong = record;
  wrong.mesh = 1;
  CHECK(contains(lying(0, good[0], wrong), "a consistent record"));
}

TEST_CASE("made and periodic edges are not drawn") {
  const ScratchDirectory scratch;
  // A ring of five nodes, 0.2 apart, with a period of 1.
  const std::vector<float> positions{0, 0, 0.2F, 0, 0.4F, 0, 0.6F, 0, 0.8F, 0};
  const std::vector<int32_t> types(5, 0), first{0, 1, 2, 3, 4}, second{1, 2, 3, 4, 0};
  PackedFileWriter writer(scratch.path / "ring.mgd", 2, {});
  const PackedMesh mesh{2, CellKind::none, positions, types, {}};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, first), mesh,
                                         edges_from_pairs(first, second, 5, "ring"));
  writer.add_trajectory({"ring", "train", number, 1, 0, 0, {}});
  DataStatistics statistics;
  statistics.edges.resize(3);
  writer.finish({}, statistics, "train", "");
  const Dataset plain = Dataset::open(scratch.path / "ring.mgd");
  const std::vector<int32_t> open{1, 0, 2, 1, 3, 2, 4, 3};
  const auto lines = [&](const Dataset& data) {
    std::vector<int32_t> drawn = drawn_edges(data.trajectory(0).mesh());
    for (size_t i = 0; i < drawn.size(); i += 2)
      if (drawn[i] < drawn[i + 1]) std::swap(drawn[i], drawn[i + 1]);
    return drawn;
  };
  const std::vector<int32_t> closed = lines(plain);
  CHECK(closed.size() == 10);  // nothing says that the long one crosses a border
  const Dataset periodic = plain.with_edges({.period = {1, 0, 0}, .hops = 2});
  CHECK(periodic.trajectory(0).mesh().edges == 20);  // all pairs
  CHECK(lines(periodic) == open);
  const VtkGrid found = written(scratch, periodic.trajectory(0).mesh());
  CHECK(found.cell_count() == 4);
  CHECK(lines(plain.with_edges({.period = {}, .hops = 2})) == closed);
}

TEST_CASE("pictures of cell graphs have one colour a cell") {
  const ScratchDirectory scratch;
  const auto bytes_at = [&](bool on_cells, const std::vector<float>& values,
                            std::initializer_list<std::array<int, 2>> places) {
    const Dataset data = packed(scratch, kSurface, on_cells);
    const TrajectoryView t = data.trajectory(0);
    const DrawnMesh drawn(t.mesh());
    const FieldImage image =
        raster_field(drawn.view(), project(drawn.view()), drawn.values(values), 0, 1, 60, 40);
    std::vector<int> bytes;
    for (const auto& [x, y] : places) bytes.push_back(image.pixels[static_cast<size_t>(y * 60 + x)]);
    return bytes;
  };
  // The quad, the triangle below its diagonal, the pentagon, and outside.
  const std::vector<float> of_cells{0.25F, 0.5F, 1};
  const int quarter = FieldImage::byte_of(0.25), half = FieldImage::byte_of(0.5);
  CHECK(bytes_at(true, of_cells, {{1, 38}, {18, 22}, {23, 38}, {58, 1}, {10, 5}}) ==
        std::vector<int>{quarter, quarter, half, 255, FieldImage::kNoMesh});
  const std::vector<float> x{0, 1 / 3.F, 1 / 3.F, 0, 2 / 3.F, 1, 1, 2 / 3.F};
  const std::vector<int> across = bytes_at(false, x, {{1, 38}, {30, 30}, {58, 1}});
  CHECK(across[1] == doctest::Approx(FieldImage::byte_of(30.5 / 60)).epsilon(0.01));
  CHECK(across[2] == doctest::Approx(FieldImage::byte_of(58.5 / 60)).epsilon(0.01));
}

TEST_CASE("pictures of a graph on solid cells are cut through them") {
  const ScratchDirectory scratch;
  const Dataset data = packed(scratch, kSolids, true);
  const TrajectoryView t = data.trajectory(0);
  const DrawnMesh drawn(t.mesh());
  const FieldImage image = raster_field(drawn.view(), project(drawn.view()),
                                        drawn.values(std::vector<float>{0, 0.25F, 0.5F, 1}), 0, 1, 90, 75);
  // z is the longest axis, then x; the cut is at y = 0.75.
  CHECK(project(drawn.view()).axes == std::array{2, 0, 1});
  CHECK(project(drawn.view()).cut == 0.75);
  for (const float value : {0.0F, 0.25F, 0.5F, 1.0F}) {
    CAPTURE(value);
    const int byte = FieldImage::byte_of(value);
    CHECK(std::count(image.pixels.begin(), image.pixels.end(), byte) > 20);
  }
  const std::string svg =
      draw_comparison(t.mesh(), {"u", 1, t.field("u").values}, {"u", 1, t.field("u").values}, {});
  CHECK(contains(svg, "cut at y"));
}
