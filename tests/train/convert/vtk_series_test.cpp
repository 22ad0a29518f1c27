// SPDX-License-Identifier: Apache-2.0
// Folders as solvers leave them: a folder for each simulation, a list of frames for each field.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
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

  /// A list NAME.pvd of `frames` frames of a field that is 10 * frame + point, on a triangle of this width,
  /// one point of which moves by `motion` in each frame.
  void add(const std::string& name, const std::string& field, int frames, int width = 1,
           int motion = 0) const {
    const fs::path list = options.input / (name + ".pvd");
    fs::create_directories(list.parent_path());
    std::string entries;
    for (int t = 0; t < frames; ++t) {
      const std::string file = fmt::format("{}{:03}.vtu", list.stem().string(), t);
      entries += fmt::format("<DataSet timestep=\"{}\" file=\"{}\"/>", 0.5 * t, file);
      write(fs::path(name).parent_path() / file, field, t, width, motion);
    }
    std::ofstream(list) << "<VTKFile type=\"Collection\"><Collection>" << entries
                        << "</Collection></VTKFile>";
  }

  void write(const fs::path& name, const std::string& field, int t, int width = 1, int motion = 0) const {
    fs::create_directories((options.input / name).parent_path());
    std::ofstream(options.input / name) << fmt::format(
        "<VTKFile type=\"UnstructuredGrid\" byte_order=\"LittleEndian\"><UnstructuredGrid><Piece "
        "NumberOfPoints=\"3\" NumberOfCells=\"1\"><Points><DataArray type=\"Float64\" "
        "NumberOfComponents=\"3\" format=\"ascii\">0 0 0 {} 0 0 {} 1 0</DataArray></Points><Cells>"
        "<DataArray type=\"Int32\" Name=\"connectivity\" format=\"ascii\">0 1 2</DataArray><DataArray "
        "type=\"Int32\" Name=\"offsets\" format=\"ascii\">3</DataArray><DataArray type=\"UInt8\" "
        "Name=\"types\" format=\"ascii\">5</DataArray></Cells><PointData><DataArray type=\"Float64\" "
        "Name=\"{}\" format=\"ascii\">{} {} "
        "{}</DataArray></PointData></Piece></UnstructuredGrid></VTKFile>",
        width, motion * t, field, 10 * t, 10 * t + 1, 10 * t + 2);
  }

  void write_text(const fs::path& name, const std::string& text) const {
    fs::create_directories((options.input / name).parent_path());
    std::ofstream(options.input / name) << text;
  }

  /// CASE_T.vtm as foamToVTK writes it, with a surface that is not to be read.
  void write_blocks(const fs::path& path, int t, int width = 1) const {
    const std::string name = fmt::format("{}_{}", path.filename().string(), t);
    write(path.parent_path() / name / "internal.vtu", "p", t, width);
    write_text(path.parent_path() / name / "boundary/inlet.vtp", "a surface");
    write_text(
        path.parent_path() / (name + ".vtm"),
        fmt::format("<VTKFile type=\"vtkMultiBlockDataSet\"><vtkMultiBlockDataSet><DataSet name=\"internal\" "
                    "file=\"{0}/internal.vtu\"/><Block name=\"boundary\"><DataSet name=\"inlet\" "
                    "file=\"{0}/boundary/inlet.vtp\"/></Block></vtkMultiBlockDataSet></VTKFile>",
                    name));
  }

  bool noted(const ConvertReport& report, const std::string& text) const {
    for (const std::string& note : report.notes)
      if (contains(note, text)) return true;
    return false;
  }
};

}  // namespace

