// SPDX-License-Identifier: Apache-2.0
// What numbers in the names of files mean: the order of frames, and which of them are one simulation.
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/file_series.h>
#include <meshgrad/train/convert/series_names.h>
#include <meshgrad/train/data/dataset.h>

#include <algorithm>
#include <random>

#include "support.h"
#include "train/scratch_directory.h"
#include "train/vtu_file.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::VtuFile;
using meshgrad::test::write_pvd;
using meshgrad::test::write_text;
using meshgrad::test::write_vtu;

namespace {

using Names = std::vector<std::string>;

/// The groups of a reading by name.
std::vector<Names> by_name(const SeriesReading& reading, const Names& names) {
  std::vector<Names> groups;
  for (const std::vector<size_t>& group : reading.groups) {
    groups.emplace_back();
    for (const size_t i : group) groups.back().push_back(names[i]);
  }
  return groups;
}

/// "s_{frame}: s_1 s_2 | s_3 s_4".
std::string text_of(const SeriesReading& reading, const Names& names) {
  std::string text = reading.pattern + ":";
  for (const Names& group : by_name(reading, names))
    text += fmt::format("{} {}", text.back() == ':' ? "" : " |", fmt::join(group, " "));
  return text;
}

/// All readings of the only family.
std::vector<std::string> readings(const Names& names) {
  const std::vector<SeriesFamily> families = families_of(names);
  REQUIRE(families.size() == 1);
  std::vector<std::string> texts;
  for (const SeriesReading& reading : families[0].readings) texts.push_back(text_of(reading, names));
  return texts;
}

struct NumberedFiles {
  ScratchDirectory scratch;
  ConvertOptions options;
  NumberedFiles() {
    options.input = scratch.path / "in";
    options.output = scratch.path / "out.mgd";
    options.split = {1};
  }
  void write(const std::string& name, const VtuFile& file) const { write_vtu(options.input / name, file); }
  /// First values of the field "u" of a trajectory's frames.
  std::vector<float> frames(int64_t trajectory = 0) const {
    const Dataset data = Dataset::open(options.output);
    const TrajectoryView t = data.trajectory(trajectory);
    std::vector<float> values;
    for (int64_t i = 0; i < t.frames(); ++i) values.push_back(t.field("u").frame(i)[0]);
    return values;
  }
  std::string error() const {
    return message_of([&] { convert(options); });
  }
};

bool any_has(const std::vector<std::string>& texts, const std::string& part) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return contains(text, part); });
}

}  // namespace

TEST_CASE("numbers are ordered as people read them") {
  CHECK(readings({"t_1.5", "t_-2.5", "t_1e2", "t_0.05", "t_-1e3", "t_1e-05", "t_0.1"}) ==
        Names{"t_{frame}: t_-1e3 t_-2.5 t_1e-05 t_0.05 t_0.1 t_1.5 t_1e2"});
  CHECK(readings({"n11", "n010", "n9"}) == Names{"n{frame}: n9 n010 n11"});
  CHECK(readings({"n99999999999999999999999", "n99999999999999999999998"}) ==
        Names{"n{frame}: n99999999999999999999998 n99999999999999999999999"});
}

