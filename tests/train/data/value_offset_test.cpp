// SPDX-License-Identifier: Apache-2.0
// Numbers far from zero keep their digits: offsets are subtracted in f64, stored, and added to what is
// written.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/value_offset.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "paths.h"
#include "train/deepmind_folder.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::write_npz;

namespace {

namespace fs = std::filesystem;

constexpr int kSide = 9;
constexpr int kFrames = 6;

// A grid over 4 x 4 and two fields in f64, moved by `far` and by `level`.
struct Grid {
  std::vector<double> positions, u, flow;
  std::vector<int32_t> cells;

  Grid(double far, double level) {
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        positions.insert(positions.end(), {far + 0.5 * x + 0.07 * std::sin(y), far + 0.5 * y});
        if (x + 1 == kSide || y + 1 == kSide) continue;
        const int32_t at = y * kSide + x;
        for (const int32_t node : {at, at + 1, at + kSide + 1, at + kSide}) cells.push_back(node);
      }
    }
    for (int t = 0; t < kFrames; ++t) {
      for (int n = 0; n < kSide * kSide; ++n) {
        u.push_back(level + std::sin(0.3 * n + 0.01 * t));
        flow.insert(flow.end(), {std::cos(0.2 * n + 0.1 * t), level + std::sin(0.1 * n - 0.1 * t)});
      }
    }
  }

  template <class T>
  NpzArrays arrays(const char* type) const {
    const auto as = [](const std::vector<double>& values) {
      return std::vector<T>(values.begin(), values.end());
    };
    return {{"mesh_pos", npy<T>(type, "(81, 2)", as(positions))},
            {"cells", npy<int32_t>("<i4", "(64, 4)", cells)},
            {"node_type", npy<int32_t>("<i4", "(81,)", std::vector<int32_t>(81, 0))},
            {"u", npy<T>(type, "(6, 81)", as(u))},
            {"flow", npy<T>(type, "(6, 81, 2)", as(flow))}};
  }
};

struct Packed {
  ScratchDirectory scratch;
  ConvertReport report;
  Dataset data;
  explicit Packed(const NpzArrays& first, const NpzArrays& second = {})
      : data(convert_and_open(first, second)) {}

 private:
  Dataset convert_and_open(const NpzArrays& first, const NpzArrays& second) {
    fs::create_directories(scratch.path / "in");
    write_npz(scratch.path / "in/a.npz", first, false);
    if (!second.empty()) write_npz(scratch.path / "in/b.npz", second, false);
    ConvertOptions options;
    options.input = scratch.path / "in";
    options.output = scratch.path / "a.mgd";
    options.split = {1.0};
    report = convert(options);
    return Dataset::open(options.output);
  }
};

double change_deviation(const Dataset& data) {
  return data.field_stats("u", NodeTypeSet::all(), Quantity::change).std[0];
}

bool contains_number(const std::string& bytes, double number) {
  std::string pattern(sizeof number, '\0');
  std::memcpy(pattern.data(), &number, sizeof number);
  return contains(bytes, pattern);
}

}  // namespace

TEST_CASE("f64 values far from zero keep their changes") {
  const Grid far(1e6, 1e7);
  const Packed near_data(Grid(0, 0).arrays<double>("<f8"));
  const Packed far_data(far.arrays<double>("<f8"));
  CHECK(far_data.report.warnings.empty());
  const FieldStatistics near_edges = near_data.data.edge_stats();
  const FieldStatistics far_edges = far_data.data.edge_stats();
  for (size_t i = 0; i < 3; ++i) CHECK(far_edges.std[i] == doctest::Approx(near_edges.std[i]).epsilon(1e-6));
  CHECK(change_deviation(far_data.data) == doctest::Approx(change_deviation(near_data.data)).epsilon(1e-5));
  CHECK(change_deviation(near_data.data) > 1e-3);

  const TrajectoryView trajectory = far_data.data.trajectory("train", 0);
  const MeshView& mesh = trajectory.mesh();
  CHECK(mesh.origin[0] == doctest::Approx(1e6).epsilon(1e-5));
  CHECK(mesh.origin[2] == 0);
  double worst = 0;
  for (size_t i = 0; i < far.positions.size(); ++i) {
    worst = std::max(
        worst, std::abs(static_cast<double>(mesh.positions[i]) + mesh.origin[i % 2] - far.positions[i]));
  }
  CHECK(worst < 1e-6);
  const FieldInfo& flow = far_data.data.field("flow");
  REQUIRE(flow.offset.size() == 2);
  CHECK(flow.offset[0] == 0);
  CHECK(flow.offset[1] == doctest::Approx(1e7).epsilon(1e-6));
  worst = 0;
  const std::span<const float> values = trajectory.field("flow").values;
  for (size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(values[i]) + flow.offset_of(i % 2) - far.flow[i]));
  }
  CHECK(worst < 1e-6);
}

