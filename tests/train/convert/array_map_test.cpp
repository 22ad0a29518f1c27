// SPDX-License-Identifier: Apache-2.0
// Maps of arrays: given, guessed, saved into a file and read again.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/npz_source.h>
#include <meshgrad/train/data/dataset.h>

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "paths.h"
#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_arrays;
using meshgrad::test::write_npz;

namespace {

/// The square under other names, with evenly spaced times and a field on its edges.
NpzArrays renamed_square() {
  NpzArrays arrays = square_arrays(3);
  arrays["points"] = std::move(arrays["mesh_pos"]);
  arrays["elements"] = std::move(arrays["cells"]);
  arrays.erase("mesh_pos");
  arrays.erase("cells");
  arrays["mesh_edge"] = npy<int32_t>("<i4", "(2, 5)", {0, 1, 2, 3, 0, 1, 2, 3, 0, 2});
  arrays["edge:length"] = npy<float>("<f4", "(5,)", {1, 1, 1, 1, 1.4F});
  arrays["t"] = npy<double>("<f8", "(3,)", {0, 0.5, 1});
  return arrays;
}

ConvertOptions options_of_map(const std::filesystem::path& input, const std::filesystem::path& output) {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  options.split = {1.0};
  return options;
}

}  // namespace

TEST_CASE("a guessed map is saved, and the file reads the same data") {
  const ScratchDirectory scratch;
  write_npz(scratch.path / "a.npz", renamed_square(), false);
  ConvertOptions options = options_of_map(scratch.path / "a.npz", scratch.path / "guessed.mgd");
  options.save_map = scratch.path / "a.map";
  const ConvertReport guessed = convert(options);
  CHECK(guessed.map == ArrayMap{{"positions", "points"},
                                {"cells", "elements"},
                                {"edges", "mesh_edge"},
                                {"types", "node_type"},
                                {"times", "t"},
                                {"u", "u"},
                                {"edge:length", "edge:length"}});
  const std::string saved = read_text(options.save_map);
  CHECK(saved.starts_with("# Which array of "));
  CHECK(contains(saved, "\npositions=points\n"));
  options.map = parse_array_map(saved, "a.map");
  CHECK(options.map == guessed.map);
  options.output = scratch.path / "mapped.mgd";
  options.save_map = scratch.path / "again.map";
  const ConvertReport mapped = convert(options);
  CHECK(mapped.warnings.empty());
  CHECK(mapped.dt == 0.5);
  CHECK(parse_array_map(read_text(options.save_map), "") == guessed.map);
  const Dataset one = Dataset::open(scratch.path / "mapped.mgd"),
                other = Dataset::open(scratch.path / "guessed.mgd");
  for (const char* field : {"u", "length"})
    for (int64_t i = 0; i < (field[0] == 'u' ? one.trajectory(0).frames() : 1); ++i)
      CHECK(std::ranges::equal(one.trajectory(0).field(field).frame(i),
                               other.trajectory(0).field(field).frame(i)));
}

TEST_CASE("a saved map replaces only a map") {
  const ScratchDirectory scratch;
  const std::string input = write_npz(scratch.path / "a.npz", renamed_square(), false);
  ConvertOptions options = options_of_map(scratch.path / "a.npz", scratch.path / "a.mgd");
  const auto refused = [&](const std::filesystem::path& target) {
    options.save_map = target;
    const std::string error = message_of([&] { convert(options); });
    CHECK_FALSE(std::filesystem::exists(options.output));
    return error;
  };
  CHECK(contains(refused(options.input), "a.npz] needed a new name or a map, got "));
  CHECK(read_text(options.input) == input);
  CHECK(contains(refused(scratch.path / "." / "a.mgd"), "a.mgd, which this command reads or writes, too"));
  CHECK(contains(refused(scratch.path / "none" / "a.map"), "none/a.map]"));
  options.dt = -1;
  CHECK(contains(refused(scratch.path / "a.map"), "a.npz: dt]"));
  CHECK_FALSE(std::filesystem::exists(options.save_map));
  options.dt = 0;
  for (int i = 0; i < 2; ++i) convert(options);
  CHECK(read_array_map(options.save_map).at("positions") == "points");
  options.output = scratch.path / "other.mgd";
  options.also_read = {options.save_map};
  CHECK(contains(refused(options.save_map), "which this command reads or writes, too"));
  options.also_read.clear();
  options.replace = false;
  CHECK(contains(refused(options.save_map), "a.map] needed a new name, got a map; fix: --force replaces it"));
  options.replace = true;

  std::ofstream(options.save_map) << '#';
  std::filesystem::resize_file(options.save_map, kLargestMapFile + 1);
  CHECK(contains(message_of([&] { read_array_map(options.save_map); }), "a.map] needed a map of at most"));
  CHECK(
      contains(refused(options.save_map), "a.map] needed a new name or a map, got a file that is not a map"));
  CHECK(std::filesystem::file_size(options.save_map) == kLargestMapFile + 1);
}