TEST_CASE("numbered names have the readings that their digits allow") {
  CHECK(readings({"flow_9.vtu", "flow_10.vtu"}) == Names{"flow_{frame}.vtu: flow_9.vtu flow_10.vtu"});
  CHECK(readings({"s_0.1", "s_0.05", "s_0.01", "s_0.15"}) == Names{"s_{frame}: s_0.01 s_0.05 s_0.1 s_0.15"});
  CHECK(readings({"s_0.5", "s_1.0", "s_1.5"}) == Names{"s_{frame}: s_0.5 s_1.0 s_1.5"});
  CHECK(readings({"t_1e-05", "t_1e-04", "t_0.001"}) == Names{"t_{frame}: t_1e-05 t_1e-04 t_0.001"});
  CHECK(readings({"t_1e-05", "t_1e-04"}) == Names{"t_{frame}: t_1e-05 t_1e-04"});
  CHECK(readings({"v1.9", "v1.10", "v1.11"}) == Names{"v1.{frame}: v1.9 v1.10 v1.11"});
  CHECK(readings({"a_-5", "a_0", "a_5"}) == Names{"a_{frame}: a_-5 a_0 a_5"});
  CHECK(readings({"u1.0", "u1.5", "u2.0", "u2.5"}).size() == 3);  // a decimal, step of a case, case of a step
  CHECK(readings({"r_1_0", "r_1_1", "r_2_0", "r_2_1"}) ==
        Names{"r_{frame}_{case}: r_1_0 r_2_0 | r_1_1 r_2_1", "r_{case}_{frame}: r_1_0 r_1_1 | r_2_0 r_2_1"});
  // A counter and a time that agree are one; a number that does not follow the counter is a reading of its
  // own.
  CHECK(readings({"s_1_0.1", "s_2_0.2"}) == Names{"s_{frame}_*: s_1_0.1 s_2_0.2"});
  CHECK(readings({"s_1_30", "s_2_20"}).size() == 2);
  CHECK(families_of(Names{"a_1.vtu", "b_1.vtu", "a_1.vtk"}).size() == 3);
}

TEST_CASE("readings do not depend on the order of names") {
  Names names;
  for (int run = 0; run < 3; ++run)
    for (int step = 0; step < 12; ++step) names.push_back(fmt::format("run{}_{:g}.vtu", run, 0.05 * step));
  names.insert(names.end(), {"plate.vtu", "1.5.vtu", "1e3.vtu", ".vtu", "", "-", "run.1e+", "9e9e9"});
  const auto text = [&] {
    std::string all;
    for (const SeriesFamily& family : families_of(names))
      for (const SeriesReading& reading : family.readings) all += text_of(reading, names) + "\n";
    return all;
  };
  const std::string first = text();
  CHECK(contains(first, "run{case}_{frame}.vtu"));
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(names.begin(), names.end(), random);
    CHECK(text() == first);
  }
}

TEST_CASE("a pattern says which number counts the frames") {
  const Names names{"r_1_10.vtu", "r_1_9.vtu", "r_2_9.vtu", "mesh.vtu"};
  CHECK(by_name(parse_series("r_{case}_{frame}.vtu", names), names) ==
        std::vector<Names>{{"r_1_9.vtu", "r_1_10.vtu"}, {"r_2_9.vtu"}});
  CHECK(by_name(parse_series("r_{frame}_{case}.vtu", names), names) ==
        std::vector<Names>{{"r_1_10.vtu"}, {"r_1_9.vtu", "r_2_9.vtu"}});
  CHECK(contains(message_of([&] { parse_series("r_*_{frame}.vtu", names); }),
                 "needed one file of each frame, got r_1_9.vtu and r_2_9.vtu; fix: write {case} where"));
  const Names together{"r_1_9.vtu", "r_2_10.vtu"};
  CHECK(by_name(parse_series("r_*_{frame}.vtu", together), together) == std::vector<Names>{together});
  CHECK(parse_series("x{frame}", names).groups.empty());
  const Names decimal{"s_0.5", "s_0.25"};
  CHECK(by_name(parse_series("s_{frame}", decimal), decimal) == std::vector<Names>{{"s_0.25", "s_0.5"}});
  CHECK(by_name(parse_series("s_{case}.{frame}", decimal), decimal) ==
        std::vector<Names>{{"s_0.5", "s_0.25"}});
  CHECK(contains(message_of([&] { parse_series("s_{case}", decimal); }), "[series] needed a pattern"));
}

TEST_CASE("a pattern of many wildcards takes little time") {
  std::string pattern = "{frame}";
  for (int i = 0; i < 40; ++i) pattern += "*a";
  const std::vector<std::string> names{"1" + std::string(200, 'a') + "b", "2" + std::string(40, 'a')};
  CHECK(parse_series(pattern, names).groups == std::vector<std::vector<size_t>>{{1}});
}

