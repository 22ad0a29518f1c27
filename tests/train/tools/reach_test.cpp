// SPDX-License-Identifier: Apache-2.0
// How far messages travel, against how far what they carry lies from the nodes that need it.
#include <doctest/doctest.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/tools/extras/config_check.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/extras/reach.h>

#include <fmt/format.h>

#include <algorithm>

#include "train/fault_case.h"
#include "train/npz_arrays.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::Outcome;
using meshgrad::test::run_meshgrad;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

constexpr int kColumns = 12;

/// Beams of two rows of nodes, clamped at the left (type 1) and loaded at the right (2); with `repeated` the
/// load is also at all nodes. No cells join the columns `cut_after` and the next.
fs::path pack_beams(const fs::path& folder, bool repeated, bool over_time = false, int cut_after = kColumns) {
  const fs::path input = folder / "beams";
  for (int part = 0; part < 6; ++part) {
    const float load = 1.0F + static_cast<float>(part);
    std::vector<float> positions, traction, all, u;
    std::vector<int32_t> types, cells;
    for (int row = 0; row < 2; ++row) {
      for (int i = 0; i < kColumns; ++i) {
        positions.insert(positions.end(), {0.1F * static_cast<float>(i), 0.1F * static_cast<float>(row)});
        types.push_back(i == 0 ? 1 : i == kColumns - 1 ? 2 : 0);
        traction.push_back(i == kColumns - 1 ? load : 0.0F);
        all.push_back(load);
        u.push_back(load * static_cast<float>(i * i));
        if (row == 1 || i + 1 == kColumns || i == cut_after) continue;
        cells.insert(cells.end(), {i, i + 1, kColumns + i, i + 1, kColumns + i + 1, kColumns + i});
      }
    }
    const size_t nodes = types.size();
    std::vector<float> frames = u;
    for (int t = 1; t < 3; ++t)
      for (const float value : u) frames.push_back(value * static_cast<float>(t + 1));
    NpzArrays arrays{{"mesh_pos", npy<float>("<f4", fmt::format("({}, 2)", nodes), positions)},
                     {"cells", npy<int32_t>("<i4", fmt::format("({}, 3)", cells.size() / 3), cells)},
                     {"node_type", npy<int32_t>("<i4", fmt::format("({},)", nodes), types)},
                     {"traction", npy<float>("<f4", fmt::format("({}, 1)", nodes), traction)},
                     {"u", over_time ? npy<float>("<f4", fmt::format("(3, {}, 1)", nodes), frames)
                                     : npy<float>("<f4", fmt::format("({}, 1)", nodes), u)}};
    if (repeated) arrays["load"] = npy<float>("<f4", fmt::format("({}, 1)", nodes), all);
    fs::create_directories(input);
    test::write_npz(input / fmt::format("beam_{}.npz", part), arrays, false);
  }
  ConvertOptions options;
  options.input = input;
  options.output = folder / "beams.mgd";
  options.separate_frames = true;
  convert(options);
  return options.output;
}

const Finding* found(const ConfigSummary& summary) {
  const auto at = std::ranges::find(summary.findings, "model.blocks", &Finding::place);
  return at == summary.findings.end() ? nullptr : &*at;
}

}  // namespace

