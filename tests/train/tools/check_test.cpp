// SPDX-License-Identifier: Apache-2.0
// meshgrad check and meshgrad init: what they find in data, and configurations that train as they stand.
#include <doctest/doctest.h>
#include <meshgrad/train/convert/cell_check.h>
#include <meshgrad/train/convert/data_check.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/tools/extras/config_check.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/program/import_config.h>
#include <meshgrad/train/tools/program/presets.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::Outcome;
using meshgrad::test::run_meshgrad;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

// Node 4 has no edge and the place of node 3; cell 1 is turned, cell 2 is cell 0.
const std::vector<float> kFlawedPositions{0, 0, 1, 0, 1, 1, 0, 1, 0, 1};
const std::vector<int32_t> kFlawedCells{0, 1, 2, 0, 3, 2, 1, 2, 0};
const std::vector<int32_t> kFlawedTypes{0, 0, 4, 6, 0};

using Column = std::vector<float>;

/// Frames of u on 5 nodes that each add their step to every node.
Column growing(const std::vector<float>& steps) {
  Column values(5, 0.0F);
  for (const float step : steps) {
    for (int n = 0; n < 5; ++n)
      values.push_back(values[values.size() - 5] + step + 0.01F * step * static_cast<float>(n));
  }
  return values;
}

/// Splits train and valid of one trajectory of u and a constant c, on the mesh above.
fs::path pack_damaged(const fs::path& folder, const Column& train, const Column& valid) {
  const fs::path path = folder / "damaged.mgd";
  PackedFileWriter writer(path, 2, {{"u", 1, true, "K"}, {"c", 1, false, ""}});
  const PackedMesh mesh{2, CellKind::triangle, kFlawedPositions, kFlawedTypes, kFlawedCells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(kFlawedCells, CellKind::triangle, 5, "mesh"));
  const Column constant(5, 2.5F);
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(1)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.2});
  const auto frames = static_cast<int64_t>(train.size() / 5);
  statistics.fields[0].add(train, kFlawedTypes, frames);
  statistics.fields[1].add(constant, kFlawedTypes, 1);
  statistics.count_nodes(kFlawedTypes, frames);
  writer.add_trajectory({"a.npz", "train", number, frames, 0, 0.1, {train, constant}});
  writer.add_trajectory(
      {"b.npz", "valid", number, static_cast<int64_t>(valid.size() / 5), 0, 0.1, {valid, constant}});
  writer.finish({"train", "valid"}, statistics, "train", "by hand");
  return path;
}

const Finding* finding_at(const std::vector<Finding>& findings, const std::string& place,
                          const std::string& text) {
  for (const Finding& finding : findings) {
    if (finding.place == place && contains(finding.what, text)) return &finding;
  }
  return nullptr;
}

Config config_of(const std::string& toml) { return parse_config(toml, "init"); }

}  // namespace

TEST_CASE("a check finds what is doubtful of meshes, fields and splits") {
  const ScratchDirectory scratch;
  const Column train = growing({1, 1, 0, 1, 1, 40, 1, 1});
  const Dataset data = Dataset::open(pack_damaged(scratch.path, train, growing({5, 5, 5})));
  const DataSummary summary = check_data(data);
  const auto found = [&](const char* place, const char* text) {
    return finding_at(summary.findings, place, text) != nullptr;
  };
  CHECK(found("a.npz", "nodes at the place of another node: 1, first nodes 3 and 4"));
  CHECK(found("a.npz", "nodes without an edge: 1, first node 4"));
  CHECK(found("a.npz", "1 cell with the nodes of an earlier one, first cell 2"));
  CHECK(found("a.npz", "1 cell turned the other way than most, first cell 1"));
  CHECK(found("field c", "is 2.5 everywhere"));
  CHECK(found("a.npz: frame 3", "all fields are those of the frame before"));
  CHECK(found("a.npz: frame 6", "field u changes 40 times more than in the frames beside it"));
  CHECK(found("split valid", "1 trajectory is on a mesh of split train"));
  CHECK(summary.findings.size() == 8);
  CHECK(summary.count(Finding::Severity::error) == 0);
  for (const Finding& finding : summary.findings) {
    CHECK_FALSE(finding.why.empty());
    CHECK_FALSE(finding.remedy.empty());
  }
  CHECK(summary.facts.frames == 13);
  CHECK(summary.facts.node_types == std::vector<int64_t>{27, 0, 0, 0, 9, 0, 9});
  CHECK(summary.degrees == std::vector<int64_t>{1, 0, 2, 2});
  CHECK(range_of(summary.degrees).median == 2);
  const ComponentSummary& u = summary.fields[0].components[0];
  CHECK(u.min == 0);
  CHECK(u.max == doctest::Approx(46 * 1.04));
  int64_t values = 0;
  for (const int64_t count : u.histogram) values += count;
  CHECK(values == 13 * 5);
  CHECK(u.histogram.front() >= 10);
}

