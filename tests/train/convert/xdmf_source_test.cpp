// SPDX-License-Identifier: Apache-2.0
// Files of XDMF: one that FEniCS wrote, others by hand, and what is refused. tests/gate/vtk_sources_test.py
// reads what meshio writes.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/xdmf_document.h>
#include <meshgrad/train/convert/sources/xdmf_grid.h>
#include <meshgrad/train/convert/sources/xdmf_source.h>
#include <meshgrad/train/data/dataset.h>

#include <sys/resource.h>

#include <fstream>
#include <optional>
#include <set>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

namespace meshgrad::xdmf_source_test {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

std::string item(const std::string& dimensions, const std::string& numbers) {
  return "<DataItem Dimensions=\"" + dimensions + "\" Format=\"XML\">" + numbers + "</DataItem>";
}

/// Two triangles of a square.
std::string mesh() {
  return "<Topology TopologyType=\"Triangle\">" + item("2 3", "0 1 2 0 2 3") + "</Topology>" +
         "<Geometry GeometryType=\"XY\">" + item("4 2", "0 0 1 0 1 1 0 1") + "</Geometry>";
}
std::string attribute(const std::string& name, const std::string& numbers, const std::string& center = "Node",
                      const std::string& dimensions = "4 1") {
  return "<Attribute Name=\"" + name + "\" Center=\"" + center + "\">" + item(dimensions, numbers) +
         "</Attribute>";
}
std::string file(const std::string& domain) {
  return "<Xdmf Version=\"3.0\" xmlns:xi=\"https://www.w3.org/2001/XInclude\"><Domain>" + domain +
         "</Domain></Xdmf>";
}
std::string grid(const std::string& content) { return "<Grid GridType=\"Uniform\">" + content + "</Grid>"; }
std::string series(const std::string& content, const std::string& name = "s") {
  return "<Grid Name=\"" + name + "\" GridType=\"Collection\" CollectionType=\"Temporal\">" + content +
         "</Grid>";
}
std::string at(double time, const std::string& content) {
  return grid("<Time Value=\"" + std::to_string(time) + "\"/>" + content);
}
/// As DOLFINx includes the first mesh.
const std::string kIncluded =
    "<xi:include xpointer=\"xpointer(/Xdmf/Domain/Grid[@GridType='Uniform'][1]/*[self::Topology or "
    "self::Geometry])\"/>";

XdmfSeries parsed(const std::string& text) { return parse_xdmf(std::as_bytes(std::span(text)), "a.xdmf"); }

VtkGrid read(const std::string& text, size_t frame = 0) {
  XdmfGridReader reader("a.xdmf", [](const fs::path&, const std::string&) -> VtkValues {
    throw data_error("a.h5", "no HDF5 here", "some", "none");
  });
  return reader.read(parsed(text).frames.at(frame));
}

TEST_CASE("a FEniCS series keeps its numbers at their places") {
  const test::ScratchDirectory scratch;
  fs::create_directory(scratch.path / "data");
  for (const char* name : {"fenics.xdmf", "fenics.h5"})
    fs::copy(test::data_file(std::string("xdmf/") + name), scratch.path / "data" / name);
  // Alone, and in a folder, where its HDF5 file is no data by itself.
  for (const fs::path& input : {scratch.path / "data" / "fenics.xdmf", scratch.path / "data"}) {
    ConvertOptions options;
    options.input = input;
    options.output = scratch.path / (input.stem().string() + ".mgd");
    options.split = {1.0};
    convert(options);
    const Dataset data = Dataset::open(options.output);
    const TrajectoryView view = data.trajectory("train", 0);
    CHECK(view.frames() == 3);
    CHECK(data.dt() == 0.5);
    const MeshView& on = view.mesh();
    CHECK(on.nodes == 9);
    CHECK(on.dim == 2);
    for (int64_t t = 0; t < 3; ++t) {
      const auto temperature = view.field("temperature").frame(t), velocity = view.field("velocity").frame(t);
      REQUIRE(velocity.size() == 18);
      for (size_t i = 0; i < 9; ++i) {
        const float x = on.positions[2 * i], y = on.positions[2 * i + 1], time = 0.5F * static_cast<float>(t);
        CHECK(temperature[i] == doctest::Approx(x + 10 * y + 100 * time));
        CHECK(velocity[2 * i] == doctest::Approx(x));
        CHECK(velocity[2 * i + 1] == doctest::Approx(time));
      }
    }
  }
}

TEST_CASE("series of one mesh are joined by their times") {
  const XdmfSeries all = parsed(
      file(grid(mesh()) +
           series(at(1, kIncluded + attribute("u", "1 2 3 4")) + at(0, kIncluded + attribute("u", "5 6 7 8")),
                  "u") +
           series(at(0, kIncluded + attribute("p", "1 2", "Cell", "2 1")) +
                      at(1, kIncluded + attribute("p", "3 4", "Cell", "2 1")),
                  "p") +
           series(at(7, kIncluded + attribute("q", "1 2 3 4")), "q") +
           "<Grid Name=\"tags\"><Topology TopologyType=\"PolyLine\" NodesPerElement=\"2\">" +
           item("1 2", "0 1") + "</Topology><Geometry GeometryType=\"XY\">" + item("4 2", "0 0 1 0 1 1 0 1") +
           "</Geometry>" + attribute("tags", "3", "Cell", "1 1") + "</Grid>"));
  REQUIRE(all.frames.size() == 2);
  CHECK(all.frames[0].time == 0.0);  // by time
  REQUIRE(all.frames[0].arrays.size() == 2);
  CHECK(all.frames[0].arrays[0].item.text == "5 6 7 8");
  CHECK(all.frames[0].arrays[1].item.text == "1 2");
  CHECK_FALSE(all.frames[0].arrays[1].of_points);
  CHECK(all.frames[0].mesh == all.frames[1].mesh);
  CHECK(all.left_out ==
        std::vector<std::string>{"q: at other times than the first series", "tags: on another mesh"});
}

TEST_CASE("a later series with fewer times is left out") {
  const auto u = [](double time) { return at(time, mesh() + attribute("u", "1 2 3 4")); };
  const auto p = [](double time) { return at(time, mesh() + attribute("p", "1 2 3 4")); };
  const std::string text =
      file(series(u(0) + u(1) + u(2), "u") + series(p(0) + p(2), "p") +
           series(p(0) + p(1) + p(2) + p(3), "more") + grid(mesh() + attribute("depth", "5 6 7 8")));
  const XdmfSeries all = parsed(text);
  REQUIRE(all.frames.size() == 3);
  CHECK(all.left_out == std::vector<std::string>{"more: 1 of its times, which the first series has not",
                                                 "p: at 2 of the 3 times of the first series"});
  CHECK(all.frames[1].arrays.size() == 2);  // and p of "more"
  REQUIRE(all.still.size() == 1);           // once, however many frames there are
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.path / "a.xdmf") << text;
  const RawTrajectory t = open_xdmf(scratch.path / "a.xdmf", "", nullptr)->next().value();
  REQUIRE(t.fields.size() == 3);
  CHECK(t.fields[0].name == "depth");
  CHECK(std::get<std::vector<float>>(t.fields[0].values) ==
        std::vector<float>{5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8});
}

