// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/report/field_picture.h>
#include <meshgrad/train/report/field_raster.h>
#include <meshgrad/train/report/line_chart.h>
#include <meshgrad/train/report/ticks.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

using test::contains;

constexpr Colour kWhite = {255, 255, 255};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<float> kCorners{0, 0, 2, 0, 2, 1, 0, 1};
const std::vector<std::int32_t> kTriangles{0, 1, 2, 0, 2, 3};
const std::vector<std::int32_t> kQuad{0, 1, 2, 3};

MeshView rectangle() {
  MeshView mesh;
  mesh.nodes = 4;
  mesh.dim = 2;
  mesh.cell_kind = CellKind::triangle;
  mesh.positions = kCorners;
  mesh.cells = kTriangles;
  return mesh;
}

Image raster(const MeshView& mesh, const std::vector<float>& values, int width = 40, int height = 20) {
  Image image(width, height, kWhite);
  raster_field(image, 0, 0, width, height, mesh, project(mesh), values, ColourMap::viridis, 0, 1);
  return image;
}

int distance(Colour a, Colour b) {
  return std::max({std::abs(a.red - b.red), std::abs(a.green - b.green), std::abs(a.blue - b.blue)});
}

std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> result;
  for (const Tick& tick : ticks) result.push_back(tick.label);
  return result;
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("a field is interpolated linearly, y upwards, without seams between triangles") {
  const Image along = raster(rectangle(), {0, 1, 1, 0});
  const Image up = raster(rectangle(), {0, 0, 1, 1});
  int worst = 0;
  for (int y = 0; y < 20; ++y) {
    for (int x = 0; x < 40; ++x) {
      worst = std::max(worst, distance(along.at(x, y), colour_of(ColourMap::viridis, (x + 0.5) / 40)));
      worst = std::max(worst, distance(up.at(x, y), colour_of(ColourMap::viridis, 1 - (y + 0.5) / 20)));
    }
  }
  CHECK(worst <= 2);
}

TEST_CASE("quads are drawn like their two triangles, and places without mesh stay white") {
  MeshView quad = rectangle();
  quad.cell_kind = CellKind::quad;
  quad.cells = kQuad;
  const std::vector<float> values{0, 0.25F, 1, 0.5F};
  CHECK(raster(quad, values).pixels() == raster(rectangle(), values).pixels());
  MeshView half = rectangle();
  half.cells = half.cells.first(3);  // below the diagonal
  const Image image = raster(half, values);
  CHECK(image.at(2, 2) == kWhite);
  CHECK(image.at(37, 17) != kWhite);
}

TEST_CASE("a value that is not a number is grey, one out of range takes the colour of the end") {
  CHECK(raster(rectangle(), {kNan, kNan, kNan, kNan}).at(20, 10) == colour_of(ColourMap::viridis, kNan));
  CHECK(raster(rectangle(), {9, 9, 9, 9}).at(20, 10) == colour_of(ColourMap::viridis, 1));
  CHECK(raster(rectangle(), {-9, -9, -9, -9}).at(20, 10) == colour_of(ColourMap::viridis, 0));
}

TEST_CASE("a point cloud is drawn as dots") {
  MeshView cloud = rectangle();
  cloud.cell_kind = CellKind::none;
  cloud.cells = {};
  const Image image = raster(cloud, {0, 1, 1, 0});
  CHECK(image.at(0, 19) == colour_of(ColourMap::viridis, 0));
  CHECK(image.at(39, 19) == colour_of(ColourMap::viridis, 1));
  CHECK(image.at(20, 10) == kWhite);
}

TEST_CASE("a mesh of three dimensions shows its two longest axes, the nearest cell on top") {
  // Two unit-high tetrahedra over the same long base, apart along x, the shortest axis.
  const std::vector<float> positions{0,    0, 0, 0,    4, 0, 0,    0, 2, 0.1F, 1, 1,
                                     0.5F, 0, 0, 0.5F, 4, 0, 0.5F, 0, 2, 0.6F, 1, 1};
  const std::vector<std::int32_t> cells{4, 5, 6, 7, 0, 1, 2, 3};
  MeshView mesh;
  mesh.nodes = 8;
  mesh.dim = 3;
  mesh.cell_kind = CellKind::tetrahedron;
  mesh.positions = positions;
  mesh.cells = cells;
  const Projection projection = project(mesh);
  CHECK(projection.axes == std::array<int, 3>{1, 2, 0});
  CHECK(projection.spread_x == 4);
  CHECK(projection.spread_y == 2);
  CHECK(raster(mesh, {0, 0, 0, 0, 1, 1, 1, 1}).at(5, 15) == colour_of(ColourMap::viridis, 1));
}

