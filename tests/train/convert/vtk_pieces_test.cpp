// SPDX-License-Identifier: Apache-2.0
// Output of parallel programs: pieces of one grid, and layers of ghosts.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include "support.h"
#include "train/scratch_directory.h"
#include "train/vtu_file.h"

#include <algorithm>

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::VtuFile;
using meshgrad::test::write_text;
using meshgrad::test::write_vtu;

namespace {

std::string ghost_flags(const std::string& values) {
  return "<DataArray type=\"UInt8\" Name=\"vtkGhostType\">" + values + "</DataArray>";
}

std::string load_array(const std::string& values) {
  return "<DataArray type=\"Float64\" Name=\"load\">" + values + "</DataArray>";
}

struct Pieces {
  ScratchDirectory scratch;
  ConvertOptions options;
  Pieces() {
    options.input = scratch.path / "in";
    options.output = scratch.path / "out.mgd";
    options.split = {1};
  }
  /// Points at 0..2 and 2..4 of the row; those at 2 are in both, "u" is 100 t + x (+ 0.5 in the second row).
  void write(int t, double shift = 0) const {
    std::string names;
    for (int piece = 0; piece < 2; ++piece) {
      const std::string name = fmt::format("f_{}_{}.vtu", t, piece);
      VtuFile file{.columns = 3, .left = 2.0 * piece};
      const double at = 100.0 * t + 2 * piece + (piece == 1 ? shift : 0);
      file.more = fmt::format("<DataArray type=\"Float64\" Name=\"p\">{} {} {} {} {} {}</DataArray>", at,
                              at + 1, at + 2, at + 0.5, at + 1.5, at + 2.5);
      std::string text = file.text();
      const size_t begin = text.find("<DataArray type=\"Float64\" Name=\"u\">");
      text.erase(begin, text.find("</DataArray>", begin) + 12 - begin);
      write_text(options.input / name, text);
      names += fmt::format("<Piece Source=\"{}\"/>", name);
    }
    write_text(
        options.input / fmt::format("f_{}.pvtu", t),
        "<VTKFile type=\"PUnstructuredGrid\"><PUnstructuredGrid>" + names + "</PUnstructuredGrid></VTKFile>");
  }
};

}  // namespace

TEST_CASE("pieces of a parallel file are one mesh") {
  Pieces folder;
  for (int t = 0; t < 4; ++t) folder.write(t);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 1);
  CHECK(report.frames == 4);
  CHECK(report.nodes_max == 10);
  CHECK(report.edges_max == 2 * 17);
  const Dataset data = Dataset::open(folder.options.output);
  const TrajectoryView t = data.trajectory(0);
  const auto x = t.mesh().positions;
  for (int64_t frame = 0; frame < 4; ++frame)
    for (size_t node = 0; node < 10; ++node)
      CHECK(t.field("p").frame(frame)[node] ==
            100 * static_cast<float>(frame) + x[2 * node] + 0.5F * x[2 * node + 1]);
  write_text(
      folder.options.input / "g.vtpd",
      "<VTKFile type=\"vtkPartitionedDataSet\"><vtkPartitionedDataSet><DataSet index=\"0\" "
      "file=\"f_3_0.vtu\"/><DataSet index=\"1\" file=\"f_3_1.vtu\"/></vtkPartitionedDataSet></VTKFile>");
  ConvertOptions one = folder.options;
  one.input /= "g.vtpd";
  CHECK(convert(one).nodes_max == 10);
  std::filesystem::remove(one.input);
  // What a run on more processes left is no mesh of its own.
  write_vtu(folder.options.input / "f_0_2.vtu", {.columns = 3, .left = 4});
  const ConvertReport stale = convert(folder.options);
  CHECK(stale.trajectories == 1);
  CHECK(std::ranges::any_of(stale.warnings, [](const std::string& text) {
    return contains(text,
                    "left out 1 file, which no list of frames or pieces in the folder names: f_0_2.vtu");
  }));
  std::filesystem::remove(folder.options.input / "f_0_2.vtu");
  folder.write(2, 0.25);
  CHECK(
      contains(message_of([&] { convert(folder.options); }),
               "f_2.pvtu: array p] needed the same values where two pieces share a point, got 202 at point"));
}