TEST_CASE("files named by decimal times are frames in their order") {
  NumberedFiles folder;
  for (const char* time : {"0.01", "0.05", "0.1", "0.15", "0.2"})
    folder.write(fmt::format("sol_{}.vtu", time), {.first = std::stod(time)});
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 1);
  CHECK(folder.frames() == std::vector<float>{0.01F, 0.05F, 0.1F, 0.15F, 0.2F});
  CHECK(any_has(report.notes,
                "sol_0.01.vtu] and 4 more files were read as frames of one trajectory, sol_{frame}.vtu"));
  folder.options.separate_frames = true;
  CHECK(convert(folder.options).trajectories == 5);
}

TEST_CASE("names with two readings need a choice, or times") {
  NumberedFiles folder;
  for (int run = 1; run <= 2; ++run)
    for (int step = 0; step < 3; ++step)
      folder.write(fmt::format("r_{}_{}.vtu", run, step), {.first = 10.0 * run + step});
  const std::string error = folder.error();
  CHECK(contains(error,
                 "6 files in 2 ways: --series 'r_{frame}_{case}.vtu': 3 trajectories of 2 frames, r_1_0.vtu, "
                 "r_2_0.vtu, ..; --series 'r_{case}_{frame}.vtu': 2 trajectories of 3 frames"));
  folder.options.series = "r_{case}_{frame}.vtu";
  convert(folder.options);
  CHECK(folder.frames(1) == std::vector<float>{20, 21, 22});
  folder.options.series = "q_{frame}.vtu";
  CHECK(contains(folder.error(), "[series] needed a pattern that names of files match"));
  folder.options.series = "";
  for (int run = 1; run <= 2; ++run)  // of each run from 0 on: the first number tells runs apart
    for (int step = 0; step < 3; ++step)
      folder.write(fmt::format("r_{}_{}.vtu", run, step),
                   {.first = 10.0 * run + step, .time = fmt::format("{}", step)});
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 2);
  CHECK(report.dt == 1);
  CHECK(folder.frames(1) == std::vector<float>{20, 21, 22});
}

TEST_CASE("simulations of which one is on two meshes are refused") {
  NumberedFiles folder;
  for (int run = 1; run <= 3; ++run)
    for (int step = 0; step < 4; ++step)
      folder.write(fmt::format("r_{}_{}.vtu", run, step),
                   {.columns = run == 2 && step > 0 ? 4 : run + 1, .first = 10.0 * run + step});
  CHECK(contains(
      folder.error(),
      "needed frames of one mesh in every simulation, or in none, got --series 'r_{case}_{frame}.vtu': "
      "3 trajectories of 4 frames, of which r_2_0.vtu and r_2_1.vtu are on other meshes"));
  folder.options.series = "r_{case}_{frame}.vtu";
  CHECK(convert(folder.options).trajectories == 4);
  folder.options.series = "";
  folder.options.separate_frames = true;
  CHECK(convert(folder.options).trajectories == 12);
}

TEST_CASE("times in files order frames whatever their names say") {
  NumberedFiles folder;
  for (int i = 0; i < 4; ++i)
    folder.write(fmt::format("s_{}.vtu", i), {.first = 10.0 * i, .time = fmt::format("{}", 0.5 * (4 - i))});
  CHECK(convert(folder.options).dt == 0.5);
  CHECK(folder.frames() == std::vector<float>{30, 20, 10, 0});
}

TEST_CASE("parts of a mesh are no simulations") {
  NumberedFiles folder;
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 2; ++rank)
      folder.write(fmt::format("f_{}_{}.vtu", step, rank),
                   {.left = 1.0 * rank, .first = 100.0 * step + rank});
  CHECK(contains(folder.error(),
                 "6 files in 2 ways: --series 'f_{frame}_{case}.vtu': 2 trajectories of 3 frames; or "
                 "the frames of one mesh in 2 parts"));
  folder.options.series = "f_{frame}_{case}.vtu";
  CHECK(convert(folder.options).trajectories == 2);
  NumberedFiles ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.write(fmt::format("out_rank{}.vtu", rank), {.left = 1.0 * rank});
  CHECK(contains(ranks.error(), "2 files whose names say the part of a mesh"));
}