TEST_CASE("a faster flow that stays fast is no jump") {
  const ScratchDirectory scratch;
  const Column train = growing({1, 1, 1, 40, 40, 40});
  const DataSummary summary =
      check_data(Dataset::open(pack_damaged(scratch.path, train, growing({5, 5, 5}))));
  CHECK(finding_at(summary.findings, "a.npz: frame 4", "times more than in the frames beside it") == nullptr);
}

TEST_CASE("a value that is not finite is an error of check") {
  const ScratchDirectory scratch;
  Column valid = growing({1, 1, 1});
  valid[11] = std::numeric_limits<float>::quiet_NaN();
  const fs::path path = pack_damaged(scratch.path, growing({1, 1, 1, 1}), valid);
  const DataSummary summary = check_data(Dataset::open(path));
  REQUIRE(summary.count(Finding::Severity::error) == 1);
  CHECK(summary.findings.front().place == "b.npz: frame 2");
  CHECK(summary.findings.front().what == "field u is not finite at node 1");
  CHECK(summary.fields[0].components[0].max == doctest::Approx(4.16));
  const Outcome outcome = run_meshgrad({"check", path.string()});
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.out, "error     [b.npz: frame 2] field u is not finite at node 1"));
}

TEST_CASE("inverted tetrahedra and hexahedra are found") {
  const std::vector<float> positions{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1};
  const std::vector<int32_t> cells{0, 1, 2, 3, 4, 2, 1, 3, 0, 2, 1, 3};
  MeshView mesh;
  mesh.nodes = 5;
  mesh.dim = 3;
  mesh.positions = positions;
  mesh.cells = cells;
  mesh.nodes_per_cell = 4;
  mesh.cell_kind = CellKind::tetrahedron;
  CHECK(inverted_cells(mesh).count == 1);
  CHECK(repeated_cells(mesh).count == 1);
  CHECK(repeated_cells(mesh).first == 2);
  mesh.cell_kind = CellKind::quad;
  CHECK(inverted_cells(mesh).count == 0);
}

TEST_CASE("the file that init writes for waves trains") {
  const ScratchDirectory scratch;
  const fs::path packed = test::pack_waves(scratch.path);
  const std::string path = (scratch.path / "config.toml").string();
  const Outcome init = run_meshgrad({"init", "--data", packed.string(), "-o", path, "--preset", "small"});
  CHECK(init.code == 0);
  const Config config = load_config(path);
  CHECK(config.task.name == TaskName::mesh_dynamics);
  CHECK(config.data.inputs == std::vector<std::string>{"velocity"});
  CHECK(config.data.targets == config.data.inputs);
  CHECK(config.data.valid_split == "valid");
  CHECK(config.model.width == 32);
  const Dataset data = Dataset::open(packed);
  CHECK(test::task_warnings(data, config, "train.noise").empty());
  const FieldStatistics change =
      data.field_stats("velocity", NodeTypeSet(std::span(config.data.predicted_types)), Quantity::change);
  const double expected = 0.3 * std::hypot(change.std[0], change.std[1]) / std::sqrt(2.0);
  CHECK(config.train.noise / expected == doctest::Approx(1.0).epsilon(0.03));  // two digits are written
  CHECK(contains(test::read_text(path), "width = 32  # preset small\n"));
  CHECK(contains(run_meshgrad({"init", "--data", packed.string(), "-o", path}).err,
                 "] needed a new name, got a regular file"));

  const Outcome check = run_meshgrad({"check", path, "--json", "--html", (scratch.path / "a.html").string()});
  CHECK(check.code == 0);
  const auto json = nlohmann::json::parse(check.out);
  CHECK(json.at("use").at("task") == "mesh_dynamics");
  CHECK(json.at("use").at("node_inputs")[1].at("width") == 9);
  CHECK(json.at("use").at("train_samples") == 2 * 13);
  CHECK(json.at("use").at("memory").at("fits") == true);
  CHECK(json.at("degree").at("min") == 2);
  const std::string page = test::read_text(scratch.path / "a.html");
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(contains(page, "\"check\":{\"path\":"));
  CHECK_FALSE(contains(page, "src="));

  const Outcome train = run_meshgrad({"train", path, "--run", (scratch.path / "run").string(), "-s",
                                      "train.steps=5", "-s", "train.validate_every=5"});
  CHECK(train.code == 0);
}

