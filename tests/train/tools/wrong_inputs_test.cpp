// SPDX-License-Identifier: Apache-2.0
// What newcomers get wrong, and the exact words that they get: the place, what was found, its cause, and a
// fix that works where one is given. DIR stands for the folder of the data.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/vtu_file.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::Outcome;
using meshgrad::test::run_meshgrad;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::VtuFile;

namespace {

namespace fs = std::filesystem;

constexpr const char* kBc =
    "<DataArray type=\"Int32\" Name=\"bc\">1 0 0 2 1 0 0 2</DataArray><DataArray type=\"Float64\" "
    "Name=\"U\">1 2 3 4 5 6 7 8.5</DataArray>";

VtuFile frame(int number) {
  return {.columns = 4, .first = 300.0 + 0.5 * number * number + number, .more = kBc};
}

std::string name_of_frame(int number) { return fmt::format("heat_{:04}.vtu", number); }

/// A list of six frames; `spoil` changes some of the files.
void write_series(const fs::path& folder, const std::vector<double>& times = {0, 0.1, 0.2, 0.3, 0.4, 0.5}) {
  std::string entries;
  for (int i = 0; i < 6; ++i) {
    write_vtu(folder / name_of_frame(i), frame(i));
    entries += fmt::format("<DataSet timestep=\"{}\" file=\"{}\"/>", times[static_cast<size_t>(i)],
                           name_of_frame(i));
  }
  test::write_text(folder / "heat.pvd",
                   "<VTKFile type=\"Collection\"><Collection>" + entries + "</Collection></VTKFile>");
}

struct Row {
  std::string words;  ///< DIR is the folder
  int code;
  std::string message;     ///< all of stderr, after "meshgrad: error: "
  std::string fixed = {};  ///< the command with the fix, which then ends well; empty: not a command
};

std::string with_folder(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

Outcome run_words(const std::string& words, const fs::path& folder) {
  std::vector<std::string> all;
  std::string word;
  for (const char c : with_folder(words, "DIR", folder.string()) + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      all.push_back(std::exchange(word, {}));
    }
  }
  all.emplace_back("--quiet");
  return run_meshgrad(std::move(all));
}

void check_rows(const std::vector<Row>& rows, const fs::path& folder) {
  for (const Row& row : rows) {
    CAPTURE(row.words);
    const Outcome outcome = run_words(row.words, folder);
    const std::string said = with_folder(outcome.err, folder.string(), "DIR");
    CHECK(outcome.code == row.code);
    CHECK(said == "meshgrad: error: " + row.message + "\n");
    if (row.fixed.empty()) continue;
    const Outcome fixed = run_words(row.fixed, folder);
    CAPTURE(fixed.err);
    CHECK(fixed.code == 0);
  }
}

/// One series for each thing that may be wrong with its frames.
void write_wrong_frames(const fs::path& folder) {
  for (const char* name : {"nan", "mesh", "order", "moved", "cut", "missing", "lack"})
    write_series(folder / name);
  VtuFile bad = frame(3);
  bad.more = std::string("<DataArray type=\"Float64\" Name=\"T\">1 2 3 4 5 6 7 nan</DataArray>") + kBc;
  for (int i = 0; i < 6; ++i) {
    VtuFile good = frame(i);
    good.more = std::string("<DataArray type=\"Float64\" Name=\"T\">1 2 3 4 5 6 7 8</DataArray>") + kBc;
    for (const char* name : {"nan", "lack"}) write_vtu(folder / name / name_of_frame(i), good);
  }
  write_vtu(folder / "nan" / name_of_frame(3), bad);
  write_vtu(folder / "lack" / name_of_frame(3), frame(3));
  VtuFile other = frame(3);
  other.columns = 5;
  other.more =
      "<DataArray type=\"Int32\" Name=\"bc\">1 0 0 0 2 1 0 0 0 2</DataArray><DataArray type=\"Float64\" "
      "Name=\"U\">1 2 3 4 5 6 7 8 9 9.5</DataArray>";
  write_vtu(folder / "mesh" / name_of_frame(3), other);
  const auto swap = [&](const fs::path& file, const std::string& a, const std::string& b) {
    std::string text = test::read_text(file);
    const size_t at = text.find(a + " " + b);
    REQUIRE(at != text.npos);
    test::write_text(file, text.replace(at, a.size() + b.size() + 1, b + " " + a));
  };
  // Two nodes change places: their cells with them, or not.
  swap(folder / "moved" / name_of_frame(3), "0 0 0", "1 0 0");
  swap(folder / "order" / name_of_frame(3), "0 0 0", "1 0 0");
  std::string text = test::read_text(folder / "order" / name_of_frame(3));
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"connectivity\">0 1 4 1 5 4 1 2 5",
                                                                     "\"connectivity\">1 0 4 0 5 4 0 2 5"}})
    if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  test::write_text(folder / "order" / name_of_frame(3), text);
  text = test::read_text(folder / "cut" / name_of_frame(2));
  test::write_text(folder / "cut" / name_of_frame(2), text.substr(0, text.size() / 2));
  fs::remove(folder / "missing" / name_of_frame(4));
}