TEST_CASE("global numbers tell which points of pieces are one") {
  Pieces folder;
  folder.write(0);
  const auto numbered = [&](const std::vector<std::string>& numbers) {
    for (int piece = 0; piece < 2; ++piece) {
      VtuFile file{.columns = 3, .left = 2.0 * piece};
      file.first = 0;
      file.more = "<DataArray type=\"Int64\" Name=\"GlobalNodeId\">" + numbers[static_cast<size_t>(piece)] +
                  "</DataArray>";
      std::string text = file.text();
      const size_t begin = text.find("<DataArray type=\"Float64\" Name=\"u\">");
      text.erase(begin, text.find("</DataArray>", begin) + 12 - begin);
      write_text(folder.options.input / fmt::format("f_0_{}.vtu", piece), text);
    }
    return convert(folder.options).nodes_max;
  };
  CHECK(numbered({"0 1 2 5 6 7", "2 3 4 7 8 9"}) == 10);
  CHECK(numbered({"0 1 2 5 6 7", "12 3 4 17 8 9"}) == 12);  // two bodies that touch
  CHECK(contains(message_of([&] {
                   numbered({"0 1 2 5 6 7", "2 2 4 7 8 9"});
                 }),
                 "f_0.pvtu] needed one point of a piece at a place that pieces share, got points 6 and 7"));
}

TEST_CASE("ghost cells and points belong to another process") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = scratch.path / "a.vtu";
  options.output = scratch.path / "out.mgd";
  options.split = {1};
  // Four triangles of six points; the last two and their points are another process's.
  write_vtu(options.input, {.columns = 3,
                            .more = ghost_flags("0 0 1 0 0 1"),
                            .cells = load_array("0 1 -99 -99") + ghost_flags("0 0 1 1")});
  CHECK(convert(options).nodes_max == 4);
  const Dataset data = Dataset::open(options.output);
  const auto values = data.trajectory(0).field("load").frame(0);
  CHECK(std::vector<float>(values.begin(), values.end()) == std::vector<float>{0, 1});
  const auto u = data.trajectory(0).field("u").frame(0);
  CHECK(std::vector<float>(u.begin(), u.end()) == std::vector<float>{0, 1, 3, 4});
  // Points that both processes own are one, as a ghost cell of one and its owner say.
  write_text(
      options.input,
      "<VTKFile type=\"UnstructuredGrid\"><UnstructuredGrid><Piece NumberOfPoints=\"8\" NumberOfCells=\"4\">"
      "<Points><DataArray type=\"Float64\" NumberOfComponents=\"3\">0 0 0 1 0 0 0 1 0 1 1 0 "
      "0 0 0 1 0 0 0 1 0 1 1 0</DataArray></Points><Cells><DataArray type=\"Int32\" "
      "Name=\"connectivity\">0 1 2 1 3 2 4 5 6 5 7 6</DataArray><DataArray type=\"Int32\" "
      "Name=\"offsets\">3 6 9 12</DataArray><DataArray type=\"UInt8\" Name=\"types\">5 5 5 5</DataArray>"
      "</Cells><PointData><DataArray type=\"Float64\" Name=\"T\">0 1 2 3 0 1 2 3</DataArray>" +
          ghost_flags("0 0 0 1 1 0 0 0") + "</PointData><CellData>" + ghost_flags("0 1 1 0") +
          "</CellData></Piece></UnstructuredGrid></VTKFile>");
  const ConvertReport shared = convert(options);
  CHECK(shared.nodes_max == 4);
  CHECK(shared.edges_max == 10);
  // A hidden cell goes, a hidden point takes its cells along, and other bits say nothing.
  write_vtu(options.input, {.columns = 3, .cells = load_array("0 1 2 3") + ghost_flags("32 2 4 16")});
  convert(options);
  CHECK(Dataset::open(options.output).trajectory(0).field("load").frame(0).size() == 3);
  write_vtu(options.input,
            {.columns = 3, .more = ghost_flags("2 0 0 0 0 0"), .cells = load_array("0 1 2 3")});
  convert(options);
  CHECK(Dataset::open(options.output).trajectory(0).field("load").frame(0).size() == 3);
}
