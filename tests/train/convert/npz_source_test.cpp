// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/npz_source.h>

#include <algorithm>
#include <optional>
#include <random>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_arrays;
using meshgrad::test::write_npz;

namespace {

// Over 3 frames; shapes as DeepMind has them.
NpzArrays square() {
  NpzArrays arrays = square_arrays(3, 0, "1, ");
  arrays["node_type"] = npy<int32_t>("<i4", "(1, 4, 1)", {0, 0, 6, 6});
  return arrays;
}

RawTrajectory parse_archive(const std::string& file, const ArrayMap& map = {},
                            std::string* warning = nullptr) {
  return trajectory_of_npz(std::as_bytes(std::span(file)), "a.npz", {.map = map},
                           [&](const std::string& text) {
                             if (warning != nullptr) *warning += text + "\n";
                           });
}

}  // namespace

TEST_CASE("stored and deflated NPZ files give the same trajectory") {
  const ScratchDirectory scratch;
  for (const bool compressed : {false, true}) {
    const RawTrajectory t = parse_archive(write_npz(scratch.path / "a.npz", square(), compressed));
    validate(t);
    CHECK(t.nodes == 4);
    CHECK(t.dim == 2);
    CHECK(t.frames == 3);
    CHECK(t.nodes_per_cell == 3);
    CHECK(t.cells == std::vector<int32_t>{0, 1, 2, 0, 2, 3});
    CHECK(t.node_type == std::vector<int32_t>{0, 0, 6, 6});
    REQUIRE(t.fields.size() == 1);
    CHECK(std::get<std::vector<float>>(t.fields[0].values)[11] == 11.0F);
  }
}

TEST_CASE("NPZ arrays may omit leading ones") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square();
  arrays["mesh_pos"] = npy<double>("<f8", "(4, 2)", {0, 0, 1, 0, 1, 1, 0, 1});
  arrays["node_type"] = npy<int64_t>("<i8", "(4,)", {0, 0, 6, 6});
  arrays["mesh_edge"] = npy<int64_t>("<i8", "(2, 3)", {0, 1, 2, 1, 2, 3});
  arrays["depth"] = npy<float>("<f4", "(4,)", {1, 2, 3, 4});
  arrays["dt"] = npy<double>("<f8", "()", {0.25});
  arrays.erase("cells");
  const RawTrajectory t = parse_archive(write_npz(scratch.path / "a.npz", arrays, true));
  validate(t);
  CHECK(t.edges == std::vector<int32_t>{0, 1, 2, 1, 2, 3});
  CHECK(t.dt == 0.25);
  REQUIRE(t.fields.size() == 2);
  CHECK(t.fields[0].name == "depth");
  CHECK_FALSE(t.fields[0].dynamic);
}

TEST_CASE("a bad NPZ file names file and array") {
  const ScratchDirectory scratch;
  const auto error = [&](const std::string& array, const std::string& content) {
    NpzArrays arrays = square();
    arrays[array] = content;
    const std::string file = write_npz(scratch.path / "a.npz", arrays, false);
    return message_of([&] { validate(parse_archive(file)); });
  };
  CHECK(contains(error("u", npy<float>("<f4", "(3, 3, 1)", std::vector<float>(9))),
                 "[a.npz: array u] needed [frames, nodes, components] with 4 nodes, got [3, 3, 1]"));
  CHECK(contains(error("v", npy<float>("<f4", "(2, 4, 1)", std::vector<float>(8))),
                 "[a.npz: array v] needed 3 frames, as the arrays before it, got [2, 4, 1]"));
  CHECK(contains(error("cells", npy<float>("<f4", "(1, 3)", {0, 1, 2})),
                 "[a.npz: array cells] needed integers"));
  CHECK(contains(error("mesh_pos", npy<float>("<f4", "(4, 1)", {0, 1, 2, 3})), "got [4, 1]"));
  CHECK(contains(error("u", "not numpy"), "[a.npz: array u] needed an array written by NumPy"));
  NpzArrays without = square();
  without.erase("mesh_pos");
  const std::string file = write_npz(scratch.path / "a.npz", without, false);
  CHECK(contains(message_of([&] { parse_archive(file); }),
                 "[a.npz] needed an array \"mesh_pos\", got cells, node_type, u"));
  CHECK(contains(message_of([] { parse_archive("PK no zip"); }), "[a.npz] needed an NPZ file"));
  NpzArrays twice = square();
  twice["w"] = twice["u"];
  std::string two_members = write_npz(scratch.path / "a.npz", twice, false);
  for (size_t at = 0; (at = two_members.find("w.npy", at)) != std::string::npos;) two_members[at] = 'u';
  CHECK(contains(message_of([&] { parse_archive(two_members); }),
                 "[a.npz: array u] needed one array of a name, got two members u.npy"));
}