TEST_CASE("a folder is packed beside itself by init") {
  const ScratchDirectory scratch;
  test::pack_waves(scratch.path);
  fs::remove(scratch.path / "waves.mgd");
  const std::string folder = (scratch.path / "waves").string();
  const Outcome check = run_meshgrad({"check", folder, "--json"});
  CHECK(check.code == 0);
  CHECK(nlohmann::json::parse(check.out).at("path") == folder);
  CHECK_FALSE(fs::exists(folder + ".mgd"));
  const Outcome init = run_meshgrad({"init", "--data", folder});
  CHECK(init.code == 0);
  CHECK(config_of(init.out).data.path == folder + ".mgd");
  CHECK(run_meshgrad({"init", "--data", folder}).out == init.out);  // packed once
  fs::copy_file(folder + "/valid.tfrecord", folder + "/test.tfrecord", fs::copy_options::overwrite_existing);
  const Outcome other = run_meshgrad({"init", "--data", folder});
  CHECK(other.code == 1);
  CHECK_MESSAGE(contains(other.err, "as it is now, got a packed file of other files or options"), other.err);
}

TEST_CASE("unpacked files are checked under their own names") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::square_arrays(12);
  arrays.erase("cells");
  arrays.erase("node_type");
  std::vector<float> values;
  for (int i = 0; i < 48; ++i) values.push_back(std::sin(0.7F * static_cast<float>(i * i)));
  arrays["u"] = test::npy<float>("<f4", "(12, 4, 1)", values);
  arrays["mesh_edge"] = test::npy<int32_t>("<i4", "(2, 6)", {0, 1, 2, 3, 0, 1, 1, 2, 3, 0, 1, 1});
  arrays["t"] = test::npy<double>("<f8", "(12,)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12});
  const std::string file = (scratch.path / "odd.npz").string(), page = (scratch.path / "a.html").string();
  test::write_npz(file, arrays, false);
  fs::create_directory(scratch.path / "tmp");
  const std::string temporary = "TMPDIR=" + (scratch.path / "tmp").string();
  putenv(const_cast<char*>(temporary.c_str()));
  const Outcome outcome = run_meshgrad({"check", file, "--json", "--html", page});
  unsetenv("TMPDIR");
  CHECK(outcome.code == 0);
  CHECK(fs::is_empty(scratch.path / "tmp"));
  CHECK_FALSE(contains(outcome.out + test::read_text(page), "meshgrad-check-"));
  const auto in_shell = [&](const std::string& folder, const std::string& arguments) {
    return test::Process({"-c", "TMPDIR=" + folder + " " + test::program() + " check " + file + arguments},
                         "/bin/sh")
        .wait();
  };
  in_shell((scratch.path / "tmp").string(), " --json | true");  // the end of the pipe ends the program
  CHECK(fs::is_empty(scratch.path / "tmp"));
  CHECK(contains(in_shell((scratch.path / "none").string(), "").err,
                 "[TMPDIR] needed a folder for a packed copy of the data, got No such file or directory"));
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json.at("path") == file);
  std::string whats;
  for (const auto& finding : json.at("findings")) {
    whats += finding.at("what").get<std::string>() + "\n";
    CHECK_FALSE(finding.at("remedy").get<std::string>().empty());
  }
  CHECK(contains(whats, "edges listed again: 1, first column 4"));
  CHECK(contains(whats, "edges from a node to itself: 1, first column 5"));
  CHECK(contains(whats, "times are not evenly spaced"));
  CHECK(contains(whats, "there are no node types"));
  CHECK_FALSE(contains(whats, "fix:"));  // the remedy says it

  // A packed file keeps what it does not show.
  const std::string packed = (scratch.path / "odd.mgd").string();
  CHECK(run_meshgrad({"convert", file, "-o", packed}).code == 0);
  const Outcome again = run_meshgrad({"convert", file, "-o", packed});
  CHECK(again.code == 0);
  CHECK(contains(again.out, "up to date"));
  const Outcome other = run_meshgrad({"convert", file, "-o", packed, "--split", "1"});
  CHECK(other.code == 1);
  CHECK(contains(other.err, "odd.mgd] needed a new name, got a packed file; fix: --force replaces it"));
  const std::string manifest = (scratch.path / "odd.json").string();
  const Outcome forced = run_meshgrad({"convert", file, "-o", packed, "--force", "--manifest", manifest});
  CHECK(forced.code == 0);
  CHECK(contains(forced.out, "read      odd.npz"));
  CHECK(run_meshgrad({"convert", manifest, "-o", (scratch.path / "more.mgd").string()}).code == 0);
  const std::string text = run_meshgrad({"check", packed, "--json"}).out;
  CHECK(contains(text, "edges listed again: 1, first column 4"));
  CHECK(contains(text, "edges from a node to itself: 1"));
  CHECK(contains(text, "not evenly spaced"));
  const std::vector<std::string> kept = Dataset::open(packed).warnings();
  REQUIRE(kept.size() == 3);
  for (const std::string& warning : kept) CHECK_MESSAGE(warning.starts_with("[odd.npz"), warning);
  std::ofstream(packed) << "no header, but as many bytes as one has: " << std::string(4096, 'x');
  const Outcome damaged = run_meshgrad({"check", packed});
  CHECK(damaged.code == 1);
  CHECK_MESSAGE(contains(damaged.err, "odd.mgd] needed a packed file (.mgd)"), damaged.err);
  const Outcome none = run_meshgrad({"check", (scratch.path / "tmp").string()});
  CHECK(none.code == 1);
  CHECK(contains(none.err, "needed files ending in"));
}

