// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/field_picture.h>
#include <meshgrad/train/tools/program/field_raster.h>
#include <meshgrad/train/tools/program/line_chart.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/ticks.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support.h"
#include "train/process.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

using test::contains;
using test::count_of;

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

FieldImage raster(const MeshView& mesh, const std::vector<float>& values, int width = 40, int height = 20) {
  return raster_field(mesh, project(mesh), values, 0, 1, width, height);
}

int byte_at(const FieldImage& image, int x, int y) {
  return image.pixels[static_cast<std::size_t>(y * image.width + x)];
}

/// A PNG decoded by libpng.
struct Decoded {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgba;
  explicit Decoded(std::span<const std::byte> bytes) {
    png_image header{};
    header.version = PNG_IMAGE_VERSION;
    REQUIRE(png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()) != 0);
    header.format = PNG_FORMAT_RGBA;
    rgba.resize(PNG_IMAGE_SIZE(header));
    REQUIRE(png_image_finish_read(&header, nullptr, rgba.data(), 0, nullptr) != 0);
    width = static_cast<int>(header.width);
    height = static_cast<int>(header.height);
  }
};

std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> result;
  for (const Tick& tick : ticks) result.push_back(tick.label);
  return result;
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("a field is interpolated linearly, y upwards") {
  const FieldImage along = raster(rectangle(), {0, 1, 1, 0});
  const FieldImage up = raster(rectangle(), {0, 0, 1, 1});
  int worst = 0;
  for (int y = 0; y < 20; ++y) {
    for (int x = 0; x < 40; ++x) {
      worst = std::max(worst, std::abs(byte_at(along, x, y) - FieldImage::byte_of((x + 0.5) / 40)));
      worst = std::max(worst, std::abs(byte_at(up, x, y) - FieldImage::byte_of(1 - (y + 0.5) / 20)));
    }
  }
  CHECK(worst <= 1);
  CHECK(FieldImage::byte_of(0) == FieldImage::kLowest);
  CHECK(FieldImage::byte_of(1) == 255);
}

TEST_CASE("quads are drawn like their two triangles") {
  MeshView quad = rectangle();
  quad.cell_kind = CellKind::quad;
  quad.cells = kQuad;
  const std::vector<float> values{0, 0.25F, 1, 0.5F};
  CHECK(raster(quad, values).pixels == raster(rectangle(), values).pixels);
  MeshView half = rectangle();
  half.cells = half.cells.first(3);  // below the diagonal
  const FieldImage image = raster(half, values);
  CHECK(byte_at(image, 2, 2) == FieldImage::kNoMesh);
  CHECK(byte_at(image, 37, 17) >= FieldImage::kLowest);
}

TEST_CASE("non-finite values are grey, others take the end colour") {
  CHECK(byte_at(raster(rectangle(), {kNan, kNan, kNan, kNan}), 20, 10) == FieldImage::kNotFinite);
  CHECK(byte_at(raster(rectangle(), {9, 9, 9, 9}), 20, 10) == 255);
  CHECK(byte_at(raster(rectangle(), {-9, -9, -9, -9}), 20, 10) == FieldImage::kLowest);
}

TEST_CASE("a point cloud is drawn as dots") {
  MeshView cloud = rectangle();
  cloud.cell_kind = CellKind::none;
  cloud.cells = {};
  const FieldImage image = raster(cloud, {0, 1, 1, 0}, 80, 40);
  CHECK(byte_at(image, 0, 39) == FieldImage::kLowest);
  CHECK(byte_at(image, 79, 39) == 255);
  CHECK(byte_at(image, 40, 20) == FieldImage::kNoMesh);
}

TEST_CASE("the PNG is transparent where there is no mesh") {
  const FieldImage image{3, 2, {0, 1, 2, 255, 128, 2}};
  const Decoded png(encode_png(image, ColourMap::magma));
  CHECK(png.width == 3);
  CHECK(png.height == 2);
  REQUIRE(png.rgba.size() == 24);
  CHECK(png.rgba[3] == 0);
  const auto check_pixel = [&](std::size_t pixel, Colour colour) {
    CAPTURE(pixel);
    CHECK(Colour{png.rgba[4 * pixel], png.rgba[4 * pixel + 1], png.rgba[4 * pixel + 2]} == colour);
    CHECK(png.rgba[4 * pixel + 3] == 255);
  };
  check_pixel(1, colour_of(ColourMap::magma, kNan));
  check_pixel(2, {0, 0, 4});
  check_pixel(3, {252, 253, 191});
  check_pixel(4, colour_of(ColourMap::magma, 126.0 / 253));
  CHECK(colour_of(ColourMap::viridis, 0) == Colour{68, 1, 84});
  CHECK(colour_of(ColourMap::viridis, 9) == Colour{253, 231, 37});
}