TEST_CASE("a map of very many arrays is applied in little time") {
  constexpr int kFields = 100'000;
  std::vector<NamedArray> arrays(kFields);
  ArrayMap map;
  for (int i = 0; i < kFields; ++i) {
    arrays[static_cast<size_t>(i)].name = fmt::format("array{}", i);
    map[fmt::format("field{}", i)] = fmt::format("array{}", i);
  }
  const std::clock_t start = std::clock();
  const std::vector<NamedArray> chosen = arrays_by_map(std::move(arrays), "a.npz", map, {});
  // Below 1 s without a sanitizer, and minutes if each field looks at all arrays.
  CHECK(std::clock() - start < 10 * CLOCKS_PER_SEC);
  REQUIRE(chosen.size() == kFields);
  CHECK(chosen.back().name == "field99999");
  CHECK(chosen.back().source == "array99999");
}

TEST_CASE("a field with a mesh name of a map stays a field") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square_arrays(3);
  arrays["positions"] = npy<float>("<f4", "(3, 4, 1)", test::counting(12));
  write_npz(scratch.path / "a.npz", arrays, false);
  ConvertOptions options = options_of_map(scratch.path / "a.npz", scratch.path / "a.mgd");
  options.map = convert(options).map;
  CHECK(options.map.at("positions") == "mesh_pos");
  CHECK(options.map.at("node:positions") == "positions");
  CHECK(convert(options).fields.front().name == "positions");
  arrays["graph:u"] = npy<float>("<f4", "(1,)", {1});
  write_npz(scratch.path / "a.npz", arrays, false);
  options.map.clear();
  CHECK(contains(message_of([&] { convert(options); }),
                 "a.npz: field u] needed a name that no other field has, got "));
}

TEST_CASE("node types come from tags of cells and of facets") {
  const ScratchDirectory scratch;
  NpzArrays arrays = square_arrays(3);
  arrays["tags"] = npy<int32_t>("<i4", "(2,)", {70, 5});
  arrays["sides"] = npy<int64_t>("<i8", "(2, 2)", {0, 1, 1, 2});
  arrays["ends"] = npy<int64_t>("<i8", "(2,)", {3, 0});
  const std::string file = write_npz(scratch.path / "a.npz", arrays, false);
  std::string warnings;
  const auto types = [&](const ArrayMap& map) {
    const RawTrajectory t = trajectory_of_npz(std::as_bytes(std::span(file)), "a.npz", {.map = map},
                                              [&](const std::string& text) { warnings += text; });
    validate(t);
    return t.node_type;
  };
  using Types = std::vector<int32_t>;
  CHECK(types({{"u", "u"}}) == Types{0, 0, 6, 6});
  CHECK(types({{"u", "u"}, {"types", "tags"}}) == Types{70, 70, 70, 5});
  CHECK(contains(warnings, "not used, since --map names others: ends, node_type, sides"));
  CHECK(types({{"u", "u"}, {"facets", "sides"}, {"types", "tags"}}) == Types{70, 70, 5, 0});
  CHECK(types({{"u", "u"}, {"facets", "ends"}, {"facet:types", "tags"}}) == Types{5, 0, 0, 70});
  CHECK(types({{"u", "u"}, {"facets", "sides"}, {"cell:types", "tags"}}) == Types{70, 70, 70, 5});
  const RawTrajectory cells =
      trajectory_of_npz(std::as_bytes(std::span(file)), "", {.map = {{"u", "u"}, {"cell:types", "tags"}}});
  CHECK(cells.cell_type == Types{70, 5});
  const auto error = [&](const ArrayMap& map) { return message_of([&] { types(map); }); };
  CHECK(contains(error({{"facet:types", "tags"}}),
                 "needed 4 node types (or 2 of cells, 0 of facets), got [2]"));
  CHECK(contains(error({{"facet:types", "tags"}, {"cell:types", "ends"}}), "needed one array of node types"));
  CHECK(contains(error({{"facets", "u"}, {"types", "tags"}, {"v", "ends"}}), "array facets"));
  CHECK(contains(error({{"types", "tag"}}), "the array tag, as --node-types or --map types=tag says"));
  CHECK(contains(error({{"types", "tags"}, {"u", "tags"}}), "each array and each name once in --map"));
  CHECK(contains(error({{"positions", "u"}, {"mesh_pos", "tags"}}), "got mesh_pos=tags and positions=u"));
  // One-hot types have as many numbers as there are facets.
  arrays["sides"] = npy<int64_t>("<i8", "(8,)", {0, 1, 1, 2, 2, 3, 3, 0});
  arrays["hot"] = npy<int32_t>("<i4", "(4, 2)", {1, 0, 1, 0, 0, 1, 0, 1});
  const std::string hot = write_npz(scratch.path / "a.npz", arrays, false);
  CHECK(contains(message_of([&] {
                   trajectory_of_npz(std::as_bytes(std::span(hot)), "a.npz",
                                     {.map = {{"facets", "sides"}, {"types", "hot"}}});
                 }),
                 "needed 4 node types (or 2 of cells, 8 of facets), got [4, 2]"));
  arrays["tags"] = npy<int32_t>("<i4", "(2,)", {5, -2});
  arrays["ends"] = npy<int64_t>("<i8", "(2,)", {3, 4});
  arrays["fine"] = npy<int32_t>("<i4", "(2,)", {5, 6});
  const std::string damaged = write_npz(scratch.path / "a.npz", arrays, false);
  const auto damaged_error = [&](const ArrayMap& map) {
    return message_of([&] { trajectory_of_npz(std::as_bytes(std::span(damaged)), "a.npz", {.map = map}); });
  };
  CHECK(contains(damaged_error({{"cell:types", "tags"}}),
                 "needed node types from 0 to 65535, got a negative number in row 1"));
  CHECK(contains(damaged_error({{"facets", "ends"}, {"types", "node_type"}, {"facet:types", "tags"}}),
                 "one array"));
  CHECK(contains(damaged_error({{"facets", "ends"}, {"facet:types", "fine"}}),
                 "array facets] needed nodes from 0 to 3, got 4 in row 1"));
  CHECK(contains(damaged_error({{"facets", "ends"}, {"facet:types", "sides"}}), "needed 4 node types"));
}

