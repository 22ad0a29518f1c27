// SPDX-License-Identifier: Apache-2.0
// Which splits change too little to say anything about a model.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/data/quiet_split.h>

#include <algorithm>
#include <cmath>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::ScratchDirectory;

namespace {

// Node 0 has type 0, node 1 type 4, node 2 type 6. u grows by `step` a frame at node 0 and by 100 at the
// others; p is a thousandth of u.
void add_run(PackedFileWriter& writer, const std::string& split, int64_t mesh, int64_t frames, float step,
             DataStatistics* statistics, int64_t still = 1) {
  std::vector<float> u, p;
  for (int64_t t = 0; t < frames; ++t) {
    for (const float slope : {step, 100.0F, 100.0F})
      u.push_back(static_cast<float>(std::max<int64_t>(t - still + 1, 0)) * slope);
  }
  for (const float value : u) p.push_back(1e-3F * value);
  const std::vector<float> depth(3, 1.0F);
  const std::vector<int32_t> types{0, 4, 6};
  writer.add_trajectory({"run", split, mesh, frames, 0, 0.1, {u, p, depth}});
  if (statistics == nullptr) return;
  statistics->fields[0].add(u, types, frames);
  statistics->fields[1].add(p, types, frames);
}

// Training changes by 1 and 3 a frame: the root mean square is sqrt(5).
Dataset write_splits(const std::filesystem::path& path) {
  PackedFileWriter writer(path, 2, {{"u", 1, true, ""}, {"p", 1, true, ""}, {"depth", 1, false, ""}});
  const std::vector<float> positions{0, 0, 1, 0, 0, 1};
  const std::vector<int32_t> types{0, 4, 6};
  const std::vector<int32_t> cells{0, 1, 2};
  const PackedMesh mesh{2, CellKind::triangle, positions, types, cells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(cells, CellKind::triangle, 3, "triangle"));
  DataStatistics statistics;
  statistics.fields.assign(3, FieldMoments(1));
  statistics.edges.resize(3);
  add_run(writer, "train", number, 41, 1, &statistics);
  add_run(writer, "train", number, 41, 3, &statistics);
  for (int i = 0; i < 40; ++i) add_run(writer, "valid", number, 100, 0.125F, nullptr);
  add_run(writer, "lively", number, 20, 0.25F, nullptr);
  add_run(writer, "late", number, 101, 0.5F, nullptr, 51);
  add_run(writer, "still", number, 5, 0, nullptr);
  add_run(writer, "single", number, 1, 0, nullptr);
  writer.finish({}, statistics, "train", "by hand");
  return Dataset::open(path);
}

}  // namespace

TEST_CASE("a split that changes ten times less than training is quiet") {
  const ScratchDirectory scratch;
  const Dataset data = write_splits(scratch.path / "a.mgd");
  const auto quiet = [&](const char* split, const NodeTypeSet& types = {0}) {
    return quiet_split(data, split, {"u", "depth"}, types);
  };
  REQUIRE(quiet("valid").has_value());
  CHECK(quiet("valid")->field == "u");
  CHECK(quiet("valid")->split == doctest::Approx(0.125));
  CHECK(quiet("valid")->training == doctest::Approx(std::sqrt(5.0)));
  CHECK(quiet("valid")->ratio() == doctest::Approx(8 * std::sqrt(5.0)));
  CHECK_FALSE(quiet("lively").has_value());  // 8.9 times
  CHECK_FALSE(quiet("train").has_value());
  CHECK_FALSE(quiet("late").has_value());           // frames are taken from the whole of a trajectory
  CHECK_FALSE(quiet("valid", {0, 4}).has_value());  // node 1 changes as in training
  CHECK_FALSE(quiet("single").has_value());         // no change to look at
  CHECK_FALSE(quiet_split(data, "valid", {"depth"}, {0}).has_value());
  CHECK(quiet_split(data, "valid", {"p"}, {0}).has_value());
  CHECK_THROWS_AS(quiet("validation"), ConfigError);
  CHECK_THROWS_AS(quiet_split(data, "valid", {"w"}, {0}), ConfigError);

  const std::string line = quiet_split_warning("valid", *quiet("valid"));
  CHECK(contains(line,
                 "split \"valid\" changes 18 times less than the training data (u: 1.2e-01 a frame, 2.2e+00 "
                 "in training)"));
  REQUIRE(quiet("still").has_value());
  CHECK(
      contains(quiet_split_warning("still", *quiet("still")), "split \"still\" does not change (u: 0.0e+00"));
}

TEST_CASE("the bundled sample has no quiet split") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = test::data_file("cylinder_flow_sample");
  options.output = scratch.path / "a.mgd";
  convert(options);
  const Dataset data = Dataset::open(options.output);
  for (const char* split : {"train", "valid", "test"}) {
    CAPTURE(split);
    CHECK_FALSE(quiet_split(data, split, {"velocity", "pressure"}, {0, 5}).has_value());
  }
}