TEST_CASE("times stand in the frames, in a list, or are counted") {
  const std::string frames =
      grid(mesh() + attribute("u", "1 2 3 4")) + grid(mesh() + attribute("u", "1 2 3 4"));
  CHECK(parsed(file(series(at(2.5, mesh())))).frames[0].time == 2.5);
  CHECK(parsed(file(series("<Time TimeType=\"List\">" + item("2", "3 3.5") + "</Time>" + frames)))
            .frames[1]
            .time == 3.5);
  CHECK(parsed(file(series("<Time TimeType=\"HyperSlab\">" + item("3", "1 0.25 2") + "</Time>" + frames)))
            .frames[1]
            .time == 1.25);
  CHECK_FALSE(parsed(file(series(frames))).frames[1].time);
  for (const char* times : {"3 nan", "3", "3 x", "3 3.5 4"}) {
    CAPTURE(times);
    const std::string list = "<Time TimeType=\"List\">" + item("2", times) + "</Time>";
    CHECK(contains(message_of([&] { parsed(file(series(list + frames))); }),
                   "needed a finite time for each of 2 grids"));
  }
  // ParaView and others wrap a frame, and give the time to the outer grid.
  CHECK(parsed(file(series("<Grid GridType=\"Collection\" CollectionType=\"Spatial\"><Time Value=\"4.5\"/>" +
                           grid(mesh() + attribute("u", "1 2 3 4")) + "</Grid>")))
            .frames[0]
            .time == 4.5);
}