TEST_CASE("base64 and escaping") {
  const auto encoded = [](std::string_view text) { return base64(std::as_bytes(std::span(text))); };
  CHECK(encoded("") == "");
  CHECK(encoded("f") == "Zg==");
  CHECK(encoded("fo") == "Zm8=");
  CHECK(encoded("foobar") == "Zm9vYmFy");
  CHECK(encoded("\xff\xfe\xfb") == "//77");
  CHECK(escape_markup("m\x1b[2J\a\xC2\x9Bs") == "m\\x1b[2J\\x07\\x9bs");
  CHECK(escape_markup("\u00e9\u00c2 \u2192\n\t") == "\u00e9\u00c2 \u2192\n\t");  // text of any language stays
  CHECK(escape_markup("<a href=\"x\">&amp;</a>") == "&lt;a href=&quot;x&quot;&gt;&amp;amp;&lt;/a&gt;");
}

TEST_CASE("a surface in 3-D shows its two longest axes") {
  // Two triangles over the same long base, apart along x, the shortest axis.
  const std::vector<float> positions{0, 0, 0, 0, 4, 0, 0, 0, 2, 0.5F, 0, 0, 0.5F, 4, 0, 0.5F, 0, 2};
  const std::vector<std::int32_t> cells{3, 4, 5, 0, 1, 2};
  MeshView mesh;
  mesh.nodes = 6;
  mesh.dim = 3;
  mesh.cell_kind = CellKind::triangle;
  mesh.positions = positions;
  mesh.cells = cells;
  const Projection projection = project(mesh);
  CHECK(projection.axes == std::array<int, 3>{1, 2, 0});
  CHECK(projection.spread_x == 4);
  CHECK(projection.spread_y == 2);
  CHECK_FALSE(projection.cut.has_value());
  CHECK(byte_at(raster(mesh, {0, 0, 0, 1, 1, 1}), 5, 15) == 255);
}

/// A box of 4 x 2 x 1 as one cell; `field` of the position at its corners.
template <class Field>
FieldImage section_of_box(CellKind kind, const std::vector<std::int32_t>& cells, const Field& field) {
  const std::vector<float> positions{0, 0, 0, 4, 0, 0, 4, 2, 0, 0, 2, 0, 0, 0, 1, 4, 0, 1, 4, 2, 1, 0, 2, 1};
  MeshView mesh;
  mesh.nodes = 8;
  mesh.dim = 3;
  mesh.cell_kind = kind;
  mesh.positions = positions;
  mesh.cells = cells;
  std::vector<float> values;
  for (std::size_t i = 0; i < positions.size(); i += 3)
    values.push_back(field(positions[i], positions[i + 1], positions[i + 2]));
  CHECK(project(mesh).cut == 0.5);
  return raster(mesh, values);
}