TEST_CASE("ordinary data get no offset") {
  const Packed wide(Grid(-1, 3).arrays<double>("<f8"));
  const Packed narrow(Grid(-1, 3).arrays<float>("<f4"));
  CHECK(wide.data.field("u").offset.empty());
  CHECK(wide.data.trajectory("train", 0).mesh().origin == std::array<double, 3>{});
  const auto a = wide.data.trajectory("train", 0).field("u").values;
  const auto b = narrow.data.trajectory("train", 0).field("u").values;
  CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  CHECK(wide.report.warnings.empty());
  CHECK(narrow.report.warnings.empty());
}

TEST_CASE("digits that are lost all the same are reported") {
  const Packed narrow(Grid(1e6, 1e7).arrays<float>("<f4"));
  const auto warns = [](const ConvertReport& report, const char* text) {
    return std::ranges::any_of(report.warnings,
                               [&](const std::string& line) { return contains(line, text); });
  };
  CHECK(warns(narrow.report,
              "a.npz] field u has only steps of 1.2 in a range of 2 in float32: save it as float64"));
  CHECK(warns(narrow.report, "a.npz] mesh_pos has only steps of 0.12 in a range of 4"));
  const Packed two(Grid(0, 1e7).arrays<double>("<f8"), Grid(0, -1e7).arrays<double>("<f8"));
  CHECK(warns(two.report,
              "b.npz] field u has only steps of 2.4 in a range of 2 in float32, since the first trajectory "
              "has other values"));
}

TEST_CASE("offsets are round numbers near the middle") {
  std::vector<double> wide{1e7 + 0.3, 5, 1e7 + 2.9, 7};
  CHECK(is_coarse_in_f32(wide, 2));
  CHECK(offset_for(wide, 2) == std::vector<double>{1e7 + 2, 0});
  wide = {4, 4, 4, 4};
  CHECK(offset_for(wide, 2).empty());
  CHECK(is_coarse_in_f32(wide, 2));  // a later trajectory may need its digits
  CHECK_FALSE(is_coarse_in_f32(std::vector<double>{101325, 95000}, 1));
}

TEST_CASE("VTU files have the data's numbers with offsets") {
  const Grid far(1e6, 1e7);
  const Packed packed(far.arrays<double>("<f8"));
  const TrajectoryView trajectory = packed.data.trajectory("train", 0);
  const FieldView u = trajectory.field("u");
  const FieldInfo& info = packed.data.field("u");
  const fs::path path = packed.scratch.path / "a.vtu";
  write_vtu(path, trajectory.mesh(),
            std::vector<PointField>{{"u", 1, u.frame(0), info.offset}, {"w", 1, u.frame(0)}}, 0);
  const std::string text = test::read_text(path);
  CHECK(contains(text, "type=\"Float64\" Name=\"u\""));
  CHECK(contains(text, "type=\"Float32\" Name=\"w\""));
  CHECK(contains(text, "type=\"Float64\" Name=\"Points\""));
  CHECK(contains_number(text, static_cast<double>(u.frame(0)[7]) + info.offset[0]));
  CHECK(contains_number(text,
                        static_cast<double>(trajectory.mesh().positions[3]) + trajectory.mesh().origin[1]));
}

TEST_CASE("relative errors are those of the variation about the offset") {
  FieldInfo info{"u", 1, true, "K"};
  info.offset = {300.0};
  FieldErrors errors({info});
  errors.add({3.0F, 4.0F, 9.0F}, {0.0F, 5.0F, 0.0F}, {1, 1, 0}, {2.0F, 1.0F, 9.0F});
  CHECK(errors.fields()[0].relative_l2 == doctest::Approx(std::sqrt(10.0) / 5.0));
  CHECK(errors.fields()[0].baseline_rmse == doctest::Approx(std::sqrt(10.0)));
}

TEST_CASE("a file of version 2, which has no offsets, opens") {
  const Packed packed(Grid(0, 0).arrays<float>("<f4"));
  std::string bytes = test::read_text(packed.data.path());
  bytes[8] = 2;  // PackedHeader::version
  const fs::path path = packed.scratch.path / "old.mgd";
  test::write_bytes(path, std::as_bytes(std::span(bytes)));
  const Dataset old = Dataset::open(path);
  CHECK(old.fingerprint() == packed.data.fingerprint());
  CHECK(old.field("u").offset.empty());
  CHECK(old.trajectory("train", 0).mesh().origin == std::array<double, 3>{});
}

TEST_CASE("HDF5 in float64 keeps its digits, too") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = test::data_file("far_from_zero.h5");
  options.output = scratch.path / "a.mgd";
  options.split = {1.0};
  const std::string error = test::message_of([&] { convert(options); });
  if (contains(error, "a build of meshgrad with HDF5")) return;
  REQUIRE(error == "");
  const Dataset data = Dataset::open(options.output);
  const TrajectoryView trajectory = data.trajectory("train", 0);
  const MeshView& mesh = trajectory.mesh();
  const double x = static_cast<double>(mesh.positions[2]) + mesh.origin[0];
  CHECK(std::abs(x - (1e6 + 0.25)) < 1e-6);
  const double u = static_cast<double>(trajectory.field("u").frame(1)[3]) + data.field("u").offset_of(0);
  CHECK(std::abs(u - (1e7 + 3 * 0.125 + 0.0625)) < 1e-6);
}