/// Lists and formats that are wrong, and runs that are well.
void write_wrong_lists(const fs::path& folder) {
  fs::create_directories(folder / "empty");
  test::write_text(folder / "txt" / "a.txt", "x");
  test::write_text(folder / "gmsh" / "a.msh", "$MeshFormat");
  write_series(folder / "uneven", {0, 0.1, 0.2, 0.33, 0.4, 0.5});
  write_series(folder / "dt" / "a", {0, 0.04, 0.08, 0.12, 0.16, 0.2});
  write_series(folder / "dt" / "b", {0, 0.05, 0.1, 0.15, 0.2, 0.25});
  test::write_text(folder / "x.xdmf",
                   "<Xdmf Version=\"3.0\"><Domain><Grid Name=\"m\" GridType=\"Uniform\"><Topology "
                   "TopologyType=\"Triangle\" NumberOfElements=\"1\"><DataItem Dimensions=\"1 3\" "
                   "Format=\"HDF\">x.h5:/c</DataItem></Topology><Geometry GeometryType=\"XY\"><DataItem "
                   "Dimensions=\"3 2\" Format=\"HDF\">x.h5:/p</DataItem></Geometry></Grid></Domain></Xdmf>");
  for (int i = 0; i < 3; ++i) write_series(folder / "heat" / fmt::format("run_{}", i));
  test::write_text(folder / "taken.mgd", "mine");
}

}  // namespace