TEST_CASE("a series with a file for each frame has few of them open") {
  constexpr int kFrames = 60;
  const test::ScratchDirectory scratch;
  std::string frames;
  for (int i = 0; i < kFrames; ++i) {
    const std::string name = std::to_string(i) + ".h5";
    fs::copy(test::data_file("xdmf/fenics.h5"), scratch.path / name);
    const auto hdf5 = [&](const std::string& dimensions, const std::string& path) {
      return "<DataItem Dimensions=\"" + dimensions + "\" Format=\"HDF\">" + name + ":" + path +
             "</DataItem>";
    };
    frames +=
        at(i, "<Topology TopologyType=\"Triangle\">" + hdf5("8 3", "/Mesh/0/mesh/topology") +
                  "</Topology><Geometry GeometryType=\"XY\">" + hdf5("9 2", "/Mesh/0/mesh/geometry") +
                  "</Geometry><Attribute Name=\"u\">" + hdf5("9", "/VisualisationVector/0") + "</Attribute>");
  }
  std::ofstream(scratch.path / "a.xdmf") << file(series(frames));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  const auto open = fs::directory_iterator("/proc/self/fd");
  few.rlim_cur = static_cast<rlim_t>(std::distance(begin(open), end(open))) + 40;
  setrlimit(RLIMIT_NOFILE, &few);
  std::optional<RawTrajectory> t;
  const std::string error = message_of([&] { t = open_xdmf(scratch.path / "a.xdmf", "", nullptr)->next(); });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(error.empty());
  REQUIRE(t);
  CHECK(t->frames == kFrames);
}

TEST_CASE("an XDMF file that names itself is an error of data") {
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.path / "a.xdmf") << file(
      grid(mesh() + "<Attribute Name=\"u\"><DataItem Dimensions=\"4\" Format=\"HDF\">a.xdmf:/u</DataItem>"
                    "</Attribute>"));
  ConvertOptions options;
  options.input = scratch.path;
  options.output = scratch.path / "a.mgd";
  CHECK(contains(message_of([&] { convert(options); }), "a.xdmf] needed an HDF5 file"));
}

