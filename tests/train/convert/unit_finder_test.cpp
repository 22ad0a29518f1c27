// SPDX-License-Identifier: Apache-2.0
// One simulation in other units than the rest is named; simulations that merely differ are not.
#include <doctest/doctest.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/data_check.h>
#include <meshgrad/train/convert/unit_finder.h>

#include <fmt/format.h>

#include <algorithm>

#include "train/npz_arrays.h"
#include "train/process.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

/// Lengths and the temperature's offset of one simulation.
struct Units {
  double length = 1.0, kelvin = 273.15, pressure = 1e5;
};

RawTrajectory simulation(int number, const Units& units) {
  const double width = 1.6 + 0.1 * number;
  RawTrajectory t;
  t.name = fmt::format("run_{}.npz", number);
  t.nodes = 4;
  t.dim = 2;
  for (const double x : {0.0, 0.0, width, 0.0, width, 1.0, 0.0, 1.0})
    t.positions.push_back(static_cast<float>(units.length * x));
  RawField temperature{.name = "T"}, pressure{.name = "p"};
  std::vector<float> kelvin, pascal;
  for (int node = 0; node < 4; ++node) {
    kelvin.push_back(static_cast<float>(units.kelvin + 20.0 + 5.0 * number + 25.0 * node));
    pascal.push_back(static_cast<float>(units.pressure * (1.0 + 0.2 * number + 0.01 * node)));
  }
  temperature.values = kelvin;
  pressure.values = pascal;
  t.fields = {temperature, pressure};
  return t;
}

std::vector<std::string> found(const std::vector<Units>& all) {
  const std::vector<FieldInfo> infos{{.name = "T", .components = 1}, {.name = "p", .components = 1}};
  UnitFinder finder;
  for (size_t i = 0; i < all.size(); ++i) finder.add(simulation(static_cast<int>(i), all[i]), infos);
  return finder.texts();
}

bool names(const std::vector<std::string>& texts, const std::string& start, const std::string& part) {
  return std::ranges::any_of(
      texts, [&](const std::string& text) { return text.starts_with(start) && contains(text, part); });
}

}  // namespace

TEST_CASE("a simulation in millimetres is named") {
  std::vector<Units> all(6);
  CHECK(found(all).empty());
  all[5].length = 1000.0;
  const std::vector<std::string> texts = found(all);
  REQUIRE(texts.size() == 1);
  CHECK(texts[0] ==
        "[run_5.npz] meshes are as large as 2.1e+03 in 1 of 6 trajectories and 1.6 to 2 in the others: about "
        "1000 times apart; the unit may be another");
  all[5].length = 20.0;  // a larger plate
  CHECK(found(all).empty());
}

TEST_CASE("degrees Celsius among kelvin are named") {
  std::vector<Units> all(5);
  all[1].kelvin = all[3].kelvin = 0.0;
  const std::vector<std::string> texts = found(all);
  REQUIRE(texts.size() == 1);
  CHECK(
      texts[0].starts_with("[run_1.npz] T is on average 62.5 to 72.5 in 2 of 5 trajectories and 331 to 351"));
  CHECK(contains(texts[0], "as degrees Celsius and kelvin are; the unit may be another"));
  for (Units& units : all) units.kelvin = 0.0;
  CHECK(found(all).empty());
  for (size_t i = 1; i < all.size(); ++i)
    all[i].kelvin = 100.0 + 90.0 * static_cast<double>(i);  // of no group
  CHECK(found(all).empty());
}

TEST_CASE("kilopascals among pascals are named") {
  std::vector<Units> all(4);
  all[0].pressure = 100.0;
  CHECK(names(found(all), "[run_0.npz] p is at most 103 in 1 of 4", "about 1000 times apart"));
  all[0].pressure = 5e3;  // a lower pressure
  CHECK(found(all).empty());
}

TEST_CASE("a conversion keeps what it found of units") {
  const ScratchDirectory scratch;
  fs::create_directories(scratch.path / "in");
  for (int i = 0; i < 6; ++i) {
    const float scale = i == 4 ? 1000.0F : 1.0F + 0.1F * static_cast<float>(i);
    test::NpzArrays arrays = test::square_arrays(3, static_cast<float>(i));
    arrays["mesh_pos"] = test::npy<float>("<f4", "(4, 2)", {0, 0, scale, 0, scale, scale, 0, scale});
    test::write_npz(scratch.path / "in" / fmt::format("case_{}.npz", i), arrays, false);
  }
  ConvertOptions options;
  options.input = scratch.path / "in";
  options.output = scratch.path / "a.mgd";
  const ConvertReport report = convert(options);
  CHECK(names(report.warnings, "[case_4.npz] meshes are as large as 1e+03 in 1 of 6", "times apart"));
  REQUIRE(report.extents.size() == 2);
  CHECK(report.extents[0].least == doctest::Approx(1.0));
  CHECK(report.extents[1].most == doctest::Approx(1000.0));
  const DataSummary summary = check_data(Dataset::open(options.output));
  const auto finding = std::ranges::find(summary.findings, "case_4.npz", &Finding::place);
  REQUIRE(finding != summary.findings.end());
  CHECK(contains(finding->remedy, "convert these files' values to the unit of the others"));
  CHECK(summary.facts.extents[0].most == doctest::Approx(1000.0));
  CHECK(summary.edge_length.least == doctest::Approx(1.0));
  CHECK(summary.edge_length.most == doctest::Approx(1414.2136));
  const std::string text = test::run_meshgrad({"check", options.output.string()}).out;
  CHECK(contains(text, "extent    1 to 1000 by 1 to 1000 (sizes of meshes along the axes)"));
  CHECK(contains(text, "edges     1 to 1.41e+03 long, mean"));
}
