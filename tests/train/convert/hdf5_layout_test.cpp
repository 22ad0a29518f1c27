// SPDX-License-Identifier: Apache-2.0
// Groups of HDF5 files: trajectories, or the frames of one; and what attributes say of the numbers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/hdf5_layout.h>
#include <meshgrad/train/data/dataset.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <cstring>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;

namespace {

/// Layouts of paths whose data sets are [4, 2], but `times` [count].
struct Groups {
  std::vector<std::string> paths;
  int64_t count = 0;
  GroupNames names = {};

  Hdf5Layout layout() const {
    const GroupFacts facts{
        [this](const std::string& path) {
          return path.ends_with("time") ? std::vector<int64_t>{count} : std::vector<int64_t>{4, 2};
        },
        [](const std::string& group) -> std::optional<double> {
          return group.starts_with("at_") ? std::optional<double>(std::stod(group.substr(3))) : std::nullopt;
        }};
    return hdf5_layout(paths, names, facts, "a.h5");
  }
  std::string error() const {
    return message_of([&] { layout(); });
  }
};

using Paths = std::vector<std::string>;

/// Converts a file of tests/data/cases; nothing in a build without HDF5.
struct CaseFile {
  ScratchDirectory scratch;
  ConvertOptions options;
  ConvertReport report;
  explicit CaseFile(const std::string& name) {
    options.input = test::data_file("cases/" + name);
    options.output = scratch.path / "out.mgd";
    options.split = {1};
  }
  bool read() {
    try {
      report = convert(options);
    } catch (const DataError& error) {
      if (contains(error.what(), "a build of meshgrad with HDF5")) return false;
      throw;
    }
    return true;
  }
  Dataset data() const { return Dataset::open(options.output); }
};

}  // namespace

TEST_CASE("HDF5: groups with a time each are frames in their order") {
  const Paths steps{"step_0/u", "step_10/u", "step_9/u", "mesh/xy", "time"};
  CHECK(Groups{steps, 3}.layout().trajectories == std::vector<Paths>{{"step_0/", "step_9/", "step_10/"}});
  CHECK(Groups{{"at_2/u", "at_10/u"}}.layout().trajectories == std::vector<Paths>{{"at_2/", "at_10/"}});
  CHECK(Groups{{"runs/2/u", "runs/10/u", "time"}, 5}.layout().trajectories ==
        std::vector<Paths>{{"runs/2/"}, {"runs/10/"}});
}

TEST_CASE("HDF5: groups named by steps without a time need a choice") {
  Groups groups{{"step_0/u", "step_1/u", "mesh/xy"}};
  CHECK(contains(groups.error(),
                 "[a.h5] needed names of groups that can be read in one way, got 2 groups, step_0 to "
                 "step_1, in 2 ways: --series 'step_{frame}': 1 trajectory of 2 frames; --separate: 2"));
  groups.names.separate = true;
  CHECK(groups.layout().trajectories.size() == 2);
  groups.names = {"step_{frame}", false};
  CHECK(groups.layout().trajectories == std::vector<Paths>{{"step_0/", "step_1/"}});
  groups.names = {"run_{frame}", false};
  CHECK(contains(groups.error(), "[series] needed a pattern that groups match"));
}

TEST_CASE("HDF5: simulations with a group for each step") {
  Groups groups{
      {"sim_0/pos", "sim_0/step_0/u", "sim_0/step_1/u", "sim_1/pos", "sim_1/step_0/u", "sim_1/step_1/u"}};
  groups.names.series = "sim_{case}/step_{frame}";
  for (const int more : {0, 1}) {
    if (more == 1) groups.paths.emplace_back("sim_1/step_2/u");
    const Hdf5Layout layout = groups.layout();
    REQUIRE(layout.trajectories.size() == 2);
    CHECK(layout.trajectories[0] == Paths{"sim_0/step_0/", "sim_0/step_1/"});
    CHECK(layout.trajectories[1].size() == static_cast<size_t>(2 + more));
    CHECK(layout.members == Paths{"u"});
    using Shared = std::vector<std::pair<std::string, std::string>>;
    CHECK(layout.shared_by(layout.trajectories[1]) == Shared{{"sim_1/pos", "pos"}});
  }
}

TEST_CASE("HDF5: groups of fields within a trajectory are no frames") {
  for (const char* leaf : {"a", "u"}) {
    Groups groups;
    for (const char* run : {"run_0", "run_1"})
      for (const char* layer : {"layer_1", "layer_2"})
        groups.paths.push_back(fmt::format("{}/{}/{}", run, layer, leaf));
    const Hdf5Layout layout = groups.layout();
    CHECK(layout.trajectories == std::vector<Paths>{{"run_0/"}, {"run_1/"}});
    CHECK(layout.members == Paths{fmt::format("layer_1/{}", leaf), fmt::format("layer_2/{}", leaf)});
  }
  CHECK(
      contains(Groups{{"sim_0/step_0/u", "sim_0/step_1/u", "sim_1/step_0/u", "sim_1/step_1/u"}}.error(),
               "--series 'sim_{case}/step_{frame}': 2 trajectories of 2 frames; --separate: 4 trajectories"));
}