TEST_CASE("a load that messages do not carry to all nodes is found") {
  const ScratchDirectory scratch;
  const Dataset data = Dataset::open(pack_beams(scratch.path, false));
  FirstConfig first = first_config(data);
  REQUIRE(first.config.model.blocks == 6);
  const std::string what =
      "traction is 0 but at nodes that are 10 edges from the farthest predicted node; a message travels 6";
  CHECK(std::ranges::any_of(first.notes, [&](const std::string& note) { return note.starts_with(what); }));
  CHECK(contains(first.reasons.at("model.blocks"),
                 "6 edges a message (blocks x hops); nodes are up to 12 apart"));
  const ConfigSummary summary = check_config(first.config, data);
  const Finding* far = found(summary);
  REQUIRE(far != nullptr);
  CHECK(far->severity == Finding::Severity::warning);
  CHECK(far->what == what);
  CHECK(contains(far->remedy, "repeat the values of traction at all nodes"));
  CHECK(contains(far->remedy, "set model.blocks = 11: about 1.8 times the time and memory of a step"));
  CHECK(contains(far->remedy, "or data.hops = 2: 1."));
  REQUIRE(summary.reach);
  CHECK(summary.reach->diameter_least == 12);
  CHECK(summary.reach->meshes == 1);  // all beams have one mesh
  // Each of the remedies is one.
  Config more = first.config;
  more.model.blocks = 11;
  CHECK(found(check_config(more, data)) == nullptr);
  more = first.config;
  more.data.hops = 2;
  CHECK(found(check_config(more, data)) == nullptr);
}

TEST_CASE("nodes that no edges join with the load are found") {
  const ScratchDirectory scratch;
  const Dataset data = Dataset::open(pack_beams(scratch.path, false, false, 3));
  const ConfigSummary summary = check_config(first_config(data).config, data);
  const auto cut = std::ranges::find(summary.findings, "data.inputs", &Finding::place);
  REQUIRE(cut != summary.findings.end());
  CHECK(cut->severity == Finding::Severity::warning);
  CHECK(contains(cut->what,
                 "predicted nodes of a mesh are not connected with the nodes at which traction is not 0"));
  CHECK(found(summary) == nullptr);  // blocks are no remedy
}

TEST_CASE("a load that is repeated at all nodes needs no reach") {
  const ScratchDirectory scratch;
  const Dataset data = Dataset::open(pack_beams(scratch.path, true));
  const FirstConfig first = first_config(data);
  REQUIRE(first.config.data.inputs == std::vector<std::string>{"load", "traction"});
  const ConfigSummary summary = check_config(first.config, data);
  const Finding* far = found(summary);
  REQUIRE(far != nullptr);
  CHECK(far->severity == Finding::Severity::note);  // where the ends are still has to be learned
  CHECK(contains(far->what, "nodes of type "));
}

TEST_CASE("a change over a frame needs no reach") {
  const ScratchDirectory scratch;
  const Dataset data = Dataset::open(pack_beams(scratch.path, false, true));
  const FirstConfig first = first_config(data);
  REQUIRE(first.config.task.name == TaskName::mesh_dynamics);
  CHECK(found(check_config(first.config, data)) == nullptr);
}

TEST_CASE("init, check and doctor say how far messages travel") {
  const ScratchDirectory scratch;
  const fs::path data = pack_beams(scratch.path, false), file = scratch.path / "c.toml";
  const Outcome init = run_meshgrad({"init", "--data", data.string(), "-o", file.string()});
  REQUIRE(init.code == 0);
  CHECK(contains(init.err, "to do: traction is 0 but at nodes that are 10 edges from"));
  const Outcome check = run_meshgrad({"check", file.string()});
  CHECK(check.code == 0);
  CHECK(contains(check.out, "reach     6 edges a message (blocks x hops)"));
  CHECK(contains(check.out, "warning"));
  CHECK(contains(run_meshgrad({"check", file.string(), "--json"}).out, "\"reach\""));
  Config config = load_config(file.string());
  config.run.dir = (scratch.path / "run").string();
  config.train.steps = 2;
  config.train.batch = 1;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 0;
  test::train_here(config);
  const HealthCheck health = examine_reach(config.run.dir);
  CHECK(health.verdict == HealthCheck::Verdict::note);
  CHECK(contains(health.found, "10 edges from the farthest predicted node"));
  CHECK(contains(health.remedy, "model.blocks = 11"));
  CHECK(contains(run_meshgrad({"doctor", config.run.dir}).out, "reach "));
  fs::remove(data);
  CHECK(examine_reach(config.run.dir).verdict == HealthCheck::Verdict::unknown);
}
