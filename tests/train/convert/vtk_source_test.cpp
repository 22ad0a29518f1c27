// SPDX-License-Identifier: Apache-2.0
// Files of VTK by hand, and what is refused. tests/gate/vtk_sources_test.py reads what vtk and meshio write.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/cell_graph.h>
#include <meshgrad/train/convert/narrow_fields.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;

namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// Two triangles of a square, a line on its left side, a field of each kind.
const std::string kSquare = R"(<?xml version="1.0"?>
<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt32">
<UnstructuredGrid>
<FieldData><DataArray type="Float64" Name="TimeValue" NumberOfTuples="1">0.5</DataArray></FieldData>
<Piece NumberOfPoints="4" NumberOfCells="3">
<Points><DataArray type="Float32" NumberOfComponents="3">0 0 0 1 0 0 1 1 0 0 1 0</DataArray></Points>
<Cells>
<DataArray type="Int32" Name="connectivity">0 1 2 0 2 3 0 3</DataArray>
<DataArray type="Int32" Name="offsets">3 6 8</DataArray>
<DataArray type="UInt8" Name="types">5 5 3</DataArray>
</Cells>
<PointData>
<DataArray type="Float32" Name="velocity" NumberOfComponents="3">1 2 0 3 4 0 5 6 0 7 8 0</DataArray>
<DataArray type="Float64" Name="p">1 2 3 4e0</DataArray>
<DataArray type="String" Name="notes">65 0</DataArray>
</PointData>
<CellData><DataArray type="Int64" Name="tag">1 2 4</DataArray></CellData>
</Piece></UnstructuredGrid></VTKFile>)";

const std::string kLegacy = R"(# vtk DataFile Version 3.0
a square
ASCII
DATASET UNSTRUCTURED_GRID
POINTS 4 float
0 0 0 1 0 0 1 1 0 0 1 0
CELLS 2 8
3 0 1 2
3 0 2 3
CELL_TYPES 2
5 5
POINT_DATA 4
SCALARS p double 1
LOOKUP_TABLE default
1 2 3 4
VECTORS velocity float
1 2 0 3 4 0 5 6 0 7 8 0
METADATA
INFORMATION 1
NAME L2_NORM_RANGE LOCATION vtkDataArray

FIELD more 1
an%20id 1 4 int
1 2 3 4
)";

// A file with one cell of this type on the unit square or cube, and a field of each kind.
std::string one_cell(int type, const std::string& points, const std::string& point_field = "p") {
  const auto count = std::count(points.begin(), points.end(), ',') + 1;
  std::string text = points, numbers;
  std::replace(text.begin(), text.end(), ',', ' ');
  for (int64_t i = 0; i < count; ++i) numbers += std::to_string(i) + ' ';
  const auto array = [](const std::string& attributes, const std::string& values) {
    return "<DataArray " + attributes + '>' + values + "</DataArray>";
  };
  return "<VTKFile type=\"UnstructuredGrid\"><UnstructuredGrid><Piece NumberOfCells=\"1\" NumberOfPoints=\"" +
         std::to_string(count) + "\"><Points>" + array("type=\"Float32\" NumberOfComponents=\"3\"", text) +
         "</Points><Cells>" + array("type=\"Int32\" Name=\"connectivity\"", numbers) +
         array("type=\"Int32\" Name=\"offsets\"", std::to_string(count)) +
         array("type=\"Int32\" Name=\"types\"", std::to_string(type)) + "</Cells><PointData>" +
         array((point_field == "id" ? "type=\"Int32\" Name=\"" : "type=\"Float32\" Name=\"") + point_field +
                   '"',
               numbers) +
         "</PointData><CellData>" + array("type=\"Float32\" Name=\"load\"", "7") +
         "</CellData></Piece></UnstructuredGrid></VTKFile>";
}

