// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

using test::contains;

/// A VTU file read back: its arrays as doubles, by name.
struct ParsedVtu {
  std::string text;
  std::map<std::string, std::vector<double>> arrays;
  std::map<std::string, int> components;
  std::size_t unread_bytes = 0;  ///< of the appended data

  explicit ParsedVtu(std::string content) : text(std::move(content)) {
    const std::size_t begin = text.find("<AppendedData encoding=\"raw\">\n_") + 31;
    const std::size_t end = text.find("\n  </AppendedData>\n</VTKFile>\n", begin);
    REQUIRE(begin < end);
    REQUIRE(end < text.size());
    std::size_t before = end - begin;  // of the element before: arrays lie in reverse, back to back
    constexpr std::string_view kElement = "<DataArray ";
    for (std::size_t at = text.find(kElement); at < begin; at = text.find(kElement, at + 1)) {
      const std::string element = text.substr(at, text.find('>', at) - at);
      if (attribute(element, "format") != "appended") continue;
      const std::size_t next = std::stoul(attribute(element, "offset"));
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, text.data() + begin + next, 8);
      REQUIRE(begin + next + 8 + bytes <= end);
      const std::string name = attribute(element, "Name"), width = attribute(element, "NumberOfComponents");
      arrays[name] = values(attribute(element, "type"), text.data() + begin + next + 8, bytes);
      components[name] = width.empty() ? 1 : std::stoi(width);
      CHECK(next + 8 + bytes == before);
      before = next;
    }
    unread_bytes = before;
  }

 private:
  static std::string attribute(const std::string& element, const std::string& name) {
    const std::size_t at = element.find(name + "=\"");
    if (at == element.npos) return {};
    const std::size_t begin = at + name.size() + 2;
    return element.substr(begin, element.find('"', begin) - begin);
  }
  template <class T>
  static std::vector<double> as(const char* data, std::size_t bytes) {
    std::vector<T> values(bytes / sizeof(T));
    std::memcpy(values.data(), data, values.size() * sizeof(T));
    return {values.begin(), values.end()};
  }
  static std::vector<double> values(const std::string& type, const char* data, std::size_t bytes) {
    if (type == "Float32") return as<float>(data, bytes);
    if (type == "Int32") return as<std::int32_t>(data, bytes);
    if (type == "Int64") return as<std::int64_t>(data, bytes);
    REQUIRE(type == "UInt8");
    return as<std::uint8_t>(data, bytes);
  }
};

const std::vector<float> kCorners2{0, 0, 1, 0, 1, 1, 0, 1};
const std::vector<std::int32_t> kTwoTriangles{0, 1, 2, 0, 2, 3};

MeshView square() {
  MeshView mesh;
  mesh.nodes = 4;
  mesh.dim = 2;
  mesh.cell_kind = CellKind::triangle;
  mesh.positions = kCorners2;
  mesh.cells = kTwoTriangles;
  return mesh;
}

using Doubles = std::vector<double>;

}  // namespace

TEST_CASE("a frame of triangles reads back") {
  const ScratchDirectory scratch;
  const std::vector<float> velocity{1, 2, 3, 4, 5, 6, 7, 8}, pressure{9, 8, 7, 6.5};
  const PointField fields[] = {{"velocity", 2, velocity}, {"p<&>", 1, pressure}};
  write_vtu(scratch.path / "f.vtu", square(), fields, 0.1);
  const ParsedVtu vtu(read_text(scratch.path / "f.vtu"));
  CHECK(vtu.unread_bytes == 0);
  CHECK(contains(
      vtu.text,
      "type=\"UnstructuredGrid\" version=\"1.0\" byte_order=\"LittleEndian\" header_type=\"UInt64\""));
  CHECK(contains(vtu.text, "NumberOfPoints=\"4\" NumberOfCells=\"2\""));
  CHECK(contains(vtu.text, "Name=\"TimeValue\" NumberOfTuples=\"1\" format=\"ascii\">0.1</DataArray>"));
  CHECK(vtu.arrays.count("node_type") == 0);
  CHECK(vtu.arrays.at("velocity") == Doubles{1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8, 0});
  CHECK(vtu.components.at("velocity") == 3);
  CHECK(vtu.arrays.at("p&lt;&amp;&gt;") == Doubles{9, 8, 7, 6.5});
  CHECK(vtu.arrays.at("Points") == Doubles{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0});
  CHECK(vtu.arrays.at("connectivity") == Doubles{0, 1, 2, 0, 2, 3});
  CHECK(vtu.arrays.at("offsets") == Doubles{3, 6});
  CHECK(vtu.arrays.at("types") == Doubles{5, 5});
}

