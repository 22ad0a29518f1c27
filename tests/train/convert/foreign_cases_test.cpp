// SPDX-License-Identifier: Apache-2.0
// The folders of tests/data/cases: as programs write data in other ways than one expects. Each is read
// rightly, value by value, or refused with the cause.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;

namespace {

nlohmann::json cases() {
  std::ifstream file(test::data_file("cases/cases.json"));
  return nlohmann::json::parse(file);
}

ConvertOptions options_of(const nlohmann::json& one, const std::filesystem::path& scratch) {
  ConvertOptions options;
  options.input = test::data_file("cases/" + one["name"].get<std::string>());
  options.output = scratch / "out.mgd";
  options.split = {1};
  const nlohmann::json given = one.value("options", nlohmann::json::object());
  if (given.contains("axes")) options.axes = given["axes"].get<std::map<std::string, std::string>>();
  if (given.contains("first_node")) options.first_node = given["first_node"].get<int>();
  return options;
}

/// T of a node is x + 10 y + 100 frame, where the frames of all trajectories are counted in their order.
void check_heat(const Dataset& data, int64_t nodes) {
  int64_t frame = 0;
  for (int64_t i = 0; i < data.trajectories(); ++i) {
    const TrajectoryView t = data.trajectory(i);
    const auto x = t.mesh().positions;
    for (int64_t edge = 0; edge < t.mesh().edges; ++edge) {  // between neighbours only
      const auto a = 2 * static_cast<size_t>(t.mesh().senders[static_cast<size_t>(edge)]);
      const auto b = 2 * static_cast<size_t>(t.mesh().receivers[static_cast<size_t>(edge)]);
      CHECK(std::abs(x[a] - x[b]) <= 1);
      CHECK(std::abs(x[a + 1] - x[b + 1]) <= 1);
    }
    const auto field = t.field("T");
    for (int64_t at = 0; at < t.frames(); ++at, ++frame) {
      const auto values = field.frame(at);
      REQUIRE(std::ssize(values) == nodes);
      for (size_t n = 0; n < std::min<size_t>(values.size(), 12); ++n)
        CHECK(values[n] == x[2 * n] + 10 * x[2 * n + 1] + 100 * static_cast<float>(frame));
    }
  }
}

}  // namespace

TEST_CASE("data of other programs: right values, or the cause") {
  int64_t read = 0;
  for (const nlohmann::json& one : cases()) {
    CAPTURE(one["name"].get<std::string>());
    const test::ScratchDirectory scratch;
    const ConvertOptions options = options_of(one, scratch.path);
    ConvertReport report;
    const std::string error = message_of([&] { report = convert(options); });
    if (contains(error, "a build of meshgrad with HDF5")) continue;
    ++read;
    if (one.contains("error")) {
      CHECK(contains(error, one["error"].get<std::string>()));
      CHECK_FALSE(std::filesystem::exists(options.output));
      continue;
    }
    CHECK(error == "");
    if (!error.empty()) continue;
    CHECK(report.trajectories == one["trajectories"].get<int64_t>());
    CHECK(report.frames == one["frames"].get<int64_t>());
    CHECK(report.nodes_max == one["nodes"].get<int64_t>());
    if (one.contains("dt")) CHECK(report.dt == doctest::Approx(one["dt"].get<double>()));
    if (one.contains("warning")) {
      CHECK(std::ranges::any_of(report.warnings, [&](const std::string& text) {
        return contains(text, one["warning"].get<std::string>());
      }));
    }
    const auto has = [&](const std::string& name, auto holds) {
      return std::ranges::any_of(report.fields,
                                 [&](const FieldInfo& field) { return field.name == name && holds(field); });
    };
    if (one.contains("field"))
      CHECK(has(one["field"], [](const FieldInfo& field) { return field.on == FieldOn::graph; }));
    if (one.contains("components"))
      CHECK(has("U", [&](const FieldInfo& field) { return field.components == one["components"]; }));
    const Dataset data = Dataset::open(options.output);
    if (one.contains("cells")) CHECK(data.trajectory(0).mesh().cell_count() == one["cells"].get<int64_t>());
    if (one["trajectories"] == 1 || one["kind"] == "mesh that changes")
      check_heat(data, one["nodes"].get<int64_t>());
  }
  CHECK(read > 30);
}
