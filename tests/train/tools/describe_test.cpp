// SPDX-License-Identifier: Apache-2.0
// What the program says of a data set: when it is converted, described and trained on.
#include <doctest/doctest.h>

#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::Outcome;
using meshgrad::test::run_meshgrad;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::wave_record;

namespace {

namespace fs = std::filesystem;

// The validation split is the training split's trajectory.
fs::path leaking_waves(const fs::path& folder) {
  test::write_meta(folder, test::square_meta(6));
  test::write_bytes(folder / "train.tfrecord", test::tfrecord_of({wave_record(5, 6, 0.0)}));
  test::write_bytes(folder / "valid.tfrecord", test::tfrecord_of({wave_record(5, 6, 0.0)}));
  test::write_bytes(folder / "test.tfrecord", test::tfrecord_of({wave_record(5, 6, 1.0)}));
  return folder;
}

// Without the breaks of lines that are too long.
std::string unwrapped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    if (!space || result.empty() || result.back() != ' ') result += space ? ' ' : c;
  }
  return result;
}

}  // namespace

TEST_CASE("a trajectory in two splits is reported") {
  const ScratchDirectory scratch;
  fs::create_directories(scratch.path / "in");
  const std::string packed = (scratch.path / "a.mgd").string();
  const std::string leak =
      "[valid.tfrecord: record 0] in split valid: mesh and fields are those of train.tfrecord: record 0 in "
      "split train";
  const Outcome converted = run_meshgrad(
      {"convert", leaking_waves(scratch.path / "in").string(), "-o", packed, "--unit", "velocity=m/s"});
  CHECK(converted.code == 0);
  CHECK(contains(converted.err, "meshgrad: warning: " + leak));

  const Outcome info = run_meshgrad({"info", packed});
  CHECK(contains(unwrapped(info.out), "warning " + leak));
  CHECK(contains(info.out, "values    velocity[0]: 0.8"));
  CHECK(contains(info.out, "\nvalues    velocity[1]: 0.0"));
  CHECK(contains(info.out, "nodes     "));
  CHECK(contains(info.out, ", mean "));
  CHECK(contains(unwrapped(info.out),
                 "types 0: 54, 4: 18, 5: 18, 6: 60 (nodes of each type times frames, in split train)"));
  const auto json = nlohmann::json::parse(run_meshgrad({"info", packed, "--json"}).out);
  CHECK(json["fields"][0]["minimum"].size() == 2);
  CHECK(json["fields"][0]["minimum"][1].get<double>() < json["fields"][0]["mean"][1].get<double>());
  CHECK(json["fields"][0]["mean"][1].get<double>() < json["fields"][0]["maximum"][1].get<double>());
  CHECK(json["warnings"].size() == 1);

  Config config = test::small_config(scratch.path, packed);
  config.train.steps = 2;
  const Outcome trained = run_meshgrad({"train", test::write_config(scratch.path, config)});
  CHECK(trained.code == 0);
  CHECK(contains(trained.err, "warning: " + leak));
}

TEST_CASE("a saved map is read again") {
  const ScratchDirectory scratch;
  test::NpzArrays arrays = test::square_arrays(3);
  arrays["xyz"] = std::move(arrays["mesh_pos"]);
  arrays.erase("mesh_pos");
  test::write_npz(scratch.path / "a.npz", arrays, false);
  const std::string input = (scratch.path / "a.npz").string(), map = (scratch.path / "a.map").string();
  const auto convert = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"convert", input,    "-o", (scratch.path / "a.mgd").string(),
                                   "--json",  "--force"};
    words.insert(words.end(), more.begin(), more.end());
    return run_meshgrad(words);
  };
  const Outcome guessed = convert({"--save-map", map});
  CHECK(guessed.code == 0);
  CHECK(contains(guessed.err, "read as by --map positions=xyz; --save-map FILE"));
  const Outcome mapped = convert({"--map", "@" + map, "--map", "types=node_type"});
  CHECK_FALSE(contains(mapped.err, "read as by"));
  CHECK(nlohmann::json::parse(mapped.out)["map"] == nlohmann::json::parse(guessed.out)["map"]);
  CHECK(contains(convert({"--map", "@" + map, "--map", "positions=none"}).err, "needed the array none"));
  CHECK(contains(convert({"--map", "@" + map + "s"}).err, "a.maps"));
  CHECK(contains(convert({"--map", "v=xyz", "--map", "w=xyz"}).err,
                 "each array and each name once in --map, got v=xyz and w=xyz"));
}

TEST_CASE("info shows all digits of values far from zero") {
  const ScratchDirectory scratch;
  const std::string packed = (scratch.path / "a.mgd").string();
  test::write_npz(
      scratch.path / "a.npz",
      {{"mesh_pos", test::npy<float>("<f4", "(3, 2)", {0, 0, 1, 0, 0, 1})},
       {"cells", test::npy<int32_t>("<i4", "(1, 3)", {0, 1, 2})},
       {"u", test::npy<double>("<f8", "(2, 3, 1)", {1e7, 1e7 + 0.25, 1e7 + 1, 1e7, 1e7 + 0.5, 1e7 + 1})}},
      false);
  const std::string input = (scratch.path / "a.npz").string();
  CHECK(run_meshgrad({"convert", input, "-o", packed, "--split", "1", "--unit", "u=Pa"}).code == 0);
  CHECK(contains(run_meshgrad({"info", packed}).out,
                 "values    u: 10000000 to 10000001 Pa, mean 10000000.4583333, deviation 0.4187"));
  const auto json = nlohmann::json::parse(run_meshgrad({"info", packed, "--json"}).out);
  CHECK(json["fields"][0]["maximum"][0] == 1e7 + 1);
  CHECK(json["fields"][0]["deviation"][0] == doctest::Approx(0.418745));
}

TEST_CASE("a checkpoint is described by what it has learned") {
  const ScratchDirectory scratch;
  const Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  test::train_here(config);
  const std::string last = (fs::path(config.run.dir) / "checkpoints/last.safetensors").string();
  const Outcome info = run_meshgrad({"info", last});
  CAPTURE(info.out);
  CHECK(info.code == 0);
  CHECK(contains(info.out, "trained   30 steps of 30, epoch 7\n"));
  CHECK(contains(info.out, "losses    training 1."));
  CHECK(contains(info.out, ", best validation 2."));
  CHECK(contains(info.out, "mesh_graph_net, width 16, 2 blocks, "));
  CHECK(contains(info.out, "both      velocity[2]: 0.79"));  // the range in the training split
  CHECK(contains(info.out, "meshes    49 to 64 nodes, edges 0.1"));
  CHECK_FALSE(contains(info.out, "0x"));
  const Outcome all = run_meshgrad({"info", last, "--all"});
  CHECK(contains(all.out, "  optimizer_steps = 30\n"));
  CHECK(contains(all.out, "F32  [16] model.edge_encoder.linear_0.bias"));
  const auto json = nlohmann::json::parse(run_meshgrad({"info", last, "--json"}).out);
  CHECK(json["metadata"]["step"] == "30");
}