TEST_CASE("HDF5: a lone trajectory has the names that many have") {
  const Hdf5Layout all = Groups{{"0/pos", "0/u"}}.layout();
  CHECK(all.trajectories == std::vector<Paths>{{"0/"}});
  CHECK(all.members == Paths{"pos", "u"});
  const Hdf5Layout beside = Groups{{"mesh/xy", "runs/7/u"}}.layout();
  CHECK(beside.trajectories == std::vector<Paths>{{"runs/7/"}});
  CHECK(beside.shared == Paths{"mesh/xy"});
  CHECK(Groups{{"mesh/xy", "flow/u"}}.layout().trajectories == std::vector<Paths>{{""}});
}

TEST_CASE("HDF5: a group that lacks an array is named") {
  CHECK(contains(Groups{{"run_1/p", "run_1/u", "run_2/p", "run_2/u", "run_3/u"}}.error(),
                 "[a.h5] needed the data sets p, u in each group, as run_1/ has, got run_3/ with u"));
}

TEST_CASE("HDF5: a file with a group for each step is one trajectory") {
  CaseFile file("group-per-step.h5");
  if (!file.read()) return;
  CHECK(file.report.trajectories == 1);
  CHECK(file.report.dt == doctest::Approx(0.1));
  const Dataset data = file.data();
  const TrajectoryView t = data.trajectory(0);
  REQUIRE(t.frames() == 6);
  for (int64_t i = 0; i < 6; ++i)
    for (size_t n = 0; n < 12; ++n)
      CHECK(t.field("u").frame(i)[2 * n] == static_cast<float>(n) + 100 * static_cast<float>(i));
}

TEST_CASE("HDF5: statics that repeat for every frame are static") {
  for (const char* name : {"tiled-statics.h5", "tiled-positions.h5"}) {
    CaseFile file(name);
    if (!file.read()) return;
    CHECK(file.report.trajectories == 3);
    CHECK(file.report.frames == 15);
    CHECK(file.report.meshes == 1);
    CHECK(file.report.edges_max == 46);
    REQUIRE(file.report.fields.size() == 1);
    CHECK(file.report.fields[0].name == "velocity");
    if (std::string(name) == "tiled-statics.h5")
      CHECK(file.report.node_types == std::vector<int64_t>{9 * 15, 0, 0, 0, 3 * 15});
  }
}

TEST_CASE("HDF5: scale and offset of NetCDF give the values") {
  CaseFile file("netcdf-packed.h5");
  if (!file.read()) return;
  REQUIRE(file.report.fields.size() == 1);  // and no dimension without values
  const Dataset data = file.data();
  float least = 1e9F, most = 0;
  for (int64_t i = 0; i < 5; ++i) {
    const auto values = data.trajectory(0).field("temperature").frame(i);
    for (const float value : values) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  CHECK(data.field("temperature").offset_of(0) + least == doctest::Approx(300));
  CHECK(data.field("temperature").offset_of(0) + most == doctest::Approx(300.51));
}

TEST_CASE("HDF5: components before nodes are refused, or said") {
  CaseFile file("components-first.h5");
  const std::string error = message_of([&] { file.read(); });
  if (error.empty()) return;
  CHECK(contains(
      error,
      "velocity] needed a shape that can be read in one way, got [2, 12], which is [frames,nodes] or "
      "[components,nodes]; fix: --axes velocity=frames,nodes or"));
  file.options.axes = {{"velocity", "components,nodes"}};
  REQUIRE(file.read());
  CHECK_FALSE(file.report.fields[0].dynamic);
  const Dataset data = file.data();
  const auto u = data.trajectory(0).field("velocity").frame(0);
  CHECK(u[0] == 0);
  CHECK(u[1] == 100);
  file.options.axes = {{"velocity", "frames,nodes"}};
  REQUIRE(file.read());
  CHECK(file.report.frames == 2);
}

TEST_CASE("HDF5: a file that does not open says why") {
  CaseFile file("group-per-step.h5");
  if (!file.read()) return;
  const std::filesystem::path copy = file.scratch.path / "a.h5";
  std::filesystem::copy_file(file.options.input, copy);
  file.options.input = copy;
  const int descriptor = open(copy.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(flock(descriptor, LOCK_EX) == 0);
  CHECK(contains(message_of([&] { file.read(); }),
                 "a.h5] needed an HDF5 file that no program writes, got a lock"));
  flock(descriptor, LOCK_UN);
  CHECK(file.read());
  REQUIRE(ftruncate(descriptor, 4000) == 0);
  CHECK(contains(message_of([&] { file.read(); }), "got damaged bytes, or a file that is cut short"));
  const char superblock[] = "\x89HDF\r\n\x1a\n\x03\x08\x08\x01";
  REQUIRE(pwrite(descriptor, superblock, 12, 0) == 12);
  CHECK(contains(message_of([&] { file.read(); }), "got the mark that it is open for writing"));
  close(descriptor);
}
