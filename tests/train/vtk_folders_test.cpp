// SPDX-License-Identifier: Apache-2.0
// Folders as solvers leave them: a folder for each simulation, a list of frames for each field.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <fmt/format.h>
#include <fstream>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

struct SolverFolder {
  ScratchDirectory scratch;
  ConvertOptions options;
  SolverFolder() {
    options.input = scratch.path / "in";
    options.output = scratch.path / "out.mgd";
  }

  /// A list NAME.pvd of `frames` frames of a field that is 10 * frame + point, on a triangle of this width.
  void add(const std::string& name, const std::string& field, int frames, int width = 1) const {
    const fs::path list = options.input / (name + ".pvd");
    fs::create_directories(list.parent_path());
    std::string entries;
    for (int t = 0; t < frames; ++t) {
      const std::string file = fmt::format("{}{:03}.vtu", list.stem().string(), t);
      entries += fmt::format("<DataSet timestep=\"{}\" file=\"{}\"/>", 0.5 * t, file);
      std::ofstream(list.parent_path() / file) << fmt::format(
          "<VTKFile type=\"UnstructuredGrid\" byte_order=\"LittleEndian\"><UnstructuredGrid><Piece "
          "NumberOfPoints=\"3\" NumberOfCells=\"1\"><Points><DataArray type=\"Float64\" "
          "NumberOfComponents=\"3\" format=\"ascii\">0 0 0 {} 0 0 0 1 0</DataArray></Points><Cells>"
          "<DataArray type=\"Int32\" Name=\"connectivity\" format=\"ascii\">0 1 2</DataArray><DataArray "
          "type=\"Int32\" Name=\"offsets\" format=\"ascii\">3</DataArray><DataArray type=\"UInt8\" "
          "Name=\"types\" format=\"ascii\">5</DataArray></Cells><PointData><DataArray type=\"Float64\" "
          "Name=\"{}\" format=\"ascii\">{} {} "
          "{}</DataArray></PointData></Piece></UnstructuredGrid></VTKFile>",
          width, field, 10 * t, 10 * t + 1, 10 * t + 2);
    }
    std::ofstream(list) << "<VTKFile type=\"Collection\"><Collection>" << entries
                        << "</Collection></VTKFile>";
  }

  bool noted(const ConvertReport& report, const std::string& text) const {
    for (const std::string& note : report.notes)
      if (contains(note, text)) return true;
    return false;
  }
};

}  // namespace

TEST_CASE("a folder for each simulation: all are read where the folder has no data of its own") {
  SolverFolder folder;
  for (int run = 0; run < 10; ++run) folder.add(fmt::format("run_{}/u", run), "u", 3, run + 1);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 10);
  CHECK(report.meshes == 10);
  CHECK(report.dt == 0.5);
  const Dataset data = Dataset::open(folder.options.output);
  CHECK(data.size("train") == 8);
  folder.add("u", "u", 3);
  CHECK(convert(folder.options).trajectories == 3);  // the folder's own, divided by time
}

TEST_CASE("folders of simulations within those of splits") {
  SolverFolder folder;
  folder.add("train/run_1/u", "u", 3);
  folder.add("train/run_2/deeper/u", "u", 3, 2);
  folder.add("test/run_3/u", "u", 3, 3);
  convert(folder.options);
  const Dataset data = Dataset::open(folder.options.output);
  CHECK(data.size("train") == 2);
  CHECK(data.size("test") == 1);
}

TEST_CASE("lists of frames of several fields on one mesh are one trajectory") {
  SolverFolder folder;
  folder.options.split = {1};
  for (const char* run : {"a", "b"}) {
    const int width = *run;
    folder.add(fmt::format("{}/temperature", run), "T", 3, width);
    folder.add(fmt::format("{}/velocity", run), "u", 1, width);
    folder.add(fmt::format("{}/walls", run), "marker", 1, width);
  }
  folder.options.node_types = "marker";
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 2);
  CHECK(report.node_types == std::vector<int64_t>{2, 2, 2});
  CHECK(folder.noted(report, "temperature.pvd, velocity.pvd, walls.pvd were read as fields of one"));
  CHECK(folder.noted(report, "(and 1 more like it)"));
  const Dataset data = Dataset::open(folder.options.output);
  REQUIRE(data.fields().size() == 2);
  CHECK(data.field("T").dynamic);
  CHECK_FALSE(data.field("u").dynamic);
  const TrajectoryView t = data.trajectory(1);
  CHECK(t.dt() == 0.5);
  CHECK(t.field("T").frame(2)[1] == 21);
  CHECK(t.field("u").frame(2)[2] == 2);
  folder.options.node_types = "wall";
  CHECK(contains(message_of([&] { convert(folder.options); }), "needed the array wall"));
}

TEST_CASE("lists of the same field, or on other meshes, are trajectories of their own") {
  SolverFolder folder;
  folder.options.split = {1};
  for (const char* name : {"u_1", "u_2"}) folder.add(name, "u", 3);
  folder.add("u_3", "u", 4, 2);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 3);
  CHECK_FALSE(folder.noted(report, "fields of one trajectory"));
}

TEST_CASE("fields of one mesh at other times are one error") {
  SolverFolder folder;
  folder.add("T", "T", 3);
  folder.add("u", "u", 2);
  const std::string error = message_of([&] { convert(folder.options); });
  CHECK(contains(error, "u000.vtu] needed 3 frames, as "));
  CHECK(contains(error, "has, or 1, got 2"));
}