TEST_CASE("wrong files say what is wrong, why, and what to do") {
  const ScratchDirectory scratch;
  const fs::path& folder = scratch.path;
  write_wrong_frames(folder);
  write_wrong_lists(folder);
  const std::string endings =
      ".tfrecord, .tfrecords, .npz, .h5, .hdf5, .vtu, .vtp, .vtk, .vtm, .pvtu, .pvtp, .vtpd, .pvd, .series, "
      ".xdmf "
      "or .xmf";
  check_rows(
      {
          {"convert DIR/nothere -o DIR/a.mgd", 1,
           "[DIR/nothere] needed a folder or a file, got a missing path; fix: check the path"},
          {"convert DIR/empty -o DIR/a.mgd", 1,
           "[DIR/empty] needed files ending in " + endings +
               ", got none; fix: name the folder that holds the data"},
          {"convert DIR/txt -o DIR/a.mgd", 1,
           "[DIR/txt] needed files ending in " + endings +
               ", got none; fix: name the folder that holds the data"},
          {"convert DIR/gmsh -o DIR/a.mgd", 1,
           "[DIR/gmsh] needed files ending in " + endings +
               ", got a.msh; fix: scripts/to-vtu DIR/gmsh/a.msh -o vtu makes files of VTK of it, then "
               "meshgrad "
               "convert vtu"},
          {"convert DIR/gmsh/a.msh -o DIR/a.mgd", 1,
           "[DIR/gmsh/a.msh] needed a name ending in " + endings +
               ", got \".msh\"; fix: scripts/to-vtu DIR/gmsh/a.msh -o vtu makes files of VTK of it, then "
               "meshgrad "
               "convert vtu"},
          {"convert DIR/nan -o DIR/a.mgd", 1,
           "[DIR/nan/heat_0003.vtu: field T] needed finite numbers, got nan at frame 3, node 7; fix: leave "
           "out this "
           "trajectory, or the frames from there on; the simulation may have diverged"},
          {"convert DIR/order -o DIR/a.mgd", 1,
           "[DIR/order/heat_0003.vtu] needed the nodes in the order of the frame before, got a permutation "
           "that begins at node 0; fix: write all frames with one order of nodes"},
          {"convert DIR/moved -o DIR/a.mgd", 1,
           "[DIR/moved/heat_0003.vtu] needed the nodes in the order of the frame before, got a permutation "
           "that begins at node 0; fix: write all frames with one order of nodes"},
          {"convert DIR/cut -o DIR/a.mgd", 1,
           "[DIR/cut/heat_0002.vtu] needed XML of VTK, got Error parsing start element tag at line 1; fix: "
           "copy the "
           "file "
           "again, or write it with VTK or meshio"},
          {"convert DIR/missing -o DIR/a.mgd", 1,
           "[DIR/missing/heat.pvd] needed the files that it lists, got no heat_0004.vtu; fix: copy the "
           "missing files "
           "beside the others, or take their lines out of the list"},
          {"convert DIR/x.xdmf -o DIR/a.mgd", 1,
           "[DIR/x.xdmf] needed the files that it names, got no x.h5; fix: copy the missing files beside it"},
          {"convert DIR/dt -o DIR/a.mgd", 1,
           "[DIR/dt/b/heat_0000.vtu] needed dt = 0.04, as DIR/dt/a/heat_0000.vtu has, got dt = 0.05; fix: "
           "convert "
           "data of one dt together; --dt S sets it for all",
           "convert DIR/dt -o DIR/dt.mgd --dt 0.04"},
          {"convert DIR/lack -o DIR/a.mgd", 1,
           "[DIR/lack/heat_0003.vtu: array T] needed doubles, 1 component, as in the first frame, got none; "
           "fix: save "
           "the same arrays in every frame"},
      },
      folder);
}

TEST_CASE("doubtful frames are warned of, with a fix") {
  const ScratchDirectory scratch;
  const fs::path& folder = scratch.path;
  write_wrong_frames(folder);
  write_wrong_lists(folder);
  const auto warns = [&](const std::string& words, const std::string& part) {
    CAPTURE(part);
    const Outcome outcome = run_meshgrad(
        {"convert", (folder / words).string(), "-o", (folder / (words + ".mgd")).string(), "--split", "1"});
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.err, part));
  };
  warns("mesh",
        "heat_0003.vtu] the mesh is another one than that of the frame before: frame 3 begins a new "
        "trajectory; fix: where all frames have one mesh, this file is another run's");
  warns("uneven",
        "times are not evenly spaced (0.07 to 0.13 s apart) and were left out: dt is unknown, and a model "
        "learns "
        "these steps as one; fix: write frames at equal distances of time, or say --dt S where the times are "
        "wrong");
  const Outcome fixed = run_meshgrad({"convert", (folder / "uneven").string(), "-o",
                                      (folder / "fixed.mgd").string(), "--split", "1", "--dt", "0.1"});
  CHECK(fixed.code == 0);
  CHECK_FALSE(contains(fixed.err, "evenly spaced"));
}