const std::string kTriangle = "0 0 0,1 0 0,0 1 0", kTriangleSides = ",.5 0 0,.5 .5 0,0 .5 0";
const std::string kQuad = "0 0 0,1 0 0,1 1 0,0 1 0", kQuadSides = ",.5 0 0,1 .5 0,.5 1 0,0 .5 0";
const std::string kPrism = kTriangle + ",0 0 1,1 0 1,0 1 1" + kTriangleSides + ",.5 0 1,.5 .5 1,0 .5 1";
const std::string kCube = kQuad + ",0 0 1,1 0 1,1 1 1,0 1 1" + kQuadSides +
                          ",.5 0 1,1 .5 1,.5 1 1,0 .5 1,0 0 .5,1 0 .5,1 1 .5,0 1 .5";
const std::string kCubeFaces = ",0 .5 .5,1 .5 .5,.5 0 .5,.5 1 .5";
const std::string kTetrahedron = kTriangle + ",0 0 1" + kTriangleSides + ",0 0 .5,.5 0 .5,0 .5 .5";

// The volume of hexahedra and tetrahedra, the area of flat quads and triangles.
double size_of(const RawTrajectory& t) {
  const auto dim = static_cast<size_t>(t.dim), width = static_cast<size_t>(t.nodes_per_cell);
  const auto at = [&](int32_t node, size_t axis) {
    return static_cast<double>(t.positions[static_cast<size_t>(node) * dim + axis]);
  };
  const auto from_origin = [&](int32_t a, int32_t b,
                               int32_t c) {  // six times a tetrahedron, twice a triangle
    if (dim == 2)
      return at(a, 0) * (at(b, 1) - at(c, 1)) + at(b, 0) * (at(c, 1) - at(a, 1)) +
             at(c, 0) * (at(a, 1) - at(b, 1));
    return at(a, 0) * (at(b, 1) * at(c, 2) - at(b, 2) * at(c, 1)) +
           at(a, 1) * (at(b, 2) * at(c, 0) - at(b, 0) * at(c, 2)) +
           at(a, 2) * (at(b, 0) * at(c, 1) - at(b, 1) * at(c, 0));
  };
  double sum = 0;
  for (size_t cell = 0; cell < t.cells.size(); cell += width) {
    const int32_t* c = t.cells.data() + cell;
    const auto face = [&](int i, int j, int k, int l) {
      return (from_origin(c[i], c[j], c[k]) + from_origin(c[i], c[k], c[l]) + from_origin(c[j], c[k], c[l]) +
              from_origin(c[j], c[l], c[i])) /
             2;
    };
    if (dim == 2) {
      sum += (width == 4 ? face(0, 1, 2, 3) : from_origin(c[0], c[1], c[2])) / 2;
    } else if (width == 4) {
      sum += (from_origin(c[0], c[2], c[1]) + from_origin(c[0], c[1], c[3]) + from_origin(c[1], c[2], c[3]) +
              from_origin(c[2], c[0], c[3])) /
             6;
    } else {
      sum += (face(3, 2, 1, 0) + face(4, 5, 6, 7) + face(0, 1, 5, 4) + face(1, 2, 6, 5) + face(2, 3, 7, 6) +
              face(3, 0, 4, 7)) /
             6;
    }
  }
  return sum;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

RawTrajectory parse(const std::string& text, const std::string& types = "", std::string* warning = nullptr) {
  const VtkGrid grid = text.starts_with("# vtk") ? parse_vtk_legacy(bytes_of(text), "a.vtk")
                                                 : parse_vtk_xml(bytes_of(text), "a.vtu");
  const WarningCallback warn = [&](const std::string& line) {
    if (warning != nullptr) *warning = line;
  };
  RawTrajectory t = VtkTrajectory(grid, "a.vtu", types, warn).finish(false);
  FieldWidths({}).narrow(t);
  validate(t);
  return t;
}

const RawField& field(const RawTrajectory& t, const std::string& name) {
  for (const RawField& one : t.fields)
    if (one.name == name) return one;
  FAIL(name);
  return t.fields.front();
}

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("a VTU file keeps cells of the largest dimension") {
  std::string warning;
  const RawTrajectory t = parse(kSquare, "", &warning);
  CHECK(t.nodes == 4);
  CHECK(t.dim == 2);
  CHECK(t.cells == std::vector<int32_t>{0, 1, 2, 0, 2, 3});
  CHECK(t.cell_kind == CellKind::triangle);
  CHECK(t.positions == std::vector<float>{0, 0, 1, 0, 1, 1, 0, 1});
  CHECK(std::get<std::vector<float>>(field(t, "velocity").values) ==
        std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(field(t, "velocity").components == 2);
  CHECK_FALSE(field(t, "p").dynamic);
  CHECK(field(t, "tag").on == FieldOn::cell);
  CHECK(std::get<std::vector<int32_t>>(field(t, "tag").values) == std::vector<int32_t>{1, 2});
  CHECK(contains(warning, "notes"));
  CHECK(t.node_type.empty());
  CHECK(time_of(parse_vtk_xml(bytes_of(kSquare), "a.vtu")) == 0.5);
}

TEST_CASE("node types of boundary cells, of points, and wrong ones") {
  const RawTrajectory t = parse(kSquare, "tag");
  CHECK(t.node_type == std::vector<int32_t>{4, 0, 0, 4});
  CHECK(t.cell_type == std::vector<int32_t>{1, 2});
  CHECK(t.fields.size() == 2);
  CHECK(parse(kSquare, "p").node_type == std::vector<int32_t>{1, 2, 3, 4});
  CHECK(contains(message_of([] { parse(kSquare, "velocity"); }), "3 components"));
  CHECK(contains(message_of([] { parse(kSquare, "wall"); }), "velocity, p, tag"));
  CHECK(contains(message_of([] { parse(replaced(kSquare, "1 2 4<", "1 2 -4<"), "tag"); }), "-4"));
}

TEST_CASE("a legacy VTK file gives the same as VTU") {
  const RawTrajectory t = parse(kLegacy), xml = parse(kSquare);
  CHECK(t.cells == xml.cells);
  CHECK(t.positions == xml.positions);
  CHECK(field(t, "velocity").values == field(xml, "velocity").values);
  CHECK(field(t, "p").values == field(xml, "p").values);
  CHECK(std::get<std::vector<int32_t>>(field(t, "an id").values) == std::vector<int32_t>{1, 2, 3, 4});
}

TEST_CASE("quadratic cells become linear ones that fill them") {
  struct Cell {
    int type;
    std::string points;
    size_t edges;  ///< between nodes, each once
    double size;   ///< area or volume
  };
  const std::string wedge = kPrism + ",0 0 .5,1 0 .5,0 1 .5";
  const std::vector<Cell> cells = {
      {22, kTriangle + kTriangleSides, 9, 0.5},
      {69, kTriangle + kTriangleSides, 9, 0.5},
      {34, kTriangle + kTriangleSides + ",.3 .3 0", 12, 0.5},
      {23, kQuad + kQuadSides, 12, 1},
      {28, kQuad + kQuadSides + ",.5 .5 0", 12, 1},
      {70, kQuad + kQuadSides + ",.5 .5 0", 12, 1},
      {30, kQuad + ",.5 0 0,.5 1 0", 7, 1},
      {24, kTetrahedron, 25, 1.0 / 6},
      {71, kTetrahedron, 25, 1.0 / 6},
      {25, kCube, 59, 1},
      {26, wedge, 42, 0.5},
      {27, kQuad + ",0 0 1" + kQuadSides + ",0 0 .5,.5 0 .5,.5 .5 .5,0 .5 .5", 36, 1.0 / 3},
      {29, kCube + kCubeFaces + ",.5 .5 0,.5 .5 1,.5 .5 .5", 54, 1},
      {72, kCube + kCubeFaces + ",.5 .5 0,.5 .5 1,.5 .5 .5", 54, 1},
      {31, kPrism, 24, 0.5},
      {32, wedge + ",.5 0 .5,.5 .5 .5,0 .5 .5", 39, 0.5},
      {33, kCube + kCubeFaces, 52, 1},
  };
  for (const Cell& cell : cells) {
    CAPTURE(cell.type);
    const RawTrajectory t = parse(one_cell(cell.type, cell.points));
    CHECK(std::set<int32_t>(t.cells.begin(), t.cells.end()).size() == static_cast<size_t>(t.nodes));
    CHECK(edges_from_cells(t.cells, *t.cell_kind, t.nodes, "").senders.size() == 2 * cell.edges);
    CHECK(std::abs(size_of(t)) == doctest::Approx(cell.size));
    const auto parts = t.cells.size() / static_cast<size_t>(t.nodes_per_cell);
    CHECK(std::get<std::vector<float>>(field(t, "load").values) == std::vector<float>(parts, 7));
    CHECK(field(t, "p").size() == static_cast<size_t>(t.nodes));
  }
  const RawTrajectory line = parse(one_cell(21, "0 0 0,1 0 0,.5 0 0"));
  CHECK(line.edges == std::vector<int32_t>{0, 2, 2, 1});
  CHECK(std::get<std::vector<float>>(field(line, "load").values) == std::vector<float>{7, 7});
}

// Two cubes on each other: a hexahedron, and a polyhedron whose upper face is cut into two triangles.
const std::string kCubes = "0 0 0,1 0 0,1 1 0,0 1 0,0 0 1,1 0 1,1 1 1,0 1 1,0 0 2,1 0 2,1 1 2,0 1 2";
const std::string kFaces = "7 4 4 5 6 7 3 8 9 10 3 8 10 11 4 4 5 9 8 4 5 6 10 9 4 6 7 11 10 4 7 4 8 11";

std::string two_cubes(const std::string& faces) {
  std::string text = replaced(one_cell(12, kCubes), "NumberOfCells=\"1\"", "NumberOfCells=\"2\"");
  text = replaced(text, "0 1 2 3 4 5 6 7 8 9 10 11 <", "0 1 2 3 4 5 6 7 4 5 6 7 8 9 10 11<");
  text = replaced(text, ">12<", ">8 16<");
  text = replaced(text, ">12<", ">12 42<");
  text = replaced(text, ">7<", ">7 8<");
  return replaced(text, "</Cells>", faces + "</Cells>");
}

std::string array_of(const std::string& name, const std::string& values) {
  return "<DataArray type=\"Int64\" Name=\"" + name + "\">" + values + "</DataArray>";
}

TEST_CASE("polyhedra by their faces, in the forms that VTK writes") {
  const RawTrajectory old_form =
      parse(two_cubes(array_of("faces", kFaces) + array_of("faceoffsets", "-1 " + std::to_string(34))));
  const std::string listed =
      array_of("face_connectivity", "4 5 6 7 8 9 10 8 10 11 4 5 9 8 5 6 10 9 6 7 11 10 7 4 8 11") +
      array_of("face_offsets", "4 7 10 14 18 22 26") + array_of("polyhedron_to_faces", "0 1 2 3 4 5 6") +
      array_of("polyhedron_offsets", "0 7");
  const RawTrajectory new_form = parse(two_cubes(listed));
  const RawTrajectory legacy =
      parse("# vtk DataFile Version 3.0\n\nASCII\nDATASET UNSTRUCTURED_GRID\nPOINTS 12 float\n" +
            [] {
              std::string text = kCubes;
              std::replace(text.begin(), text.end(), ',', ' ');
              return text;
            }() +
            "\nCELLS 2 44\n8 0 1 2 3 4 5 6 7\n34 " + kFaces +
            "\nCELL_TYPES 2\n12 42\nPOINT_DATA 12\nSCALARS p float\n0 1 2 3 4 5 6 7 8 9 10 11\n"
            "CELL_DATA 2\nSCALARS load float\n7 8\n");
  for (const RawTrajectory& t : {old_form, new_form, legacy}) {
    CHECK(t.nodes == 12);
    CHECK(t.faced.count() == 2);
    CHECK(field(t, "load").size() == 2);
    CHECK(graph_on_cells(t, CellKind::none, {}).edges == std::vector<int32_t>{0, 1});
    RawTrajectory nodes = t;
    faces_to_edges(nodes, {});
    CHECK(nodes.edges.size() == 2 * (12 + 8 + 1));
    CHECK(nodes.fields.size() == 1);
  }
  const auto error = [](const std::string& faces) { return message_of([&] { parse(two_cubes(faces)); }); };
  CHECK(contains(error(""), "faceoffsets"));
  CHECK(
      contains(error(array_of("faces", "") + array_of("faceoffsets", "-1 -1")), "got cell 1 without faces"));
  CHECK(contains(error(array_of("faces", "1 2 0 1") + array_of("faceoffsets", "-1 4")),
                 "got the faces of cell 1"));
  CHECK(contains(error(array_of("faces", "2 3 0 1 2") + array_of("faceoffsets", "-1 5")),
                 "got the faces of cell 1"));
  CHECK(contains(error(array_of("faces", "1 3 0 1 12") + array_of("faceoffsets", "-1 5")), "got 12"));
  CHECK(contains(error(replaced(listed, ">0 7<", ">7 0<")), "ascend"));
  CHECK(contains(error(replaced(listed, "4 7 10", "4 2 10")), "ascend"));
  CHECK(contains(error(replaced(listed, "0 1 2 3 4 5 6", "0 1 2 3 4 5 -1")), "face_offsets"));
}

TEST_CASE("quadratic cells with cell fields keep their corners") {
  const RawTrajectory t = parse(one_cell(25, kCube, "id"));
  CHECK(t.nodes == 8);
  CHECK(t.cells == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(field(t, "load").size() == 1);
  CHECK(std::get<std::vector<int32_t>>(field(t, "id").values) ==
        std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("Lagrange hexahedra of either order of the upright edges") {
  const std::string faces = kCubeFaces + ",.5 .5 0,.5 .5 1,.5 .5 .5";
  const RawTrajectory now = parse(one_cell(72, kCube + faces));
  const RawTrajectory before =
      parse(one_cell(72, replaced(kCube, ",1 1 .5,0 1 .5", ",0 1 .5,1 1 .5") + faces));
  CHECK(size_of(before) == doctest::Approx(size_of(now)));
}

TEST_CASE("pieces follow each other") {
  const size_t begin = kSquare.find("<Piece"), end = kSquare.find("</UnstructuredGrid>");
  const std::string piece = kSquare.substr(begin, end - begin);
  const RawTrajectory t = parse(replaced(kSquare, piece, piece + piece));
  CHECK(t.nodes == 8);
  CHECK(t.cells == std::vector<int32_t>{0, 1, 2, 0, 2, 3, 4, 5, 6, 4, 6, 7});
  CHECK(field(t, "p").size() == 8);
}

TEST_CASE("damaged files of VTK are one error that names the array") {
  const auto error = [](const std::string& from, const std::string& to) {
    return message_of([&] { parse(replaced(kSquare, from, to)); });
  };
  const auto legacy = [](const std::string& from, const std::string& to) {
    return message_of([&] { parse(replaced(kLegacy, from, to)); });
  };
  CHECK(
      contains(legacy("default\n1 2 3 4", "default\n1 2 0x 4"), "needed 4 numbers, got \"0x\" at number 2;"));
  CHECK(contains(legacy("ASCII", "TEXT"), "needed ASCII or BINARY in line 3, got \"TEXT\";"));
  CHECK(contains(error("1 2 3 4e0", "1 2 3"), "array p] needed 4 numbers"));
  CHECK(contains(error("1 2 3 4e0", "1 2 3 4 5"), "array p] needed 4 numbers"));
  CHECK(contains(error("1 2 3 4e0", "1 2 3 x"), "array p] needed 4 numbers"));
  CHECK(contains(error("1 2 3 4e0", "1 2 3 nan"), "needed finite numbers"));
  CHECK(contains(error("0 2 3 0 3", "0 2 3 0 4"), "point numbers in 0..3, got 4"));
  CHECK(contains(error("3 6 8", "3 2 8"), "ascend"));
  CHECK(contains(error("5 5 3<", "22 5 3<"), "VTK's type 22"));
  CHECK(contains(error("5 5 3<", "10 5 3<"), "with 3 points"));
  CHECK(contains(error("type=\"UnstructuredGrid\"", "type=\"PUnstructuredGrid\""), "Merge Blocks"));
  CHECK(contains(error("header_type", "compressor=\"vtkLZ4DataCompressor\" header_type"), "ZLib"));
  CHECK(contains(error("</Cells>", ""), "at line"));
  CHECK(contains(error("\"p\">1 2 3 4e0", "\"p\" format=\"binary\">EAAAAA=="), "array p]"));
  CHECK(contains(message_of([] { parse(replaced(kLegacy, "3 0 2 3", "9 0 2 3")); }), "cell 1"));
  CHECK(
      contains(message_of([] { parse(replaced(kLegacy, "POINT_DATA 4", "POINT_DATA 5")); }), "POINT_DATA 4"));
}

TEST_CASE("ASCII numbers of Fortran are read, others shown") {
  const auto values = [](const std::string& numbers) {
    const RawTrajectory t = parse(replaced(kLegacy, "default\n1 2 3 4", "default\n" + numbers));
    return std::get<std::vector<float>>(field(t, "p").values);
  };
  CHECK(values("+1 +2.5E+0 -3D0 4.d+01") == std::vector<float>{1, 2.5, -3, 40});
  CHECK(values("0.100-104 0.5-310 1 -0.25D+001") == std::vector<float>{0, 0, 1, -2.5});
  const auto fault = [&](const std::string& numbers) { return message_of([&] { values(numbers); }); };
  CHECK(contains(fault("1 2 1-2 4"), "[a.vtk: array p] needed 4 numbers, got \"1-2\" at number 2;"));
  CHECK(contains(fault("1 2 *** 4"), "got \"***\" at number 2;"));
  CHECK(contains(fault("1 2 1D 4"), "got \"1D\" at number 2;"));
  CHECK(contains(message_of([] { parse(replaced(kLegacy, "SCALARS p double", "SCALARS p of gas double")); }),
                 "[a.vtk] needed names of arrays without spaces, as %20, got \"p of gas\""));
}

TEST_CASE("numbers of the whole grid are conditions") {
  const auto with = [](const std::string& arrays) {
    return parse(replaced(kSquare, "<FieldData>", "<FieldData>" + arrays));
  };
  const auto array = [](const std::string& type, const std::string& name, const std::string& numbers) {
    const auto count = std::count(numbers.begin(), numbers.end(), ' ') + 1;
    return "<DataArray type=\"" + type + "\" Name=\"" + name + "\" NumberOfTuples=\"" +
           std::to_string(count) + "\">" + numbers + "</DataArray>";
  };
  const RawTrajectory t = with(array("Float64", "Re", "100") + array("Float32", "load", "1 2 3"));
  CHECK(field(t, "Re").on == FieldOn::graph);
  CHECK(std::get<std::vector<float>>(field(t, "Re").values) == std::vector<float>{100});
  CHECK(field(t, "load").components == 3);
  CHECK_FALSE(field(t, "load").dynamic);
  const std::string left_out = array("Int32", "ids", "1 2") + array("Float64", "p", "7");
  std::string warning;
  parse(replaced(kSquare, "<FieldData>", "<FieldData>" + left_out), "", &warning);
  CHECK(contains(warning, "ids of the whole grid, p of the whole grid"));
}

TEST_CASE("frames of a list have order, times and moving points") {
  const ScratchDirectory scratch;
  write(scratch.path / "a.vtu", kSquare);
  write(scratch.path / "b.vtu", replaced(kSquare, "1 2 3 4e0", "5 6 7 8"));
  write(scratch.path / "c.vtu", replaced(kSquare, "5 5 3<", "5 69 3<"));
  const auto pvd = [&](const std::string& entries) {
    write(scratch.path / "a.pvd", "<VTKFile><Collection>" + entries + "</Collection></VTKFile>");
    return scratch.path / "a.pvd";
  };
  const auto open = [&](const std::string& entries) {
    return open_vtk(frames_of_list(pvd(entries)), "", {});
  };
  auto source = open(R"(<DataSet timestep="2" file="b.vtu"/><DataSet timestep="1" file="a.vtu"/>)");
  const RawTrajectory two = source->next().value();
  CHECK(two.frames == 2);
  CHECK(two.dt == 1.0);
  CHECK(std::get<std::vector<float>>(field(two, "p").values) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(field(two, "p").dynamic);
  CHECK_FALSE(source->next().has_value());

  source = open(R"(<DataSet timestep="1" file="a.vtu"/><DataSet timestep="2" file="c.vtu"/>)");
  CHECK(source->next()->frames == 1);
  CHECK(source->next()->first_frame == 1);

  write(scratch.path / "b.vtu", replaced(kSquare, "0 0 0 1 0 0", "0 0.5 0 1 0 0"));
  source = open(R"(<DataSet timestep="1" file="a.vtu"/><DataSet timestep="2" file="b.vtu"/>)");
  RawTrajectory moving = source->next().value();
  FieldWidths({}).narrow(moving);
  CHECK(moving.frames == 2);
  CHECK(moving.positions == std::vector<float>{0, 0, 1, 0, 1, 1, 0, 1});
  CHECK(field(moving, "world_pos").components == 2);
  CHECK(std::get<std::vector<float>>(field(moving, "world_pos").values) ==
        std::vector<float>{0, 0, 1, 0, 1, 1, 0, 1, 0, 0.5, 1, 0, 1, 1, 0, 1});
  // A sheet that leaves its plane is 2-D at rest, and moves in 3-D.
  write(scratch.path / "b.vtu", replaced(kSquare, "0 0 0 1 0 0", "0 0 2 1 0 0"));
  source = open(R"(<DataSet timestep="1" file="a.vtu"/><DataSet timestep="2" file="b.vtu"/>)");
  const RawTrajectory sheet = source->next().value();
  CHECK(sheet.dim == 2);
  CHECK(field(sheet, "world_pos").components == 3);
  CHECK(std::get<std::vector<float>>(field(sheet, "world_pos").values)[14] == 2.0F);
  CHECK(contains(message_of([&] {
                   open(R"(<DataSet timestep="1" file="a.vtu"/>
                                          <DataSet timestep="1" part="1" file="b.vtu"/>)");
                 }),
                 "one file for each time"));
  CHECK(contains(message_of([&] { open(""); }), "a list of frames"));
}

TEST_CASE("a list without times keeps its order, faults are refused") {
  const ScratchDirectory scratch;
  write(scratch.path / "a.vtu", replaced(kSquare, "Name=\"TimeValue\"", "Name=\"CYCLE\""));
  write(scratch.path / "b.vtu", replaced(kSquare, "<PointData>",
                                         "<PointData><DataArray type=\"Float32\" Name=\"late\">1 2 3 4"
                                         "</DataArray>"));
  const std::string list =
      R"(<VTKFile><Collection><DataSet timestep="3" file="a.vtu"/><DataSet timestep="nan" file="b.vtu"/>
           <DataSet timestep="1" file="b.vtu"/></Collection></VTKFile>)";
  for (const char* const time : {"nan", "1,5", "x"}) {
    write(scratch.path / "a.pvd", replaced(list, "nan", time));
    CHECK(contains(message_of([&] { frames_of_list(scratch.path / "a.pvd"); }),
                   "a.pvd] needed a time that is a number, got \"" + std::string(time) + '"'));
  }
  write(scratch.path / "a.pvd", replaced(list, " timestep=\"nan\"", ""));
  const std::vector<VtkFrame> frames = frames_of_list(scratch.path / "a.pvd");
  REQUIRE(frames.size() == 3);
  CHECK(frames[0].time == 3.0);
  CHECK_FALSE(frames[1].time.has_value());
  CHECK(frames[2].path.filename() == "b.vtu");
  std::string warnings;
  const auto source = open_vtk(frames, "", [&](const std::string& text) { warnings += text + "\n"; });
  CHECK(source->next()->fields.size() == 3);
  const size_t at = warnings.find("b.vtu] array late left out, since the first frame of");
  REQUIRE(at != std::string::npos);
  CHECK(warnings.find("array late", at + 10) == std::string::npos);  // once
}
