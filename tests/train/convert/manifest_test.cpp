// SPDX-License-Identifier: Apache-2.0
// What a conversion read, written, corrected and read again; and whether it has to be done again.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <nlohmann/json.hpp>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"
#include "train/vtu_file.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_arrays;
using meshgrad::test::write_npz;
using meshgrad::test::write_pvd;
using meshgrad::test::write_text;
using meshgrad::test::write_vtu;

namespace {

struct ReadAgain {
  ScratchDirectory scratch;
  ConvertOptions options;
  std::filesystem::path manifest = scratch.path / "kept/run.json";
  ReadAgain() {
    options.input = scratch.path / "in";
    options.output = scratch.path / "out.mgd";
    std::filesystem::create_directories(options.input);
    std::filesystem::create_directories(manifest.parent_path());
  }
  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(read_text(manifest)); }
  /// Converts the manifest in place of the input.
  Dataset again(const nlohmann::ordered_json& changed) {
    write_text(manifest, changed.dump(1));
    ConvertOptions from;
    from.input = manifest;
    from.output = scratch.path / "again.mgd";
    convert(from);
    return Dataset::open(from.output);
  }
};

std::vector<float> first_values(const Dataset& data, int64_t trajectory) {
  const TrajectoryView t = data.trajectory(trajectory);
  std::vector<float> values;
  for (int64_t i = 0; i < t.frames(); ++i) values.push_back(t.field("u").frame(i)[0]);
  return values;
}

/// Of all trajectories, with the number of their split.
std::vector<std::vector<float>> values_of(const Dataset& data) {
  std::vector<std::vector<float>> all;
  for (int64_t i = 0; i < data.trajectories(); ++i) all.push_back(first_values(data, i));
  for (const char* split : {"train", "valid", "test"})
    all.push_back({data.has_split(split) ? static_cast<float>(data.size(split)) : 0});
  return all;
}

}  // namespace

TEST_CASE("a manifest of VTK files is read, and what is corrected in it") {
  ReadAgain run;
  for (int i = 0; i < 4; ++i) write_vtu(run.options.input / fmt::format("a_{}.vtu", i), {.first = 10.0 * i});
  write_pvd(run.options.input / "a.pvd", {"a_0.vtu", "a_1.vtu", "a_2.vtu", "a_3.vtu"});
  run.options.split = {0.5, 0.5};
  run.options.units = {{"u", "K"}};
  const ConvertReport report = convert(run.options);
  REQUIRE(report.read.size() == 2);
  CHECK(report.read[1].split == "valid");
  CHECK(report.read[1].times == std::vector<double>{0.2, 0.1 * 3});
  CHECK(report.read[1].files.size() == 4);
  write_manifest(run.options, run.manifest);
  nlohmann::ordered_json json = run.json();
  CHECK(json["folder"] == "../in");
  CHECK(values_of(run.again(json)) == values_of(Dataset::open(run.options.output)));
  CHECK(Dataset::open(run.scratch.path / "again.mgd").field("u").unit == "K");
  std::swap(json["trajectories"][0]["files"][0], json["trajectories"][0]["files"][1]);
  json["trajectories"][1]["files"] = json["trajectories"][0]["files"];
  json["trajectories"][1]["split"] = "test";
  const Dataset corrected = run.again(json);
  CHECK(first_values(corrected, 0) == std::vector<float>{10, 0});
  CHECK(corrected.size("test") == 1);
  json["trajectories"][1]["split"] = "tset";
  CHECK(contains(message_of([&] { run.again(json); }),
                 "run.json: trajectory 1] needed the split train, valid or test, got \"tset\""));
  json["trajectories"][1].erase("split");
  CHECK(contains(message_of([&] { run.again(json); }),
                 "run.json] needed a manifest, as convert --manifest writes it"));
}