TEST_CASE("node types are integers, and no other field has their name") {
  const ScratchDirectory scratch;
  const std::vector<std::int32_t> types{0, 4, 5, 70000};
  MeshView mesh = square();
  mesh.node_type = types;
  write_vtu(scratch.path / "f.vtu", mesh, {}, 0);
  const std::string text = read_text(scratch.path / "f.vtu");
  CHECK(contains(text, "<DataArray type=\"Int32\" Name=\"node_type\""));
  CHECK(ParsedVtu(text).arrays.at("node_type") == Doubles{0, 4, 5, 70000});
  const std::vector<float> four(4);
  const PointField fields[] = {{"node_type", 1, four}};
  CHECK_THROWS_AS(write_vtu(scratch.path / "f.vtu", mesh, fields, 0), InvalidArgument);
  const std::vector<std::int32_t> three(3);
  mesh.node_type = three;
  CHECK_THROWS_WITH_AS(write_vtu(scratch.path / "f.vtu", mesh, {}, 0), doctest::Contains("node types"),
                       InvalidArgument);
}

TEST_CASE("every kind of cell has its VTK type") {
  const ScratchDirectory scratch;
  const std::vector<float> corners{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1};
  const std::vector<std::int32_t> nodes{0, 1, 2, 3, 4, 5, 6, 7};
  MeshView mesh;
  mesh.nodes = 8;
  mesh.dim = 3;
  mesh.positions = corners;
  mesh.cells = nodes;
  const auto types = [&](CellKind kind) {
    mesh.cell_kind = kind;
    write_vtu(scratch.path / "f.vtu", mesh, {}, 0);
    return ParsedVtu(read_text(scratch.path / "f.vtu")).arrays.at("types");
  };
  CHECK(types(CellKind::quad) == Doubles{9, 9});
  CHECK(types(CellKind::tetrahedron) == Doubles{10, 10});
  CHECK(types(CellKind::hexahedron) == Doubles{12});
}

TEST_CASE("without cells each connection is a line in VTU") {
  const ScratchDirectory scratch;
  MeshView mesh = square();
  mesh.cell_kind = CellKind::none;
  mesh.cells = {};
  const std::vector<std::int32_t> senders{1, 0, 2, 1}, receivers{0, 1, 1, 2};
  mesh.senders = senders;
  mesh.receivers = receivers;
  write_vtu(scratch.path / "lines.vtu", mesh, {}, 0);
  const ParsedVtu lines(read_text(scratch.path / "lines.vtu"));
  CHECK(lines.arrays.at("connectivity") == Doubles{0, 1, 1, 2});
  CHECK(lines.arrays.at("types") == Doubles{3, 3});
  mesh.senders = mesh.receivers = {};
  write_vtu(scratch.path / "points.vtu", mesh, {}, 0);
  const ParsedVtu points(read_text(scratch.path / "points.vtu"));
  CHECK(points.arrays.at("connectivity") == Doubles{0, 1, 2, 3});
  CHECK(points.arrays.at("offsets") == Doubles{1, 2, 3, 4});
  CHECK(points.arrays.at("types") == Doubles{1, 1, 1, 1});
}

TEST_CASE("meshes and fields that do not fit are refused") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch.path / "f.vtu";
  const std::vector<float> four(4), five(5);
  const PointField wrong[] = {{"p", 1, five}};
  const PointField twice[] = {{"p", 1, four}, {"p", 1, four}};
  CHECK_THROWS_WITH_AS(write_vtu(path, square(), wrong, 0), doctest::Contains("\"p\""), InvalidArgument);
  CHECK_THROWS_AS(write_vtu(path, square(), twice, 0), InvalidArgument);
  MeshView mesh = square();
  const std::vector<std::int32_t> outside{0, 1, 4};
  mesh.cells = outside;
  CHECK_THROWS_WITH_AS(write_vtu(path, mesh, {}, 0), doctest::Contains("node 4"), InvalidArgument);
  mesh = square();
  mesh.nodes = 3;
  CHECK_THROWS_AS(write_vtu(path, mesh, {}, 0), InvalidArgument);
  mesh = square();
  mesh.cells = mesh.cells.first(4);
  CHECK_THROWS_AS(write_vtu(path, mesh, {}, 0), InvalidArgument);
  CHECK(std::filesystem::is_empty(scratch.path));
}

TEST_CASE("a series lists its frames in order") {
  const ScratchDirectory scratch;
  const PvdEntry entries[] = {{0, "a_0000.vtu"}, {0.01, "a_0001 & more.vtu"}};
  write_pvd(scratch.path / "a.pvd", entries);
  const std::string text = read_text(scratch.path / "a.pvd");
  const std::size_t first = text.find("<DataSet timestep=\"0\" part=\"0\" file=\"a_0000.vtu\"/>");
  const std::size_t second =
      text.find("<DataSet timestep=\"0.01\" part=\"0\" file=\"a_0001 &amp; more.vtu\"/>");
  CHECK(first < second);
  CHECK(second < text.size());
  CHECK(contains(text, "<VTKFile type=\"Collection\""));
}