TEST_CASE("wrong options of a conversion say the right ones") {
  const ScratchDirectory scratch;
  const fs::path& folder = scratch.path;
  write_wrong_lists(folder);
  check_rows(
      {
          {"convert DIR/heat -o DIR/a.mgd --node-types bcs", 1,
           "[DIR/heat/run_0/heat_0000.vtu] needed the array bcs, as --node-types says, got u, bc, U; fix: "
           "name one of "
           "its arrays",
           "convert DIR/heat -o DIR/heat.mgd --node-types bc"},
          {"convert DIR/heat -o DIR/a.mgd --node-types U", 1,
           "[DIR/heat/run_0/heat_0000.vtu: array U] needed node types: one integer from 0 to 65535 for each "
           "row, got 8.5; fix: name another array: --node-types NAME"},
          {"convert DIR/heat -o DIR/a.mgd --node-types u", 1,
           "[DIR/heat/run_0/heat_0001.vtu: array u] needed the node types of DIR/heat/run_0/heat_0000.vtu, "
           "which hold for all frames, got 301.5 at node 0; fix: name an array that does not change: "
           "--node-types NAME"},
          {"check DIR/heat --node-types bc", 2,
           "[check] needed an option that exists, got --node-types; fix: meshgrad convert DIR/heat -o "
           "heat.mgd "
           "--node-types bc, then name heat.mgd",
           "check DIR/heat.mgd"},
          {"convert DIR/heat -o DIR/a.mgd --split 80,10,10", 2,
           "[split] needed 1 to 3 fractions (train, valid, test) that add up to 1, the first above 0, got "
           "80,10,10; "
           "fix: for example 0.8,0.1,0.1",
           "convert DIR/heat -o DIR/split.mgd --split 0.8,0.1,0.1"},
          {"convert DIR/heat -o DIR/a.mgd --unit Temp=K", 2,
           "[unit] needed a field that exists, got \"Temp\"; fix: use one of: U, bc, u",
           "convert DIR/heat -o DIR/unit.mgd --unit u=K"},
          {"convert DIR/heat -o DIR/a.mgd --dt 0", 2,
           "[--dt] needed a positive number of seconds, got 0; fix: say the seconds between frames, or leave "
           "it out where the files say them",
           "convert DIR/heat -o DIR/dt0.mgd"},
          {"convert DIR/heat -o DIR/heat.mgd", 1,
           "[-o DIR/heat.mgd] needed a new name, got a packed file; fix: --force replaces it"},
          {"convert DIR/heat -o DIR/taken.mgd --force", 1,
           "[-o DIR/taken.mgd] needed a new name or a packed file, got a file that is not a packed file; "
           "fix: choose another name for the output, such as one that ends in .mgd"},
      },
      folder);
}

TEST_CASE("wrong arrays say what each axis is") {
  const ScratchDirectory scratch;
  const fs::path& folder = scratch.path;
  test::NpzArrays arrays = test::square_arrays(6);
  arrays["u"] = test::npy<float>("<f4", "(4, 6, 1)", test::counting(24));
  test::write_npz(folder / "axes.npz", arrays, false);
  arrays = test::square_arrays(6);
  arrays["cells"] = test::npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 0, 2, 9});
  test::write_npz(folder / "cells.npz", arrays, false);
  arrays = test::square_arrays(6);
  arrays["u"] = test::npy<float>("<f4", "(6, 3, 1)", test::counting(18));
  test::write_npz(folder / "nodes.npz", arrays, false);
  check_rows(
      {
          {"convert DIR/axes.npz -o DIR/a.mgd", 1,
           "[DIR/axes.npz: array u] needed [frames, nodes, components] with 4 nodes, got [4, 6, 1]; fix: "
           "move the axis of frames to the front"},
          {"convert DIR/cells.npz -o DIR/a.mgd", 1,
           "[DIR/cells.npz: field cells] needed node numbers in 0..3, got 9 in cell 1; fix: node numbers "
           "count from 0 and must be below the number of positions"},
          {"convert DIR/nodes.npz -o DIR/a.mgd", 1,
           "[DIR/nodes.npz: array u] needed [frames, nodes, components] with 4 nodes, got [6, 3, 1]; fix: "
           "save the array in that shape"},
      },
      folder);
}