TEST_CASE("a folder for each simulation is read") {
  SolverFolder folder;
  for (int run = 0; run < 10; ++run) folder.add(fmt::format("run_{}/u", run), "u", 3, run + 1);
  const ConvertReport report = convert(folder.options);
  CHECK(report.warnings.size() == 1);  // no node types, and no word on folders
  CHECK(folder.noted(report, "train: run_0/u.pvd, run_1/u.pvd"));
  CHECK(report.trajectories == 10);
  CHECK(report.meshes == 10);
  CHECK(report.dt == 0.5);
  const Dataset data = Dataset::open(folder.options.output);
  CHECK(data.size("train") == 8);
  CHECK(data.trajectory(3).name() == "run_3/u000.vtu");
  folder.add("u", "u", 3);
  const ConvertReport own = convert(folder.options);
  CHECK(own.trajectories == 3);  // the folder's own, divided by time
  CHECK(contains(own.warnings.front(), "run_0] this folder was not read"));
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

TEST_CASE("lists of fields on one mesh are one trajectory") {
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
  CHECK(report.node_types == std::vector<int64_t>{6, 6, 6});
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

TEST_CASE("--node-types wins over arrays node_type") {
  SolverFolder folder;
  folder.options.split = {1};
  folder.add("temperature", "T", 3);
  folder.add("walls", "marker", 1);
  folder.add("own", "node_type", 1);
  folder.write("own000.vtu", "node_type", 3);
  CHECK(convert(folder.options).node_types.size() == 33);
  folder.options.node_types = "marker";
  const ConvertReport report = convert(folder.options);
  CHECK(report.node_types == std::vector<int64_t>{3, 3, 3});
  REQUIRE(report.fields.size() == 1);
  CHECK(report.fields[0].name == "T");
  CHECK(contains(report.warnings.at(0), "own000.vtu] the array node_type is not used, since --node-types"));
  folder.options.input /= "own.pvd";
  folder.options.node_types = "T";
  CHECK(contains(message_of([&] { convert(folder.options); }), "needed the array T, as --node-types says"));
}

TEST_CASE("lists of frames of one mesh that moves have its points once") {
  SolverFolder folder;
  folder.options.split = {1};
  folder.add("clamped", "marker", 1);
  folder.add("displacement", "u", 3, 1, 2);
  folder.add("stress", "s", 3, 1, 2);
  folder.options.node_types = "marker";
  CHECK(convert(folder.options).trajectories == 1);
  const Dataset data = Dataset::open(folder.options.output);
  const TrajectoryView t = data.trajectory(0);
  CHECK(t.field("world_pos").frame(2)[4] == 4);
  CHECK(t.field("u").frame(2)[1] == 21);
  CHECK(t.field("s").frame(1)[0] == 10);
  folder.add("stress", "s", 3, 1, 3);
  CHECK(contains(message_of([&] { convert(folder.options); }), "needed the points of"));
}

TEST_CASE("what foamToVTK writes of a case is read, without the patches") {
  SolverFolder folder;
  folder.options.split = {1};
  for (int run = 0; run < 2; ++run) {
    const std::string name = fmt::format("case_{}", run);
    folder.write_text(name + "/system/controlDict", "");
    folder.write_text(name + "/postProcessing/line/0/p.vtk", "samples");
    for (int t = 0; t < 3; ++t) folder.write_blocks(fs::path(name) / "VTK" / name, t, run + 1);
  }
  folder.write_text(
      "case_1/VTK/case_1.vtm.series",
      R"({"files": [{"name": "case_1_0.vtm", "time": 0}, {"name": "case_1_1.vtm", "time": 0.5}, )"
      R"({"name": "case_1_2.vtm", "time": 1}]})");
  folder.options.dt = 0.5;
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 2);
  CHECK(report.frames == 6);
  CHECK(report.warnings.size() == 1);
  const Dataset data = Dataset::open(folder.options.output);
  CHECK(data.trajectory(1).field("p").frame(2)[1] == 21);
  for (const char* input : {"case_1", "case_1/VTK", "case_1/VTK/", "case_1/VTK/case_1.vtm.series"}) {
    CAPTURE(input);
    ConvertOptions one = folder.options;
    one.input /= input;
    CHECK(convert(one).frames == 3);
    CHECK(convert(one).warnings.size() == 1);
  }
  folder.write("case_1/VTK/case_1_0/more.vtu", "p", 0);
  folder.write_text(
      "case_1/VTK/case_1_0.vtm",
      R"(<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet><DataSet file="case_1_0/more.vtu"/>)"
      R"(<DataSet file="case_1_0/internal.vtu"/></vtkMultiBlockDataSet></VTKFile>)");
  CHECK(contains(message_of([&] { convert(folder.options); }), "needed one .vtu file in the blocks"));
  folder.write_text("case_1/VTK/case_1_0.vtm", "<VTKFile");
  CHECK(contains(message_of([&] { convert(folder.options); }), "case_1_0.vtm] needed XML with blocks"));
}

TEST_CASE("the older layout of foamToVTK, with a folder for each patch") {
  SolverFolder folder;
  folder.write_text("system/controlDict", "");
  for (int t = 0; t < 3; ++t) {
    folder.write(fmt::format("VTK/case_{}.vtu", 10 * t), "p", t);
    folder.write_text(fmt::format("VTK/inlet/inlet_{}.vtk", 10 * t), "a surface");
  }
  folder.options.split = {1};
  CHECK(convert(folder.options).frames == 3);
  folder.options.input /= "VTK";
  const ConvertReport report = convert(folder.options);
  CHECK(report.frames == 3);
  CHECK(report.warnings.size() == 1);
}

TEST_CASE("an OpenFOAM case without VTK names the commands") {
  SolverFolder folder;
  folder.write_text("a/system/controlDict", "");
  folder.write_text("a/0/p", "");
  const std::string error = message_of([&] { convert(folder.options); });
  CHECK(contains(error, "a] needed files that foamToVTK wrote"));
  CHECK(contains(error, "fix: scripts/to-vtu "));
}

TEST_CASE("a series that is not one is refused, however deep it nests") {
  SolverFolder folder;
  folder.write_text("a.vtu.series", std::string(1'000'000, '[') + std::string(1'000'000, ']'));
  folder.options.input /= "a.vtu.series";
  CHECK(contains(message_of([&] { convert(folder.options); }), "a.vtu.series] needed JSON"));
  CHECK(contains(message_of([&] { convert(folder.options); }), "got a JSON array"));
}

TEST_CASE("lists of the same field are separate trajectories") {
  SolverFolder folder;
  folder.options.split = {1};
  for (const char* name : {"u_1", "u_2"}) folder.add(name, "u", 3);
  folder.add("u_3", "u", 4, 2);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 3);
  CHECK_FALSE(folder.noted(report, "fields of one trajectory"));
}

