// SPDX-License-Identifier: Apache-2.0
// Which split each file and trajectory goes to, and what dt they share.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/split_list.h>
#include <meshgrad/train/convert/split_names.h>
#include <meshgrad/train/data/dataset.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "train/deepmind_folder.h"
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

namespace fs = std::filesystem;

struct Folder {
  ScratchDirectory scratch;
  ConvertOptions options;
  float next = 0;

  Folder() {
    options.input = scratch.path / "data";
    options.output = scratch.path / "out.mgd";
    fs::create_directories(options.input);
  }
  void add(const std::string& name, double dt = 0) {
    fs::create_directories((options.input / name).parent_path());
    NpzArrays arrays = square_arrays(3, next);
    if (dt != 0) arrays["dt"] = npy<double>("<f8", "()", {dt});
    write_npz(options.input / name, arrays, false);
    next += 100;
  }
  std::string error() const {
    return message_of([&] { convert(options); });
  }
};

float first_value(const Dataset& data, const char* split, int64_t i = 0) {
  return data.trajectory(split, i).field("u").frame(0)[0];
}

}  // namespace

TEST_CASE("names say a split by a whole word") {
  for (const char* name : {"train", "training", "a_train", "A-Training", "train_3", "test_set_train"})
    CHECK(split_of_name(name) == "train");
  for (const char* name : {"valid", "val", "validation", "VALIDATION", "run.val", "val-07"})
    CHECK(split_of_name(name) == "valid");
  for (const char* name : {"test", "testing", "b_test", "testing 2"}) CHECK(split_of_name(name) == "test");
  for (const char* name : {"", "latest", "trainer", "run", "contest_1", "retrain", "my_train_set"})
    CHECK(split_of_name(name) == "");
  CHECK(is_split_folder("training"));
  CHECK(is_split_folder("Testing"));
  CHECK_FALSE(is_split_folder("a_train"));
}

TEST_CASE("training, validation and testing are names of splits") {
  Folder folder;
  SUBCASE("files") {
    for (const char* name : {"testing.npz", "training.npz", "validation.npz"}) folder.add(name);
  }
  SUBCASE("folders") {
    for (const char* name : {"testing/a.npz", "training/b.npz", "validation/c.npz"}) folder.add(name);
  }
  const ConvertReport report = convert(folder.options);
  const Dataset data = Dataset::open(folder.options.output);
  CHECK(first_value(data, "test") == 0);
  CHECK(first_value(data, "train") == 100);
  CHECK(first_value(data, "valid") == 200);
  CHECK(report.notes.empty());
  CHECK(report.warnings.empty());
}

TEST_CASE("names with and without a split are an error together") {
  Folder folder;
  for (const char* name : {"a_train.npz", "b_test.npz", "c.npz"}) folder.add(name);
  CHECK(contains(
      folder.error(),
      "data] needed a split in the name of every file, or of none, got c.npz -> ?, a_train.npz -> train, "
      "b_test.npz -> test; fix: name each file or its folder train, valid or test, or divide them all"));
  CHECK_FALSE(fs::exists(folder.options.output));
  folder.options.split = {0.4, 0.3, 0.3};
  const ConvertReport report = convert(folder.options);
  CHECK(report.notes.empty());
  CHECK(first_value(Dataset::open(folder.options.output), "test") == 200);
}

TEST_CASE("without names a note says which file went where") {
  Folder folder;
  for (int i = 0; i < 15; ++i) folder.add("run" + std::to_string(100 + i) + ".npz");
  const ConvertReport report = convert(folder.options);
  REQUIRE(report.notes.size() == 1);
  CHECK(contains(report.notes[0],
                 "data] no file names say the splits, so trajectories were divided in order; train: "
                 "run100.npz, run101.npz, "));
  CHECK(contains(report.notes[0],
                 "run109.npz and 1 more; valid: run111.npz, run112.npz; test: run113.npz, run114.npz; "
                 "--split changes it"));
}