namespace {

/// A run of two steps, its configuration and its data.
struct SmallRun {
  ScratchDirectory scratch;
  const fs::path& folder = scratch.path;
  const std::string few =
      "--set train.steps=2 --set train.validate_every=2 --set train.checkpoint_every=2 --set model.width=8 ";
  const std::string train = "train DIR/c.toml --set run.dir=DIR/other ";
  const std::string resume = "train DIR/c.toml --resume --set run.dir=DIR/run " + few;
  SmallRun() {
    for (int i = 0; i < 4; ++i) write_series(folder / "heat" / fmt::format("run_{}", i));
    REQUIRE(run_words("convert DIR/heat -o DIR/heat.mgd --node-types bc", folder).code == 0);
    REQUIRE(run_words("init --data DIR/heat.mgd -o DIR/c.toml", folder).code == 0);
    REQUIRE(run_words("train DIR/c.toml --set run.dir=DIR/run " + few, folder).code == 0);
    test::write_text(folder / "bad.toml", "[trian]\nsteps = 3\n");
    test::write_text(folder / "twice.toml", "[train]\nsteps = 3\nsteps = 4\n");
    test::write_text(folder / "text.toml", "[train]\nsteps = \"3\"\n");
    test::write_text(folder / "nometa" / "train.tfrecord", "x");
  }
};

}  // namespace

TEST_CASE("wrong commands and configurations say the right ones") {
  const SmallRun run;
  const std::string& train = run.train;
  check_rows(
      {
          {"evalute DIR/run", 2,
           "[command] needed "
           "convert|check|init|train|evaluate|rollout|predict|verify|config|info|memory|plan|report|"
           "export|import|doctor, got \"evalute\"; fix: did you mean \"evaluate\"?",
           "evaluate DIR/run"},
          {"train DIR/bad.toml", 2,
           "DIR/bad.toml:1: [trian] needed a known section, got \"trian\"; fix: did you mean [train]?"},
          {train + "--set train.step=4", 2,
           "--set \"train.step=4\": [train.step] needed a known key, got \"train.step\"; fix: did you mean "
           "train.steps?"},
          {train + "--set precision=fp16", 2,
           "--set \"precision=fp16\": [precision] needed f32|f64|f16|bf16, got \"fp16\"; fix: did you mean "
           "\"f16\"?"},
          {train + "--set optimizer.learning_rate=1", 2,
           "--set \"optimizer.learning_rate=1\": [optimizer.learning_rate] needed a known key, got "
           "\"optimizer.learning_rate\"; fix: did you mean optimizer.lr?",
           "check DIR/c.toml --set optimizer.lr=1e-3"},
          {"train DIR/heat.mgd", 2,
           "[DIR/heat.mgd] needed a configuration, which is TOML, got a packed file of data; fix: meshgrad "
           "init --data "
           "DIR/heat.mgd -o heat.toml, then name heat.toml",
           "init --data DIR/heat.mgd -o DIR/heat.toml"},
          {"train DIR/absent.mgd", 2,
           "[DIR/absent.mgd] needed a configuration, which is TOML, got the name of a packed file, which is "
           "not there; "
           "fix: check the path, and name a configuration: meshgrad init makes one of a packed file"},
          {train + "--set train.batch 4", 2,
           "[train] needed no further argument, got \"4\"; fix: write --set train.batch=4",
           "check DIR/c.toml --set train.batch=4"},
          {train + "--epochs 10", 2,
           "[train] needed an option that exists, got --epochs; fix: --set train.epochs=10"},
          {train + "--lr 1e-3", 2,
           "[train] needed an option that exists, got --lr; fix: --set optimizer.lr=1e-3"},
          {"check DIR/c.toml --set data.targets=[\"Temp\"]", 2,
           "[DIR/heat.mgd] needed a field that exists, got \"Temp\"; fix: use one of: U, u"},
          {"check DIR/c.toml --set data.inputs=[\"P\"]", 2,
           "[DIR/heat.mgd] needed a field that exists, got \"P\"; fix: did you mean \"U\"? It has: U, u"},
          {"check DIR/c.toml --set data.node_types=2", 2,
           "DIR/c.toml:18: [data.predicted_types] needed node types below data.node_types = 2, "
           "got 2; fix: raise "
           "data.node_types "
           "or remove that type"},
      },
      run.folder);
  const auto finds = [&](const std::string& words, const std::string& part) {
    CAPTURE(part);
    const std::string said = run_words(words, run.folder).out;
    std::string text;  // without the breaks of lines
    for (const char c : said)
      if (c != '\n' && !(c == ' ' && text.ends_with(' '))) text += c;
    CAPTURE(text);
    CHECK(contains(text, part));
  };
  finds("check DIR/c.toml --set data.predicted_types=[7]",
        "fix set data.predicted_types; the data has 0, 1 and 2");
  finds("check DIR/c.toml --set train.noise=500", "times the standard deviation of u's change over a frame");
  finds("check DIR/c.toml --set train.batch=200", "to train on: each step takes a sample");
  finds(train + run.few + "--set optimizer.lr=10", "; lower optimizer.lr");
}