TEST_CASE("a killed check leaves no packed copy") {
  const ScratchDirectory scratch;
  const fs::path folder = scratch.path / "tmp";
  fs::create_directory(folder);
  std::ofstream(folder / ".a.meshgrad.tmp.0") << "of a killed writer, without O_TMPFILE";
  test::write_npz(scratch.path / "long.npz", test::square_arrays(400'000), false);
  test::Process process(
      {"TMPDIR=" + folder.string(), test::program(), "check", (scratch.path / "long.npz").string()},
      "/usr/bin/env");
  while (process.running() && !contains(process.err_so_far(), "read long.npz"))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.send(SIGKILL);
  CHECK(process.wait().code == -SIGKILL);
  CHECK(fs::is_empty(folder));
}

TEST_CASE("each target has noise by its own change") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "two.mgd";
  PackedFileWriter writer(path, 2, {{"u", 1, true, "K"}, {"v", 1, true, "Pa"}});
  const PackedMesh mesh{2, CellKind::triangle, kFlawedPositions, kFlawedTypes, kFlawedCells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(kFlawedCells, CellKind::triangle, 5, "mesh"));
  const Column u = growing({10, 20, 10, 30}), v = growing({1, 2, 1, 3});
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(1)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.2});
  statistics.fields[0].add(u, kFlawedTypes, 5);
  statistics.fields[1].add(v, kFlawedTypes, 5);
  statistics.count_nodes(kFlawedTypes, 5);
  writer.add_trajectory({"s", "train", number, 5, 0, 0.1, {u, v}});
  writer.finish({"train"}, statistics, "train", "by hand");
  const FirstConfig first = first_config(Dataset::open(path), {});
  CHECK(first.config.data.targets == std::vector<std::string>{"u", "v"});
  REQUIRE(first.config.train.field_noise.size() == 2);
  CHECK(first.config.train.field_noise[0].field == "u");
  CHECK(first.config.train.field_noise[0].value ==
        doctest::Approx(10 * first.config.train.field_noise[1].value).epsilon(0.05).scale(0));
  CHECK(contains(to_toml(first), "noise = {\"u\" = "));
}