TEST_CASE("simulations on one mesh are joined by trailing numbers") {
  SolverFolder folder;
  folder.add("a_2", "p", 3);
  folder.add("b_1", "u", 3);
  folder.add("c_1", "p", 3);
  folder.add("d_2", "u", 3);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 6);  // two, divided by time
  CHECK(folder.noted(report, "a_2.pvd, d_2.pvd were read as fields of one trajectory"));
}

TEST_CASE("a folder is read once, whatever links lead to it") {
  SolverFolder folder;
  for (int run = 0; run < 10; ++run) folder.add(fmt::format("run_{}/u", run), "u", 3, run + 1);
  fs::create_directory_symlink("run_9", folder.options.input / "latest");
  fs::create_directory_symlink(".", folder.options.input / "run_3/here");
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 10);
  CHECK(report.warnings.size() == 1);  // no node types
  SolverFolder saved;                  // by ParaView
  for (int t = 0; t < 5; ++t) saved.write(fmt::format("flow/flow_{}.vtu", t), "u", t);
  std::string entries;
  for (int t = 0; t < 5; ++t)
    entries += fmt::format("<DataSet timestep=\"{}\" file=\"flow/flow_{}.vtu\"/>", t, t);
  saved.write_text("flow.pvd",
                   "<VTKFile type=\"Collection\"><Collection>" + entries + "</Collection></VTKFile>");
  const ConvertReport listed = convert(saved.options);
  for (const std::string& warning : listed.warnings) CHECK_FALSE(contains(warning, "was not read"));
}

TEST_CASE("fields whose lists have other times are not joined") {
  SolverFolder folder;
  folder.add("p", "p", 3);
  folder.add("u", "u", 3);
  folder.write_text(
      "u.pvd",
      "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"0\" file=\"u000.vtu\"/>"
      "<DataSet timestep=\"0.1\" file=\"u001.vtu\"/><DataSet timestep=\"0.2\" file=\"u002.vtu\"/>"
      "</Collection></VTKFile>");
  const std::string message = message_of([&] { convert(folder.options); });
  CHECK_MESSAGE(contains(message, "u.pvd] needed time 0.5 of frame 1, as p.pvd has, got 0.1"), message);
}

TEST_CASE("fields of one mesh at other times are one error") {
  SolverFolder folder;
  folder.add("T", "T", 3);
  folder.add("u", "u", 2);
  const std::string error = message_of([&] { convert(folder.options); });
  CHECK(contains(error, "u000.vtu] needed 3 frames, as "));
  CHECK(contains(error, "has, or 1, got 2"));
}