TEST_CASE("wrong words about a run say the right ones") {
  const SmallRun run;
  const std::string &train = run.train, &resume = run.resume, &few = run.few;
  check_rows(
      {
          {resume + "--set model.width=16", 2,
           "[model.width] needed 8, with which DIR/run/checkpoints/last.safetensors was trained, got 16; "
           "fix: use the "
           "run's config.resolved.toml, or start a new run with another run.dir"},
          {resume + "--set precision=bf16", 2,
           "[precision] needed \"f32\", with which DIR/run/checkpoints/last.safetensors was trained, got "
           "\"bf16\"; fix: "
           "use the run's config.resolved.toml, or start a new run with another run.dir"},
          {resume + "--set data.node_types=10", 2,
           "[data.node_types] needed 9, with which DIR/run/checkpoints/last.safetensors was trained, got 10; "
           "fix: use "
           "the run's config.resolved.toml, or start a new run with another run.dir"},
          {train + few + "--set train.init=DIR/run --set model.width=16", 1,
           "DIR/run/checkpoints/best.safetensors is a checkpoint of another model: [parameter "
           "node_encoder.linear_0.weight] needed shape [16, 11], got [8, 11]; fix: use a file made for a "
           "model of the "
           "same width, blocks and layers"},
          {"evaluate DIR/c.toml", 2,
           "[DIR/c.toml] needed a run with checkpoints/last.safetensors, got a file; fix: name the folder "
           "that meshgrad "
           "train wrote: run.dir of its configuration",
           "evaluate DIR/run"},
          {"predict DIR/run", 2,
           "[task.name] needed \"steady_field\": predict is for fields without time, got \"mesh_dynamics\"; "
           "fix: use "
           "meshgrad rollout",
           "rollout DIR/run -o DIR/out"},
          {"rollout DIR/run --steps 1000", 2,
           "[--steps] needed at most 5, the steps of trajectory 0 in the data, got 1000; fix: add "
           "--beyond-data, which "
           "holds the boundary values from there on",
           "rollout DIR/run --steps 20 --beyond-data -o DIR/out"},
          {"rollout DIR/run --trajectory 9", 2,
           "[--trajectory] needed 0 to 0 in split test, got 9; fix: choose one that exists"},
          {"rollout DIR/run --split prod", 2,
           "[DIR/heat.mgd] needed a split that exists, got \"prod\"; fix: use one of: train, valid, test",
           "rollout DIR/run --split valid -o DIR/out"},
          {"plan DIR/c.toml --device-memory 16G", 2,
           "[--device-memory] needed a size with a unit: GiB of 2^30 bytes, GB of 10^9, MiB or MB, got "
           "\"16G\"; fix: "
           "write --device-memory 16GiB",
           "plan DIR/c.toml --device-memory 16GiB"},
          {"convert DIR/nometa -o DIR/n.mgd", 1,
           "[DIR/nometa/meta.json] needed meta.json beside the TFRecord files, got none; fix: download it "
           "from the same place as the data"},
          {"check DIR/twice.toml", 2,
           "DIR/twice.toml:3: [syntax] needed TOML, got a key or table that exists already; fix: fix this "
           "line\n 3 | steps = 4\n   |         ^"},
          {"check DIR/text.toml", 2,
           "DIR/text.toml:2: [train.steps] needed an integer from 1 to 1e12, got \"3\"; fix: for example "
           "train.steps = 100000"},
      },
      run.folder);
}