TEST_CASE("volume cells are cut by the plane in the middle") {
  const auto linear = [](float x, float y, float z) { return 0.1F * x + 0.15F * y + 0.3F * z; };
  const std::vector<std::int32_t> hexahedron{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<std::int32_t> five{0, 1, 3, 4, 1, 2, 3, 6, 1, 4, 5, 6, 3, 4, 6, 7, 1, 3, 4, 6};
  for (const FieldImage& image : {section_of_box(CellKind::hexahedron, hexahedron, linear),
                                  section_of_box(CellKind::tetrahedron, five, linear)}) {
    int worst = 0;
    for (int y = 0; y < 20; ++y) {
      for (int x = 0; x < 40; ++x) {
        const double expected = 0.4 * (x + 0.5) / 40 + 0.3 * (1 - (y + 0.5) / 20) + 0.15;
        worst = std::max(worst, std::abs(byte_at(image, x, y) - FieldImage::byte_of(expected)));
      }
    }
    CHECK(worst <= 1);
  }
  // A field that is fixed on the surface and not inside shows the inside: there is no outer face on top.
  const std::vector<float> positions{0, 0, 0, 4, 0, 0, 0, 2, 0, 1, 0.5F, 1};
  const std::vector<std::int32_t> cells{0, 1, 2, 3};
  MeshView mesh;
  mesh.nodes = 4;
  mesh.dim = 3;
  mesh.cell_kind = CellKind::tetrahedron;
  mesh.positions = positions;
  mesh.cells = cells;
  CHECK(byte_at(raster(mesh, {0, 0, 0, 1}), 15, 13) == FieldImage::byte_of(0.5));
  CHECK(contains(draw_comparison(mesh, {"v", 1, std::vector<float>(4)}, {"v", 1, std::vector<float>(4)},
                                 {"v, step 1", ""}),
                 "<title>v, step 1, cut at z = 0.5</title>"));
}

TEST_CASE("the error of a picture is that of the predicted nodes") {
  const std::vector<float> truth{0, 0, 0, 0}, prediction{3, 0, 0, 100};
  const std::vector<std::uint8_t> predicted{1, 1, 1, 0};
  CHECK(contains(draw_comparison(rectangle(), {"v", 1, prediction}, {"v", 1, truth}, {"", "", predicted}),
                 "error: RMSE 1.73, largest 3<"));
  CHECK_THROWS_AS(draw_comparison(rectangle(), {"v", 1, prediction}, {"v", 1, truth},
                                  {"", "", std::span(predicted).first(2)}),
                  InvalidArgument);
}

TEST_CASE("a comparison has three panels in one file") {
  const ScratchDirectory scratch;
  const std::vector<float> truth{0, 0, 3, 4, 3, 4, 0, 0}, prediction{0, 0, 3, 4, 3, 4, 0, 1};
  const std::string svg = draw_comparison(rectangle(), {"v", 2, prediction}, {"v", 2, truth},
                                          {"velocity <1> & more", "m/s"}, 800);
  const std::string path = (scratch.path / "a.svg").string();
  std::ofstream(path) << svg;
  const char* const parse = R"py(
import base64, struct, sys, xml.etree.ElementTree as tree
svg = tree.parse(sys.argv[1]).getroot()
name = '{http://www.w3.org/2000/svg}'
assert svg.get('width') == '800' and 3 * 300 < float(svg.get('height')) < 3 * 420
assert svg.find(name + 'title').text == 'velocity <1> & more'
images = svg.findall(name + 'image')
for image in images:
    kind, data = image.get('href').split(',')
    png = base64.b64decode(data)
    assert kind == 'data:image/png;base64' and png[:8] == b'\x89PNG\r\n\x1a\n'
    width, height = float(image.get('width')), float(image.get('height'))
    assert struct.unpack('>II', png[16:24]) == (2 * width, 2 * height) and width == 2 * height
gradients = {g.get('id') for g in svg.iter(name + 'linearGradient')}
bars = [r.get('fill')[5:-1] for r in svg.findall(name + 'rect') if r.get('fill').startswith('url')]
assert set(bars) <= gradients
print(len(images), bars, [text.text for text in svg.findall(name + 'text')])
)py";
  const test::Outcome python = test::Process({"python3", "-c", parse, path}, "/usr/bin/env").wait();
  CHECK_MESSAGE(python.code == 0, python.err);
  CHECK(
      python.out ==
      "3 ['viridis', 'viridis', 'magma'] ['velocity <1> & more', 'prediction', '0', '1', '2', '3', '4', '5', "
      "'m/s', 'truth', '0', '1', '2', '3', '4', '5', 'm/s', 'error: RMSE 0.354, largest 1', '0', '0.2', "
      "'0.4', "
      "'0.6', '0.8', '1.0', 'm/s']\n");
  CHECK(count_of(svg, "http") == 1);  // the name of SVG: nothing is loaded
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

TEST_CASE("a chart draws its series and needs nothing from outside") {
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
  CHECK(count_of(svg, "<circle") == 2);
}

TEST_CASE("a chart of nothing or constants is still a chart") {
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