TEST_CASE("init predicts positions and stress of a swinging mesh") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "beam.mgd";
  PackedFileWriter writer(path, 2,
                          {{"von_Mises", 1, true, ""}, {"u", 2, true, ""}, {"world_pos", 2, true, ""}});
  const std::vector<int32_t> types(5, 0);
  const PackedMesh mesh{2, CellKind::triangle, kFlawedPositions, types, kFlawedCells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(kFlawedCells, CellKind::triangle, 5, "mesh"));
  Column stress, moved, positions;
  for (int frame = 0; frame < 20; ++frame) {
    for (size_t i = 0; i < 10; ++i) {
      const float u = 0.1F * std::sin(0.1F * static_cast<float>(frame)) * kFlawedPositions[i];
      moved.push_back(u);
      positions.push_back(kFlawedPositions[i] + u);
      if (i % 2 == 0) stress.push_back(1e6F * u * u);
    }
  }
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(2), FieldMoments(2)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.2});
  statistics.fields[0].add(stress, types, 20);
  statistics.fields[1].add(moved, types, 20);
  statistics.fields[2].add(positions, types, 20);
  statistics.count_nodes(types, 20);
  writer.add_trajectory({"s", "train", number, 20, 0, 0.1, {stress, moved, positions}});
  writer.finish({"train"}, statistics, "train", "by hand");
  const FirstConfig first = first_config(Dataset::open(path), {});
  const DataConfig& data = first.config.data;
  CHECK(data.targets == std::vector<std::string>{"von_Mises", "world_pos"});
  CHECK(data.inputs == std::vector<std::string>{"world_pos"});
  CHECK(data.value_targets == std::vector<std::string>{"von_Mises"});
  CHECK(data.predict == Prediction::second_change);
  CHECK(contains(first.reasons.at("data.targets"), "u is left out"));
}

TEST_CASE("data without time become a steady field, and train") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "steady.mgd";
  PackedFileWriter writer(path, 2, {{"g", 1, false, "K"}, {"u", 1, true, "K"}});
  const PackedMesh mesh{2, CellKind::triangle, kFlawedPositions, kFlawedTypes, kFlawedCells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(kFlawedCells, CellKind::triangle, 5, "mesh"));
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(1)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.2});
  for (const float scale : {1.0F, 2.0F, 3.0F}) {
    const Column g{0, scale, 0, 2 * scale, 0}, u{scale, scale, 0, 2 * scale, 1};
    statistics.fields[0].add(g, kFlawedTypes, 1);
    statistics.fields[1].add(u, kFlawedTypes, 1);
    statistics.count_nodes(kFlawedTypes, 1);
    writer.add_trajectory({"s", "train", number, 1, 0, 0, {g, u}});
  }
  writer.finish({"train"}, statistics, "train", "by hand");
  const FirstConfig first = first_config(Dataset::open(path));
  CHECK(first.config.task.name == TaskName::steady_field);
  CHECK(first.config.data.inputs == std::vector<std::string>{"g"});
  CHECK(first.config.data.targets == std::vector<std::string>{"u"});
  CHECK(first.config.data.predicted_types == std::vector<int64_t>{0});
  CHECK(finding_at(check_data(Dataset::open(path)).findings, "field g", "everywhere") == nullptr);
  CHECK(first.config.data.valid_split == "train");
  CHECK(contains(to_toml(first), "There is no split to validate on"));
  Config config = config_of(to_toml(first));
  CHECK(to_toml(config) == to_toml(first.config));
  config.run.dir = (scratch.path / "run").string();
  config.train.steps = 5;
  CHECK(test::train_here(config).state.step == 5);
}

TEST_CASE("a configuration that does not fit its data is refused") {
  const ScratchDirectory scratch;
  const fs::path packed = test::pack_waves(scratch.path);
  Config config = test::small_config(scratch.path, packed);
  config.data.targets = {"pressure"};
  const Outcome outcome = run_meshgrad({"check", test::write_config(scratch.path, config)});
  CHECK(outcome.code == 2);
  CHECK(contains(outcome.err, "pressure"));
  config.data.targets = {"velocity"};
  config.data.predicted_types = {1};
  config.data.noise_types = {1};
  config.train.noise = 100;
  config.unroll.steps = 14;
  const ConfigSummary summary = check_config(config, Dataset::open(packed));
  CHECK(finding_at(summary.findings, "data.predicted_types", "no node of the training split") != nullptr);
  CHECK(finding_at(summary.findings, "split train", "no trajectory has a sample") != nullptr);
  CHECK(summary.findings.front().severity == Finding::Severity::error);
  config = test::small_config(scratch.path, packed);
  config.train.noise = 100;
  config.memory.memory_limit = 1 << 20;
  const ConfigSummary tight = check_config(config, Dataset::open(packed));
  CHECK(finding_at(tight.findings, "memory", "a step of batch 2 needs") != nullptr);
  CHECK(finding_at(tight.findings, "train.noise", "train.noise is 100") != nullptr);
}