TEST_CASE("cells of every kind, in mixed and in plain topologies") {
  const std::string points =
      "<Geometry GeometryType=\"XYZ\">" + item("6 3", "0 0 0 1 0 0 1 1 0 0 1 0 2 0 0 2 1 0") + "</Geometry>";
  const VtkGrid mixed =
      read(file(grid("<Topology TopologyType=\"Mixed\">" + item("17", "5 0 1 2 3 4 1 4 5 4 1 5 2 2 2 0 1") +
                     "</Topology>" + points)));
  CHECK(mixed.types == std::vector<uint8_t>{9, 5, 5, 4});
  CHECK(mixed.ends == std::vector<int64_t>{4, 7, 10, 12});
  CHECK(mixed.connectivity == std::vector<int64_t>{0, 1, 2, 3, 1, 4, 5, 1, 5, 2, 0, 1});
  const VtkGrid from_one = read(file(grid("<Topology TopologyType=\"Quadrilateral\" BaseOffset=\"1\">" +
                                          item("1 4", "1 2 3 4") + "</Topology>" + points)));
  CHECK(from_one.connectivity == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(std::get<std::vector<float>>(from_one.points.values)[12] == 2.0F);
}

TEST_CASE("binary numbers are read in either byte order") {
  const test::ScratchDirectory scratch;
  const std::string bytes("\xff\xff\x3f\x80\0\0\x40\0\0\0\x40\x40\0\0\x40\x80\0\0", 18);
  std::ofstream(scratch.path / "u.bin", std::ios::binary) << bytes;
  const std::string text = file(
      grid(mesh() + "<Attribute Name=\"u\"><DataItem Dimensions=\"4\" NumberType=\"Float\" Precision=\"4\" "
                    "Format=\"Binary\" Endian=\"Big\" Seek=\"2\">u.bin</DataItem></Attribute>"));
  XdmfGridReader reader(scratch.path / "a.xdmf", nullptr);
  const VtkGrid grid = reader.read(parsed(text).frames.at(0));
  CHECK(std::get<std::vector<float>>(grid.point_arrays.at(0).values) == std::vector<float>{1, 2, 3, 4});
  std::ofstream(scratch.path / "u.bin", std::ios::binary) << bytes.substr(0, 17);
  CHECK(contains(message_of([&] { reader.read(parsed(text).frames.at(0)); }), "needed 4 numbers"));
  std::ofstream(scratch.path / "u.bin", std::ios::binary) << bytes;
  for (const std::string& inside : {std::string("./u.bin"), (scratch.path / "u.bin").string(),
                                    "../" + scratch.path.filename().string() + "/u.bin"}) {
    CAPTURE(inside);
    std::string named = text;
    named.replace(named.find("u.bin"), 5, inside);
    CHECK_NOTHROW(reader.read(parsed(named).frames.at(0)));
  }
  for (const char* outside : {"../u.bin", "in/../../u.bin", "/etc/passwd"}) {
    CAPTURE(outside);
    std::string named = text;
    named.replace(named.find("u.bin"), 5, outside);
    CHECK(contains(message_of([&] { reader.read(parsed(named).frames.at(0)); }),
                   "a.xdmf] needed files in its folder or below"));
  }
}

TEST_CASE("polygons pass through the child process") {
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.path / "five.xdmf") << file(
      grid("<Topology TopologyType=\"Polygon\" NodesPerElement=\"5\" BaseOffset=\"1\">" +
           item("1 5", "1 2 3 4 5") + "</Topology><Geometry GeometryType=\"XY\">" +
           item("5 2", "0 0 1 0 2 1 1 2 0 1") + "</Geometry>" + attribute("u", "1 2 3 4 5", "Node", "5")));
  const auto source = open_xdmf(scratch.path / "five.xdmf", "", nullptr);
  const std::optional<RawTrajectory> trajectory = source->next();
  REQUIRE(trajectory);
  validate(*trajectory);
  CHECK(trajectory->faced.count() == 1);
  CHECK(trajectory->faced.nodes.size() == 10);  // two of each side
}

TEST_CASE("XDMF: entities of the document type are text") {
  const auto read = [](const std::string& definition, const std::string& text) {
    const std::string all = "<?xml version=\"1.0\"?>\n<!DOCTYPE Xdmf SYSTEM \"Xdmf.dtd\" [\n" + definition +
                            "\n]>" + file("<Grid>" + mesh() + attribute("u", text) + "</Grid>");
    return parse_xdmf(std::as_bytes(std::span(all)), "a.xmf").frames.front().arrays.front().item.text;
  };
  CHECK(read("<!ENTITY a \"1 2\"><!ENTITY b '3 4'>", "&a; &b;") == "1 2 3 4");
  CHECK(contains(message_of([&] { read("<!ENTITY a \"1 2\">", "&c; 1"); }),
                 "Attribute u] needed entities that the document type defines, got &c;"));
  CHECK(contains(message_of([&] { read("<!ENTITY a SYSTEM \"/etc/passwd\">", "&a;"); }),
                 "[a.xmf] needed entities of text, <!ENTITY NAME \"VALUE\">, got <!ENTITY a SYSTEM"));
  CHECK(contains(message_of([&] { read("<!ENTITY a \"x\"><!ENTITY b \"&a;&a;\">", "&b;"); }),
                 "entities of text"));
  ConvertOptions options;
  options.input = test::data_file("cases/sol.xmf");
  const test::ScratchDirectory scratch;
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  try {
    CHECK(convert(options).nodes_max == 12);
  } catch (const DataError& error) {
    REQUIRE(contains(error.what(), "a build of meshgrad with HDF5"));
    return;
  }
  const Dataset data = Dataset::open(options.output);
  const auto u = data.trajectory(0).field("u").frame(0);
  CHECK(u[0] == 0);
  CHECK(u[11] == 11);
}