TEST_CASE("a comparison has three panels in true proportions") {
  const ScratchDirectory scratch;
  const std::vector<float> truth{0, 0, 3, 4, 3, 4, 0, 0}, prediction{0, 0, 3, 4, 3, 4, 0, 1};
  const Image image =
      draw_comparison(rectangle(), {"v", 2, prediction}, {"v", 2, truth}, {"velocity", "m/s"}, 800);
  CHECK(image.width() == 800);
  CHECK(image.height() > 3 * 300);
  CHECK(image.height() < 3 * 420);
  write_png(scratch.path / "a.png", image);
  const std::string bytes = read_text(scratch.path / "a.png");
  CHECK(bytes.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  CHECK(bytes.substr(12, 4) == "IHDR");
  CHECK(static_cast<unsigned char>(bytes[18]) * 256 + static_cast<unsigned char>(bytes[19]) == 800);
  CHECK(bytes.substr(bytes.size() - 8, 4) == "IEND");
}

TEST_CASE("pictures of strange fields come out all the same") {
  const std::vector<float> nothing(8, kNan), constant(8, 3);
  CHECK_NOTHROW(draw_comparison(rectangle(), {"v", 2, nothing}, {"v", 2, nothing}, {"", ""}));
  CHECK_NOTHROW(draw_comparison(rectangle(), {"v", 2, nothing}, {"v", 2, constant}, {"", ""}));
  CHECK_NOTHROW(draw_comparison(rectangle(), {"v", 2, constant}, {"v", 2, constant}, {"", ""}));
  const std::vector<float> column{1, 0, 1, 1, 1, 2, 1, 900};
  MeshView line = rectangle();
  line.positions = column;
  CHECK_NOTHROW(draw_comparison(line, {"v", 2, constant}, {"v", 2, constant}, {"\xc3\xa9", ""}));
  MeshView empty;
  empty.dim = 2;
  CHECK_NOTHROW(draw_comparison(empty, {"v", 1, {}}, {"v", 1, {}}, {"empty", ""}));
  CHECK_THROWS_AS(draw_comparison(rectangle(), {"v", 1, constant}, {"v", 2, constant}, {}), InvalidArgument);
  CHECK_THROWS_AS(
      draw_comparison(rectangle(), {"v", 2, constant}, {"v", 1, std::span(constant).first(4)}, {}),
      InvalidArgument);
}

TEST_CASE("text marks pixels where it stands and is as wide as announced") {
  Image image(200, 40, kWhite);
  draw_text(image, 10, 30, 14, "Error 0.5", {0, 0, 0});
  int left = 200, right = 0, top = 40, bottom = 0;
  for (int y = 0; y < 40; ++y) {
    for (int x = 0; x < 200; ++x) {
      if (image.at(x, y).red > 128) continue;
      left = std::min(left, x), right = std::max(right, x), top = std::min(top, y),
      bottom = std::max(bottom, y);
    }
  }
  CHECK(std::abs(left - 10) <= 2);
  CHECK(std::abs(right - 10 - text_width(14, "Error 0.5")) <= 2);
  CHECK(std::abs(top - 16) <= 2);
  CHECK(std::abs(bottom - 30) <= 2);
  CHECK(text_width(14, "") == 0);
}

TEST_CASE("ticks are round numbers with just enough digits") {
  CHECK(labels(linear_ticks(0, 1, 5)) == Labels{"0", "0.2", "0.4", "0.6", "0.8", "1.0"});
  CHECK(labels(linear_ticks(-3, 12, 4)) == Labels{"0", "5", "10"});
  CHECK(labels(linear_ticks(0, 3e-5, 3)) == Labels{"0", "1e-05", "2e-05", "3e-05"});
  CHECK(labels(linear_ticks(0, 2.5e7, 3)) == Labels{"0", "1e+07", "2e+07"});
  CHECK(labels(log_ticks(0.05, 20)) == Labels{"0.1", "1", "10"});
  CHECK(labels(log_ticks(0.9, 6)) == Labels{"1", "2", "5"});
  CHECK(labels(log_ticks(1e-9, 1e-6)) == Labels{"1e-9", "1e-8", "1e-7", "1e-6"});
  CHECK(linear_ticks(1, 1, 5).empty());
  CHECK(linear_ticks(0, std::numeric_limits<double>::infinity(), 5).empty());
  CHECK(log_ticks(0, 1).empty());
  CHECK(linear_ticks(1e300, 1.0000000000000002e300, 5).size() < 30);
}

TEST_CASE("a chart draws its series, skips what cannot be drawn and needs nothing from outside") {
  const ScratchDirectory scratch;
  ChartSeries train{"train <a>", {}, {}}, validation{"validation", {100, 200, 300}, {1, kNan, 0.5}};
  for (int step = 1; step <= 1000; ++step) {
    train.x.push_back(step);
    train.y.push_back(step == 500 ? -1 : 1.0 / step);
  }
  const ChartSeries both[] = {train, validation};
  write_line_chart(scratch.path / "loss.svg", both, {"Loss", "step", "loss & more"});
  const std::string svg = read_text(scratch.path / "loss.svg");
  CHECK(contains(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, "train &lt;a&gt;"));
  CHECK(contains(svg, "loss &amp; more"));
  CHECK(contains(svg, "<polygon"));  // the band of the long series
  CHECK(std::ranges::count(svg, '\n') < 60);
  CHECK_FALSE(contains(svg, "nan"));
  CHECK_FALSE(contains(svg, "inf"));
  CHECK_FALSE(contains(svg, "href"));
  std::size_t circles = 0;
  for (std::size_t at = svg.find("<circle"); at != svg.npos; at = svg.find("<circle", at + 1)) ++circles;
  CHECK(circles == 2);
}

TEST_CASE("a chart of nothing, of one point and of constants is still a chart") {
  for (const bool log_y : {true, false}) {
    for (const std::vector<double>& y : {std::vector<double>{}, {2.0}, {2.0, 2.0, 2.0}, {0.0, -1.0, 3.0}}) {
      std::vector<double> x(y.size());
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
      const ChartSeries one[] = {{"s", x, y}};
      const std::string svg = line_chart_svg(one, {"t", "x", "y"}, log_y);
      CHECK(svg.ends_with("</svg>\n"));
      CHECK_FALSE(contains(svg, "nan"));
      CHECK_FALSE(contains(svg, "inf\""));
    }
  }
  const ChartSeries uneven[] = {{"s", {1}, {}}};
  CHECK_THROWS_AS(line_chart_svg(uneven, {}), InvalidArgument);
  CHECK_THROWS_AS(line_chart_svg(std::vector<ChartSeries>(5), {}), InvalidArgument);
}