TEST_CASE("presets combine, and a later one wins") {
  const Config config = with_presets(Config(), presets_named("reference,low-memory"));
  CHECK(config.model.width == 128);
  CHECK(config.train.batch == 1);
  CHECK(config.recompute.mode == RecomputeMode::block);
  CHECK(with_presets(Config(), presets_named("low-memory,reference")).train.batch == 2);
  CHECK(contains(message_of([] { presets_named("smal"); }), "did you mean \"small\"?"));
  for (const Preset& preset : presets()) {
    CAPTURE(preset.name);
    const Config alone = with_presets(Config(), {preset});
    CHECK(to_toml(config_of(presets_toml({preset}))) == to_toml(alone));
  }
}

TEST_CASE("options of other programs are imported or listed") {
  const ImportedConfig nemo = import_config(
      "# data\ndata_dir: ./raw\nbatch_size: 4\nlr: 0.0005  # start\nlr_decay_rate: 0.99\nmodel:\n"
      "  processor_size: 12\n  hidden_dim_processor: int = 64\namp: True\nepochs: some\n",
      "config.yaml", OptionNames::physicsnemo);
  const Config config = config_of(nemo.toml);
  CHECK(config.train.batch == 4);
  CHECK(config.optimizer.lr == 5e-4);
  CHECK(config.model.blocks == 12);
  CHECK(config.model.width == 64);
  CHECK(config.precision == DType::f16);
  CHECK(nemo.mapped.size() == 5);
  REQUIRE(nemo.unmapped.size() == 3);
  CHECK(contains(nemo.unmapped[0], "data_dir = ./raw: pack the data with meshgrad convert"));
  CHECK(contains(nemo.unmapped[2], "epochs = some: "));

  const ImportedConfig deepmind = import_config(
      "--num_training_steps=5000\nnoise=0.003,\ngamma=0.1\nhistory = True\n", "flags", OptionNames::deepmind);
  CHECK(config_of(deepmind.toml).train.steps == 5000);
  CHECK(config_of(deepmind.toml).data.predict == Prediction::second_change);
  for (const char* text :
       {"field = world_pos\nhistory = True\nnoise = 0.003\ngamma = 0.1\n", "--model=cloth\n"}) {
    CAPTURE(text);
    const Config cloth = config_of(import_config(text, "flags", OptionNames::deepmind).toml);
    CHECK(cloth.data.targets == std::vector<std::string>{"world_pos"});
    CHECK(cloth.data.inputs == std::vector<std::string>{"world_pos"});
    CHECK(cloth.data.world_position == "world_pos");
    CHECK(cloth.data.predict == Prediction::second_change);
    CHECK(cloth.train.noise == 0.003);
    CHECK(cloth.train.gamma == 0.1);
  }
  CHECK(config_of(import_config("--noise=0.001\n--model=cloth\n", "flags", OptionNames::deepmind).toml)
            .train.noise == 0.001);
  const ImportedConfig flow = import_config("field = velocity\n", "flags", OptionNames::deepmind);
  CHECK(config_of(flow.toml).data.world_position.empty());
  CHECK(flow.mapped.front() == "field = velocity -> data.targets=velocity, data.inputs=velocity");
  const ImportedConfig plain =
      import_config("% a run\nmodel.width 32\nbeta2 0.99\nepochs 3\n", "run.txt", OptionNames::keyvalue);
  CHECK(config_of(plain.toml).model.width == 32);
  CHECK(config_of(plain.toml).optimizer.beta2 == 0.99);
  CHECK(config_of(plain.toml).train.epochs == 3);
  CHECK(contains(message_of([] { import_config("a: 1\n", "x.yaml", OptionNames::deepmind); }), "x.yaml"));
  const std::string long_text = "num_training_steps = 5\n" + std::string(size_t{64} << 10, '\n');
  CHECK(contains(message_of([&] { import_config(long_text, "x.yaml", OptionNames::deepmind); }),
                 "[x.yaml] needed options in at most 64 KiB, got 65559 bytes or more"));
}