TEST_CASE("what is not read is refused by name") {
  const auto error_of = [](const std::string& text) { return message_of([&] { read(text); }); };
  const std::string u = attribute("u", "1 2 3 4");
  CHECK(error_of(file(grid(mesh() + u))).empty());
  CHECK(contains(error_of("<Xdmf>"), "needed XML"));
  CHECK(contains(error_of(file(grid(mesh() + "<Attribute Name=\"u\"><DataItem Dimensions=\"4\" "
                                             "NumberType=\"Short\">1 2 3 4</DataItem></Attribute>"))),
                 "[a.xdmf: Attribute u] needed NumberType Float"));
  CHECK(contains(error_of("<a/>"), "an element Xdmf with a Domain"));
  CHECK(contains(error_of(file("")), "needed a Grid"));
  CHECK(contains(error_of(file(grid(u))), "needed an element Topology"));
  CHECK(contains(error_of(file("<Grid GridType=\"Collection\" CollectionType=\"Spatial\">" +
                               grid(mesh() + u) + grid(mesh() + u) + "</Grid>")),
                 "Merge Blocks"));
  CHECK(contains(error_of(file(grid(mesh() + attribute("u", "1 2 3")))), "needed 4 numbers"));
  CHECK(contains(error_of(file(grid(mesh() + attribute("u", "1 2 3 4 5")))), "needed 4 numbers"));
  CHECK(contains(error_of(file(grid(mesh() + attribute("u", "1 2 3", "Node", "3 1")))),
                 "a row for each of the 4 nodes"));
  CHECK(contains(error_of(file(grid(mesh() + attribute("u", "1", "Node", "99999999999 99999999999")))),
                 "Dimensions"));
  CHECK(contains(error_of(file(grid("<Topology TopologyType=\"2DSMesh\">" + item("1 3", "0 1 2") +
                                    "</Topology><Geometry>" + item("1 3", "0 0 0") + "</Geometry>" + u))),
                 "2dsmesh"));
  CHECK(contains(error_of(file(grid("<Topology TopologyType=\"Triangle\">" + item("1 3", "0 1 4") +
                                    "</Topology><Geometry GeometryType=\"XY\">" +
                                    item("4 2", "0 0 1 0 1 1 0 1") + "</Geometry>"))),
                 "needed 4 nodes from 0, its BaseOffset, on, got 4"));
  CHECK(contains(error_of(file(grid(mesh() +
                                    "<Attribute Name=\"u\" ItemType=\"FiniteElementFunction\" "
                                    "Center=\"Other\">" +
                                    item("4", "1 2 3 4") + item("4", "1 2 3 4") + "</Attribute>"))),
                 "write_checkpoint"));
  CHECK(contains(error_of(file(grid("<xi:include xpointer=\"xpointer(//Grid[)\"/>" + u))), "an XPath"));
  CHECK(contains(error_of(file(grid("<xi:include xpointer=\"elsewhere\"/>" + u))), "xpointer to a grid"));
  for (const char* path :
       {"//Grid//*", "//*[Grid=Grid]", "//Grid[count(//*)=1]", "//Grid/../Grid", "//*[//*]",
        "/*/*/*/*/*/*/*/*/*", "//Grid[ancestor::Grid]", "//Grid | //Grid", "//Grid[@a=\"]"}) {
    CAPTURE(path);
    const std::string quoted = std::string("<xi:include xpointer='xpointer(") + path + ")'/>";
    CHECK(contains(error_of(file(grid(quoted + u))), "an XPath of names, attributes and numbers"));
  }
  std::string many;
  for (int i = 0; i < 257; ++i) many += "<xi:include xpointer=\"xpointer(//G" + std::to_string(i) + ")\"/>";
  CHECK(contains(error_of(file(grid(many + u))), "at most 256"));
}

}  // namespace
}  // namespace meshgrad::xdmf_source_test