TEST_CASE("a manifest of array files leaves out what it does not list") {
  ReadAgain run;
  for (const char* name : {"a", "b", "c"})
    write_npz(run.options.input / fmt::format("{}.npz", name), square_arrays(5, static_cast<float>(name[0])),
              false);
  convert(run.options);
  write_manifest(run.options, run.manifest);
  nlohmann::ordered_json json = run.json();
  REQUIRE(json["trajectories"].size() == 3);
  CHECK(values_of(run.again(json)) == values_of(Dataset::open(run.options.output)));
  json["trajectories"].erase(1);
  json["trajectories"][0]["frames"] = 3;
  const Dataset some = run.again(json);
  CHECK(some.trajectories() == 2);
  CHECK(first_values(some, 0).size() == 3);
  json["trajectories"][0]["first_frame"] = 3;
  CHECK(
      contains(message_of([&] { run.again(json); }), "a.npz] needed 3 frames, as the manifest says, got 2"));
  ConvertOptions divided;
  divided.input = run.manifest;
  divided.output = run.scratch.path / "divided.mgd";
  divided.split = {1};
  CHECK(contains(message_of([&] { convert(divided); }), "[split] needed one way to divide the data"));
  json["trajectories"][0]["record"] = 1;
  CHECK(contains(message_of([&] { run.again(json); }), "a.npz] needed trajectory 1, as the manifest says"));
}

TEST_CASE("a manifest may be formatted, lie here, name other endings") {
  ReadAgain run;
  const std::filesystem::path named = run.options.input / "a.numbers",
                              before = std::filesystem::current_path();
  write_npz(named, square_arrays(5), false);
  run.options.input = named;
  run.options.format = "npz";
  convert(run.options);
  std::filesystem::current_path(named.parent_path());
  run.options.input = "a.numbers";
  run.options.output = "../out.mgd";
  write_manifest(run.options, "run.json");
  std::filesystem::current_path(before);
  write_text(run.options.input = named.parent_path() / "run.json",
             nlohmann::json::parse(read_text(named.parent_path() / "run.json")).dump(4));
  run.options.format = "auto";
  run.options.output = run.scratch.path / "again.mgd";
  CHECK(contains(message_of([&] { convert(run.options); }), "needed a name"));  // keys in another order
  const auto kept = nlohmann::ordered_json::parse(read_text(run.options.input));
  nlohmann::ordered_json first{{"meshgrad_manifest", kept["meshgrad_manifest"]}};
  first.update(kept);
  write_text(run.options.input, "\r\n" + first.dump(4));
  CHECK(convert(run.options).frames == 5);
}

TEST_CASE("a manifest replaces only a manifest, others by force") {
  ReadAgain run;
  write_npz(run.options.input / "a.npz", square_arrays(6), false);
  convert(run.options);
  write_manifest(run.options, run.manifest);
  run.options.replace = false;
  write_manifest(run.options, run.manifest);  // the same
  run.options.replace = true;
  run.options.split = {1};
  convert(run.options);
  const auto refused = [&] { return message_of([&] { write_manifest(run.options, run.manifest); }); };
  run.options.replace = false;
  CHECK(contains(refused(), "--force replaces it"));
  run.options.replace = true;
  ConvertOptions again = run.options;
  again.input = run.manifest;
  CHECK(contains(message_of([&] { write_manifest(again, run.manifest); }),
                 "which this command reads or writes, too"));
  write_manifest(run.options, run.manifest);
  write_text(run.manifest, "notes");
  CHECK(contains(refused(), "got a file that is not a manifest"));
}

TEST_CASE("the same input is up to date, another is not") {
  ReadAgain run;
  const std::filesystem::path file = run.options.input / "a.npz";
  write_npz(file, square_arrays(6), false);
  run.options.input = file;
  convert(run.options);
  CHECK(is_up_to_date(run.options));
  write_npz(file, square_arrays(6), false);  // the same again
  CHECK(is_up_to_date(run.options));
  ConvertOptions other = run.options;
  other.dt = 2;
  CHECK_FALSE(is_up_to_date(other));
  write_npz(file, square_arrays(6, 1), false);
  CHECK_FALSE(is_up_to_date(run.options));
  // Other times in a list count, too.
  const ReadAgain listed;
  for (int i = 0; i < 3; ++i)
    write_vtu(listed.options.input / fmt::format("a_{}.vtu", i), {.first = 10.0 * i});
  write_pvd(listed.options.input / "a.pvd", {"a_0.vtu", "a_1.vtu", "a_2.vtu"});
  convert(listed.options);
  CHECK(is_up_to_date(listed.options));
  const std::string times = read_text(listed.options.input / "a.pvd");
  write_text(listed.options.input / "a.pvd", times + " ");
  CHECK_FALSE(is_up_to_date(listed.options));
}