TEST_CASE("a list leaves out the other files of its folder") {
  NumberedFiles folder;
  for (int i = 0; i < 6; ++i)
    folder.write(fmt::format("u{:06}.vtu", i), {.first = (i < 3 ? 100.0 : 1000.0) * i});
  write_pvd(folder.options.input / "u.pvd", {"u000000.vtu", "u000001.vtu", "u000002.vtu"});
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 1);
  CHECK(report.dt == 0.1);
  CHECK(folder.frames() == std::vector<float>{0, 100, 200});
  CHECK(any_has(report.warnings,
                "left out 3 files, which no list of frames or pieces in the folder names: u000003.vtu"));
}

TEST_CASE("a mesh that changes begins a trajectory of the same dt") {
  NumberedFiles folder;
  const std::vector<int> columns{2, 2, 3, 4, 4};
  Names files;
  for (int i = 0; i < 5; ++i) {
    files.push_back(fmt::format("a_{}.vtu", i));
    folder.write(files.back(), {.columns = columns[static_cast<size_t>(i)], .first = 10.0 * i});
  }
  write_pvd(folder.options.input / "s.pvd", files);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 3);
  CHECK(report.meshes == 3);
  CHECK(report.dt == doctest::Approx(0.1));
  CHECK(report.fields[0].dynamic);
  CHECK(folder.frames(1) == std::vector<float>{20});
  CHECK(any_has(report.warnings,
                "a_2.vtu] the mesh is another one than that of the frame before: frame 2 begins"));
  folder.write("a_0.vtu", {.columns = 5});  // a mesh of one frame at the begin
  CHECK(convert(folder.options).trajectories == 4);
}

TEST_CASE("cells in another order are the same mesh") {
  NumberedFiles folder;
  Names files;
  for (int i = 0; i < 4; ++i) {
    files.push_back(fmt::format("a_{}.vtu", i));
    const std::string load = i % 2 == 0 ? "0 1 2 3" : "3 2 1 0";
    folder.write(files.back(), {.columns = 3,
                                .first = 100.0 * i,
                                .cells = "<DataArray type=\"Float64\" Name=\"load\">" + load + "</DataArray>",
                                .reverse = i % 2 == 1});
  }
  for (const bool listed : {false, true}) {
    if (listed) write_pvd(folder.options.input / "s.pvd", files);
    const ConvertReport report = convert(folder.options);
    CHECK(report.trajectories == 1);
    CHECK(report.meshes == 1);
    CHECK(folder.frames() == std::vector<float>{0, 100, 200, 300});
    const Dataset data = Dataset::open(folder.options.output);
    const TrajectoryView t = data.trajectory(0);
    for (int64_t frame = 0; frame < 4; ++frame)
      for (size_t cell = 0; cell < 4; ++cell)
        CHECK(t.field("load").frame(frame)[cell] == static_cast<float>(cell));
  }
}

TEST_CASE("numbered files of one mesh that moves are named") {
  NumberedFiles folder;
  folder.write("flow_10.vtu", {.first = 10});
  folder.write("flow_9.vtu", {.first = 9});
  folder.write("plate_1.vtu", {.first = 1});
  folder.write("plate_2.vtu", {.left = 0.5, .first = 2});
  folder.write("alone.vtu", {});
  std::string said;
  const std::vector<std::filesystem::path> files{
      folder.options.input / "flow_10.vtu", folder.options.input / "flow_9.vtu",
      folder.options.input / "plate_1.vtu", folder.options.input / "plate_2.vtu",
      folder.options.input / "alone.vtu"};
  const auto groups = series_of_files(files, "", false, [&](const std::string& text) { said += text; });
  CHECK(contains(said, "plate_2.vtu] has the cells of plate_1.vtu and other points: each of these 2 files"));
  REQUIRE(groups.size() == 4);
  const auto series = std::ranges::find_if(groups, [](const auto& group) { return group.size() == 2; });
  REQUIRE(series != groups.end());
  CHECK(series->front().path.filename() == "flow_9.vtu");
  CHECK(series_of_files(files, "", true, nullptr).size() == 5);
}