TEST_CASE("records of one file are named by their numbers") {
  const ScratchDirectory scratch;
  test::write_meta(scratch.path, test::square_meta(3));
  std::vector<test::SquareRecord> records;
  for (int i = 0; i < 10; ++i) records.emplace_back(3, static_cast<float>(i + 1));
  test::write_bytes(scratch.path / "runs.tfrecord", test::tfrecord_of(records));
  ConvertOptions options;
  options.input = scratch.path;
  options.output = scratch.path / "out.mgd";
  const ConvertReport report = convert(options);
  REQUIRE(report.notes.size() == 1);
  CHECK(contains(
      report.notes[0],
      "; train: runs.tfrecord records 0 to 7; valid: runs.tfrecord records 8 to 8; test: runs.tfrecord "
      "records 9 to 9;"));
}

TEST_CASE("a path of a split list is that file only") {
  Folder folder;
  for (const char* name : {"a/e.npz", "b/e.npz", "e.npz"}) folder.add(name);
  folder.options.split_list = folder.scratch.path / "splits.txt";
  std::ofstream(folder.options.split_list) << "train: e.npz\nunused: a/e.npz, b/e.npz\n";
  convert(folder.options);
  CHECK(first_value(Dataset::open(folder.options.output), "train", 0) == 200);
}

TEST_CASE("a list says the split of each file") {
  Folder folder;
  for (const char* name : {"a b.npz", "b.npz", "more/c.npz", "more/d_test.npz", "train/e.npz"})
    folder.add(name);
  folder.options.split_list = folder.scratch.path / "splits.txt";
  std::ofstream(folder.options.split_list)
      << "# by hand\nvalidation: a b.npz , d_test.npz\r\n"
         "\ntrain: more/c.npz # a comment\ntrain: e.npz\nunused: b.npz\n";
  const ConvertReport report = convert(folder.options);
  const Dataset data = Dataset::open(folder.options.output);
  REQUIRE(data.splits().size() == 2);
  CHECK(data.splits()[0].name == "train");
  CHECK(data.splits()[0].count == 2);
  CHECK(data.splits()[1].count == 2);
  CHECK(first_value(data, "train", 0) == 200);
  CHECK(first_value(data, "train", 1) == 400);
  CHECK(first_value(data, "valid", 0) == 0);
  CHECK(first_value(data, "valid", 1) == 300);
  CHECK(report.trajectories == 4);
  CHECK(report.notes.empty());
  CHECK(report.warnings.empty());
}

TEST_CASE("a list says the split of each trajectory of a file") {
  const ScratchDirectory scratch;
  test::write_meta(scratch.path, test::square_meta(3));
  std::vector<test::SquareRecord> records;
  for (int i = 0; i < 5; ++i) records.emplace_back(3, static_cast<float>(i + 1));
  test::write_bytes(scratch.path / "runs.tfrecord", test::tfrecord_of(records));
  ConvertOptions options;
  options.input = scratch.path / "runs.tfrecord";
  options.output = scratch.path / "out.mgd";
  options.split_list = scratch.path / "splits.txt";
  std::ofstream(options.split_list) << "test: runs.tfrecord:1-2\ntrain: runs.tfrecord:4,runs.tfrecord:0\n"
                                       "unused: runs.tfrecord:3";
  convert(options);
  const Dataset data = Dataset::open(options.output);
  const auto scale = [&](const char* split, int64_t i) {
    return data.trajectory(split, i).field("velocity").frame(0)[1] / records[0].velocity[1];
  };
  REQUIRE(data.splits().size() == 2);
  CHECK(data.splits()[0].count == 2);
  CHECK(data.splits()[1].count == 2);
  CHECK(scale("train", 0) == doctest::Approx(1));
  CHECK(scale("train", 1) == doctest::Approx(5));
  CHECK(scale("test", 0) == doctest::Approx(2));
  CHECK(scale("test", 1) == doctest::Approx(3));
}