TEST_CASE("a map that names fields leaves the times of frames") {
  const ScratchDirectory scratch;
  for (const char* name : {"t", "time", "times"}) {
    NpzArrays arrays = renamed_square();
    arrays[name] = arrays["t"];
    if (std::string(name) != "t") arrays["t"] = npy<float>("<f4", "(4,)", {1, 2, 3, 4});  // on nodes
    write_npz(scratch.path / "a.npz", arrays, false);
    ConvertOptions options = options_of_map(scratch.path / "a.npz", scratch.path / "a.mgd");
    options.map = {{"velocity", "u"}};
    const ConvertReport report = convert(options);
    CHECK(report.dt == 0.5);
    CHECK(report.fields.size() == 1);
  }
}

TEST_CASE("--node-types names an array of NPZ files, too") {
  const ScratchDirectory scratch;
  NpzArrays arrays = renamed_square();
  arrays["bc"] = npy<int32_t>("<i4", "(4,)", {0, 3, 0, 3});
  write_npz(scratch.path / "a.npz", arrays, false);
  ConvertOptions options = options_of_map(scratch.path / "a.npz", scratch.path / "a.mgd");
  options.node_types = "bc";
  const ConvertReport report = convert(options);
  CHECK(report.node_types == std::vector<int64_t>{6, 0, 0, 6});
  CHECK(report.map.at("types") == "bc");
  CHECK(contains(report.warnings.at(1), "not used, since --map names others: node_type"));
  options.map["types"] = "node_type";
  CHECK(contains(message_of([&] { convert(options); }), "[node-types] needed one array of node types"));
}

TEST_CASE("lines of a map: comments, blanks, quotes, and what is none") {
  const ArrayMap map = parse_array_map(
      "\xef\xbb\xbf# a comment\r\n\n positions = mesh/xyz \r\n\"a=b\" = \" #\\\"\\n \"\nu=p=q#\n", "a.map");
  CHECK(map == ArrayMap{{"positions", "mesh/xyz"}, {"a=b", " #\"\n "}, {"u", "p=q#"}});
  CHECK(parse_array_map(array_map_text(map, "two\nlines"), "") == map);
  CHECK(array_map_text({{"u", "v"}}, "two\nlines") == "# two\n# lines\nu=v\n");
  const ArrayMap blanks{{" u", "v "}};
  CHECK(parse_array_map(array_map_text(blanks, ""), "") == blanks);
  CHECK(parse_array_map("", "").empty());
  for (const char* line : {"u", "=v", "u=", "\"u=v", "\"u\" v=w", "u=\"v\" w", "\"\"=v"}) {
    CAPTURE(line);
    CHECK(contains(message_of([&] { parse_array_map("# x\n" + std::string(line), "a.map"); }),
                   "[a.map: line 2] needed NAME=ARRAY"));
  }
  CHECK(contains(message_of([&] { parse_array_map("u=v\nu=w", "a.map"); }),
                 "[a.map: line 2] needed each name"));
}

TEST_CASE("HDF5: the first trajectory's map is for all") {
  const ScratchDirectory scratch;
  ConvertOptions options = options_of_map(test::data_file("hdf5/arrays.h5"), scratch.path / "a.mgd");
  options.save_map = scratch.path / "a.map";
  options.axes = {{"u", "frames,nodes"}};  // three frames, not three components
  try {
    convert(options);
  } catch (const DataError& error) {
    REQUIRE(contains(error.what(), "a build of meshgrad with HDF5"));
    return;
  }
  const ArrayMap map = parse_array_map(read_text(options.save_map), "");
  CHECK(map.at("positions") == "mesh/xyz");
  CHECK(map.at("cells") == "mesh/triangles");
  CHECK(map.at("u") == "u");
  options.input = test::data_file("two_meshes.h5");
  CHECK(contains(message_of([&] { convert(options); }), "[axes] needed arrays under names of their own"));
  options.axes = {};
  CHECK(contains(message_of([&] { convert(options); }), "[save-map] needed arrays under names of their own"));
  options.input = test::data_file("cylinder_flow_sample");
  CHECK(contains(message_of([&] { convert(options); }), "[save-map] needed NPZ or HDF5 files"));
}