TEST_CASE("a damaged NPZ file is refused or read, never read past") {
  const ScratchDirectory scratch;
  std::mt19937 random(5);
  int refused = 0;
  for (const bool compressed : {false, true}) {
    const std::string good = write_npz(scratch.path / "a.npz", square(), compressed);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string damaged = good;
      damaged[at] = static_cast<char>(random());
      try {
        parse_archive(damaged);
      } catch (const DataError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a single NPZ file is split by time") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square();
  arrays.erase("node_type");
  write_npz(scratch.path / "run.npz", arrays, true);
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  const ConvertReport report = convert(options);
  CHECK(report.format == "npz");
  CHECK(report.warnings.size() == 3);  // by time, no node types, parts of one frame
  CHECK(report.splits.size() == 3);
  const Dataset data = Dataset::open(options.output);
  CHECK(data.trajectory("test", 0).field("u").frame(0)[3] == 11.0F);
  CHECK(data.node_type_counts()[0] == 4);
}

TEST_CASE("displacements move the mesh") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square();
  const std::vector<float> moved = test::counting(24);
  std::vector<float> bent(36, 0.0F);
  for (size_t i = 2; i < bent.size(); i += 3) bent[i] = static_cast<float>(i);  // a plate out of its plane
  arrays["Displacement"] = npy<float>("<f4", "(3, 4, 2)", moved);
  arrays["bent"] = npy<float>("<f4", "(3, 4, 3)", bent);
  write_npz(scratch.path / "run.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1};
  const auto converted = [&](const std::string& displacement) {
    options.displacement = displacement;
    const ConvertReport report = convert(options);
    const bool noted = std::ranges::any_of(report.notes, [](const std::string& note) {
      return contains(note,
                      "positions plus the field Displacement are the field world_pos; keep it with "
                      "--displacement Displacement, or leave it out with --displacement none");
    });
    CHECK(noted == displacement.empty());
    return Dataset::open(options.output);
  };
  for (const char* name : {"", "Displacement"}) {
    const Dataset data = converted(name);
    const auto at = data.trajectory(0).field("world_pos").frame(2);
    CHECK(std::vector(at.begin(), at.end()) == std::vector<float>{16, 17, 19, 19, 21, 22, 22, 24});
    CHECK(data.field("world_pos").dynamic);
    CHECK(data.trajectory(0).field("Displacement").frame(1)[0] == 8);
  }
  const Dataset plate = converted("bent");
  const auto at = plate.trajectory(0).field("world_pos").frame(1);
  CHECK(std::vector(at.begin() + 3, at.begin() + 9) == std::vector<float>{1, 0, 17, 1, 1, 20});
  const auto fields = converted("none").fields();
  CHECK(std::ranges::none_of(fields, [](const FieldInfo& field) { return field.name == "world_pos"; }));
  CHECK(contains(message_of([&] { converted("u"); }), "field u] needed displacements: 2 or 3 floats"));
  CHECK(contains(message_of([&] { converted("v"); }), "got a missing field"));
  arrays["mesh_pos"] = npy<float>("<f4", "(4, 2)", std::vector<float>(8, 3e38F));
  arrays["far"] = npy<float>("<f4", "(3, 4, 2)", std::vector<float>(24, 1e38F));
  write_npz(scratch.path / "run.npz", arrays, false);
  CHECK(
      contains(message_of([&] { converted("far"); }),
               "field far, frame 0, node 0] needed a position plus its displacement that float32 can hold"));
}

TEST_CASE("static fields move no mesh") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square();
  arrays["disp"] = npy<float>("<f4", "(1, 4, 2)", test::counting(8));
  ConvertOptions options;
  options.input = scratch.path / "run.npz";
  options.output = scratch.path / "a.mgd";
  options.split = {1};
  const auto moved_by = [&](const std::string& displacement) {
    write_npz(options.input, arrays, false);
    options.displacement = displacement;
    convert(options);
    const std::vector<FieldInfo> fields = Dataset::open(options.output).fields();
    const auto found = std::ranges::find(fields, "world_pos", &FieldInfo::name);
    return found == fields.end() ? std::optional<FieldInfo>() : *found;
  };
  CHECK_FALSE(moved_by("").has_value());
  options.units["disp"] = "m";
  const std::optional<FieldInfo> named = moved_by("disp");
  REQUIRE(named.has_value());
  CHECK_FALSE(named->dynamic);
  CHECK(named->unit == "m");

  arrays["disp"] = npy<float>("<f4", "(3, 4, 2)", test::counting(24));
  arrays["world_pos"] = npy<float>("<f4", "(3, 4, 2)", std::vector<float>(24, 7.0F));
  CHECK(moved_by("")->dynamic);
  CHECK(Dataset::open(options.output).trajectory(0).field("world_pos").frame(1)[0] == 7.0F);
}

TEST_CASE("arrays of other names are guessed or mapped") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square();
  arrays["points"] = arrays["mesh_pos"];
  arrays["elements"] = arrays["cells"];
  arrays.erase("mesh_pos");
  arrays.erase("cells");
  arrays["p"] = npy<float>("<f4", "(4,)", {1, 2, 3, 4});
  const std::string file = write_npz(scratch.path / "a.npz", arrays, false);
  std::string warning;
  CHECK(parse_archive(file, {}, &warning).cells == std::vector<int32_t>{0, 1, 2, 0, 2, 3});
  CHECK(contains(warning, "--map positions=points --map cells=elements"));

  warning.clear();
  const RawTrajectory t = parse_archive(
      file, {{"positions", "points"}, {"cells", "elements"}, {"velocity", "u"}, {"graph:re", "p"}}, &warning);
  validate(t);
  REQUIRE(t.fields.size() == 2);
  CHECK(t.fields[0].on == FieldOn::graph);
  CHECK(t.fields[1].name == "velocity");
  CHECK(t.node_type.size() == 4);
  CHECK(warning.empty());
  parse_archive(file, {{"positions", "points"}, {"cells", "elements"}, {"velocity", "u"}}, &warning);
  CHECK(contains(warning, "names others: p"));
  // What the guess prints says the same as the guess.
  warning.clear();
  CHECK(parse_archive(file, {{"positions", "points"}, {"cells", "elements"}}, &warning).fields.size() ==
        parse_archive(file, {}).fields.size());
  CHECK(warning.empty());
  CHECK(contains(message_of([&] {
                   parse_archive(file, {{"positions", "xyz"}});
                 }),
                 "needed the array xyz, as --map positions=xyz says, got elements [1, 2, 3]"));
}