TEST_CASE("one error lists all that is wrong with the names of a list") {
  Folder folder;
  for (const char* name : {"a.npz", "b.npz", "c.npz", "x/e.npz", "y/e.npz"}) folder.add(name);
  folder.options.split_list = folder.scratch.path / "splits.txt";
  const auto error = [&](const char* text) {
    std::ofstream(folder.options.split_list) << text;
    return folder.error();
  };
  CHECK(contains(
      error("train: a.npz, d.npz, a.npz:1, b.npz:0-, c.npz:0-0\ntest: a.npz, e.npz, y/e.npz"),
      "splits.txt] needed each trajectory of the data in one split, got \"d.npz\" (line 1), which is "
      "no data here, \"a.npz:1\" (line 1), which is no data here, \"b.npz:0-\" (line 1), which is no "
      "data here, a.npz in train and again in test (line 2), \"e.npz\" (line 2), which is no data "
      "here, b.npz in no split, x/e.npz in no split; fix: correct the names"));
  CHECK(contains(error("unused: a.npz, b.npz, c.npz, x/e.npz, y/e.npz"), "got nothing that is used; fix: "));
  CHECK(contains(error("train: a.npz\ntets: b.npz"),
                 "splits.txt: line 2] needed SPLIT: NAME, NAME, ..., got \"tets: b.npz\"; fix: begin each "
                 "line with train:, valid:, test: or unused:"));
  CHECK(contains(error("train a.npz"), "line 1] needed SPLIT: NAME"));
  CHECK(contains(error("train: a.npz\ntest: \"b.npz"), "line 2] needed a name in double quotes"));
  CHECK(contains(error("test: \"a.npz\":0"), "line 1] needed a name in double quotes"));
  CHECK_FALSE(fs::exists(folder.options.output));
  folder.options.split = {0.5, 0.5};
  CHECK(contains(error("train: a.npz"), "[split-list] needed one way to divide the data"));
}

TEST_CASE("a trajectory that stands still among some that move") {
  Folder folder;
  folder.options.split = {1.0};
  const auto add = [&](const char* name, double shift) {
    NpzArrays arrays = square_arrays(2, 0);
    if (shift != 0)
      arrays["mesh_pos"] = npy<float>(
          "<f4", "(2, 4, 2)", {0, 0, 1, 0, 1, 1, 0, 1, static_cast<float>(shift), 0, 1, 0, 1, 1, 0, 1});
    write_npz(folder.options.input / name, arrays, false);
  };
  add("a.npz", 0.25);
  add("b.npz", 0);
  const ConvertReport report = convert(folder.options);
  CHECK(report.trajectories == 2);
  const Dataset data = Dataset::open(folder.options.output);
  for (int64_t i = 0; i < 2; ++i) {
    const FieldView field = data.trajectory(i).field("world_pos");
    CHECK(field.frame(1)[0] == (i == 0 ? 0.25F : 0.0F));
    CHECK(field.frame(1)[2] == 1.0F);
  }
  add("0.npz", 0);
  CHECK(contains(folder.error(), "the first trajectory has to move: put its file first by name"));
  fs::remove(folder.options.input / "0.npz");
  NpzArrays other = square_arrays(2, 0);
  other["v"] = other["u"];
  write_npz(folder.options.input / "c.npz", other, false);
  CHECK(contains(folder.error(), "fix: convert trajectories of one kind together"));
}

TEST_CASE("split lists take a byte order mark and quoted names") {
  Folder folder;
  for (const char* name : {"a,1.npz", "b#2.npz", "c.npz"}) folder.add(name);
  folder.options.split_list = folder.scratch.path / "splits.txt";
  std::ofstream(folder.options.split_list) << "\xef\xbb\xbftrain: \"a,1.npz\" , \"b#2.npz:0\",  # a comment, "
                                              "\"with all\"\r\n# more\ntest: c.npz# the last\n";
  const ConvertReport report = convert(folder.options);
  REQUIRE(report.splits.size() == 2);
  CHECK(report.splits[0].count == 2);
  CHECK(report.splits[1].name == "test");
}

TEST_CASE("a list of many names takes time by their number") {
  std::vector<ListableFile> files;
  const ScratchDirectory scratch;
  std::ofstream list(scratch.path / "splits.txt");
  constexpr int kFiles = 20'000;  // 4e8 comparisons if each name were compared with each file
  for (int i = 0; i < kFiles; ++i) {
    files.push_back({fmt::format("runs/case_{}.npz", i), 1});
    list << (i % 10 == 0 ? "test" : "train") << ": case_" << i << ".npz\n";
  }
  list.close();
  const std::vector<std::string> splits = splits_of_list(scratch.path / "splits.txt", files);
  REQUIRE(splits.size() == kFiles);
  CHECK(splits[10] == "test");
  CHECK(splits[kFiles - 1] == "train");
}

TEST_CASE("of a list with very many faults some are kept") {
  const ListableFile file{"a.npz", 1'000'000};
  const auto twice = [&] {
    parse_split_list("train: a.npz\ntest: a.npz\nvalid: a.npz, b.npz\n", "l", {file});
  };
  CHECK(contains(message_of(twice), "a.npz:0 in train and again in test (line 2), "));
  CHECK(contains(message_of(twice), " and 990 more"));
}

TEST_CASE("a folder with data that is no split's is named") {
  Folder folder;
  for (const char* name : {"train/a.npz", "test/b.npz", "more/c.npz"}) folder.add(name);
  fs::create_directories(folder.options.input / "pictures");
  const ConvertReport report = convert(folder.options);
  REQUIRE(report.warnings.size() == 1);
  CHECK(contains(report.warnings[0], "more] this folder was not read"));
}

TEST_CASE("a folder with one split has that split only") {
  Folder folder;
  SUBCASE("file") { folder.add("test.npz"); }
  SUBCASE("folder") { folder.add("test/a.npz"); }
  convert(folder.options);
  const Dataset data = Dataset::open(folder.options.output);
  REQUIRE(data.splits().size() == 1);
  CHECK(data.splits()[0].name == "test");
  CHECK(data.trajectory("test", 0).frames() == 3);
  folder.options.split_by = SplitBy::time;
  convert(folder.options);
  CHECK(Dataset::open(folder.options.output).splits().size() > 1);
}

TEST_CASE("extensions count in any case, and hidden files do not") {
  Folder folder;
  for (const char* name : {"train.NPZ", "test.Npz", ".valid.npz", "._train.npz", ".train/a.npz"})
    folder.add(name);
  CHECK(convert(folder.options).trajectories == 2);
}

TEST_CASE("all trajectories of a file have one dt") {
  Folder folder;
  SUBCASE("another") {
    folder.add("a.npz", 0.1);
    folder.add("b.npz", 0.2);
    CHECK(contains(folder.error(), "b.npz] needed dt = 0.1, as "));
    CHECK(contains(folder.error(), "a.npz has, got dt = 0.2; fix: convert data of one dt together"));
  }
  SUBCASE("none") {
    folder.add("a.npz", 0.1);
    folder.add("b.npz");
    CHECK(contains(folder.error(), "a.npz has, got no dt;"));
    folder.options.dt = 0.5;
    CHECK(folder.error() == "");
    CHECK(Dataset::open(folder.options.output).dt() == 0.5);
  }
}

TEST_CASE("a dt that is not positive is refused") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double dt : {std::nan(""), inf, -inf, -0.5, -0.0}) {
    CAPTURE(dt);
    Folder folder;
    folder.add("a.npz", 0.1);
    convert(folder.options);
    NpzArrays arrays = square_arrays(3);
    arrays["dt"] = npy<double>("<f8", "(1,)", {dt});
    write_npz(folder.options.input / "a.npz", arrays, false);
    CHECK(contains(folder.error(),
                   "a.npz: array dt] needed a positive number of seconds between frames, got "));
    CHECK(Dataset::open(folder.options.output).dt() == 0.1);
  }
}

TEST_CASE("an option that does not apply is an error") {
  Folder folder;
  folder.add("a.npz");
  folder.options.fields = {"a", "b"};
  CHECK(contains(folder.error(),
                 "[fields] needed an HDF5 input, whose rows they name, got npz; fix: leave --fields out"));
  folder.options.fields.clear();
  folder.options.series = "{frame}";
  CHECK(contains(folder.error(),
                 "[series] needed files of VTK or groups of HDF5, whose names it describes, got npz"));
  folder.options.series.clear();
  folder.options.units = {{"uu", "K"}};
  CHECK(contains(folder.error(), "[unit] needed a field that exists, got \"uu\"; fix: "));
}

TEST_CASE("a single array file says how to save the data") {
  const ScratchDirectory scratch;
  const std::string array = npy<float>("<f4", "(2,)", {1, 2});
  test::write_bytes(scratch.path / "u.npy", std::as_bytes(std::span(array)));
  ConvertOptions options;
  options.input = scratch.path / "u.npy";
  options.output = scratch.path / "out.mgd";
  CHECK(contains(message_of([&] { convert(options); }),
                 "got \".npy\"; fix: save mesh_pos, cells and the fields together"));
}
