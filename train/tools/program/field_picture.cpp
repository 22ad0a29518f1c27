// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/drawn_mesh.h>
#include <meshgrad/train/tools/program/field_picture.h>
#include <meshgrad/train/tools/program/field_raster.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/ticks.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

constexpr std::string_view kInk = "#232830", kFaintInk = "#6e7681", kFrame = "#d0d4da";

// In pixels.
constexpr int kMinWidth = 400;
constexpr int kMaxPlotHeight = 520;
constexpr int kMinPlotHeight = 60;
constexpr int kMargin = 24;
constexpr int kBarGap = 20;
constexpr int kBarWidth = 16;
constexpr int kBarLabels = 76;
constexpr int kTitleBand = 34;
constexpr int kCaptionBand = 34;
constexpr int kPanelGap = 22;
constexpr int kCaptionSize = 20, kTitleSize = 17, kLabelSize = 14;
// Pixels of a field's PNG to one of the picture, for screens with more of them and for zooming in.
constexpr int kPixelDensity = 2;

struct FieldPanel {
  std::string title;
  std::span<const float> values;  // [nodes]
  ColourMap map;
  double low, high;  // the ends of the colour bar; values outside take the colour of the end
  std::string_view unit;
};

struct PanelLayout {
  int plot_width, plot_height, image_width, image_height, top;
};

PanelLayout lay_out(const Projection& projection, std::size_t panels, bool caption, int width) {
  PanelLayout layout{};
  const int beside = 2 * kMargin + kBarGap + kBarWidth + kBarLabels;
  const double aspect = projection.spread_y / projection.spread_x;
  layout.plot_width = std::max(width, kMinWidth) - beside;
  if (layout.plot_width * aspect > kMaxPlotHeight) {
    layout.plot_width = std::max(static_cast<int>(kMaxPlotHeight / aspect), 8);
  }
  layout.plot_height =
      std::clamp(static_cast<int>(std::lround(layout.plot_width * aspect)), 1, kMaxPlotHeight);
  layout.image_width = std::max(layout.plot_width + beside, kMinWidth);
  layout.top = kMargin + (caption ? kCaptionBand : 0);
  const int panel = kTitleBand + std::max(layout.plot_height, kMinPlotHeight) + kPanelGap;
  layout.image_height = layout.top + static_cast<int>(panels) * panel - kPanelGap + kMargin;
  return layout;
}

std::string text_at(double x, double y, int size, std::string_view colour, std::string_view text) {
  return fmt::format("<text x=\"{}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", x, y, size,
                     colour, escape_markup(text));
}

std::string gradient(ColourMap map) {
  std::string svg =
      fmt::format("<linearGradient id=\"{}\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">\n", name_of(map));
  const std::span<const Colour> stops = stops_of(map);
  for (std::size_t i = 0; i < stops.size(); ++i) {
    svg += fmt::format("<stop offset=\"{:.4f}\" stop-color=\"#{:02x}{:02x}{:02x}\"/>\n",
                       static_cast<double>(i) / static_cast<double>(stops.size() - 1), stops[i].red,
                       stops[i].green, stops[i].blue);
  }
  return svg + "</linearGradient>\n";
}

std::string colour_bar(const FieldPanel& panel, int x, int y, int height) {
  std::string svg = fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#{})\"/>\n", x,
                                y, kBarWidth, height, name_of(panel.map));
  for (const Tick& tick : linear_ticks(panel.low, panel.high, std::clamp(height / 45, 2, 6))) {
    const double at = y + (1 - (tick.value - panel.low) / (panel.high - panel.low)) * height;
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                       x + kBarWidth + 1, at, x + kBarWidth + 5, at, kFaintInk);
    svg += text_at(x + kBarWidth + 10, at + 0.35 * kLabelSize, kLabelSize, kInk, tick.label);
  }
  return panel.unit.empty() ? svg : svg + text_at(x, y - 11, kLabelSize, kFaintInk, panel.unit);
}

/// A range that a colour bar can show: finite, and wider than the rounding of its ends.
std::pair<double, double> usable_range(double low, double high) {
  const double largest = std::max(std::abs(low), std::abs(high));
  if (!(low <= high) || !std::isfinite(largest) || largest == 0) return {0, 1};
  return high - low < largest * 1e-6 ? std::pair{low - largest * 0.01, high + largest * 0.01}
                                     : std::pair{low, high};
}

std::vector<float> magnitude(std::span<const float> values, int components) {
  if (components == 1) return {values.begin(), values.end()};
  const auto width = static_cast<std::size_t>(components);
  std::vector<float> result(values.size() / width);
  for (std::size_t node = 0; node < result.size(); ++node) {
    double sum = 0;
    for (const float value : values.subspan(node * width, width)) sum += static_cast<double>(value) * value;
    result[node] = static_cast<float>(std::sqrt(sum));
  }
  return result;
}

std::string draw_panels(const MeshView& mesh, std::span<const FieldPanel> panels, std::string caption,
                        int width) {
  const DrawnMesh drawn(mesh);
  const Projection projection = project(drawn.view());
  if (projection.cut) {
    caption += fmt::format("{}cut at {} = {:.3g}", caption.empty() ? "" : ", ",
                           "xyz"[static_cast<std::size_t>(projection.axes[2])], *projection.cut);
  }
  const PanelLayout layout = lay_out(projection, panels.size(), !caption.empty(), width);
  const auto [w, h] = std::pair(layout.plot_width, layout.plot_height);
  std::string svg = svg_start(layout.image_width, layout.image_height);
  svg += fmt::format(
      "<title>{}</title>\n<defs>\n{}{}</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      escape_markup(caption), gradient(ColourMap::viridis), gradient(ColourMap::magma));
  if (!caption.empty()) svg += text_at(kMargin, kMargin + kCaptionSize - 5, kCaptionSize, kInk, caption);
  int y = layout.top;
  for (FieldPanel panel : panels) {
    std::tie(panel.low, panel.high) = usable_range(panel.low, panel.high);
    svg += text_at(kMargin, y + kTitleBand - 12, kTitleSize, kInk, panel.title);
    y += kTitleBand;
    const FieldImage image = raster_field(drawn.view(), projection, drawn.values(panel.values), panel.low,
                                          panel.high, w * kPixelDensity, h * kPixelDensity);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{}\"/>\n",
                       kMargin - 0.5, y - 0.5, w + 1, h + 1, kFrame);
    svg += fmt::format(
        "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" href=\"data:image/png;base64,{}\"/>\n", kMargin,
        y, w, h, base64(encode_png(image, panel.map)));
    const int bar = std::max(h, kMinPlotHeight);
    svg += colour_bar(panel, kMargin + w + kBarGap, y, bar);
    y += bar + kPanelGap;
  }
  return svg + "</svg>\n";
}

}  // namespace

FieldComparison compare_fields(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                               std::span<const std::uint8_t> mask) {
  check_mesh("compare_fields", mesh);
  check_field("compare_fields", mesh, prediction);
  check_field("compare_fields", mesh, truth);
  if (prediction.components != truth.components) {
    throw invalid_argument("compare_fields", "prediction and truth with as many components",
                           fmt::format("{} and {}", prediction.components, truth.components));
  }
  if (!mask.empty() && mask.size() != static_cast<std::size_t>(mesh.nodes)) {
    throw invalid_argument("compare_fields", fmt::format("a mask of {} nodes", mesh.nodes),
                           fmt::format("{}", mask.size()));
  }
  std::vector<float> difference(truth.values.size());
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] = prediction.values[i] - truth.values[i];
  FieldComparison result{magnitude(prediction.values, truth.components),
                         magnitude(truth.values, truth.components), magnitude(difference, truth.components)};
  double squares = 0, count = 0;
  for (std::size_t node = 0; node < result.error.size(); ++node) {
    float& error = result.error[node];
    error = std::abs(error);
    if (!mask.empty() && mask[node] == 0) continue;
    result.largest = std::max<double>(result.largest, error);
    squares += static_cast<double>(error) * error;
    count += truth.components;
  }
  result.rmse = count > 0 ? std::sqrt(squares / count) : 0;
  result.low = std::numeric_limits<double>::infinity();
  result.high = -result.low;
  for (const float value : result.truth) {
    if (!std::isfinite(value)) continue;
    result.low = std::min<double>(result.low, value);
    result.high = std::max<double>(result.high, value);
  }
  return result;
}

std::string draw_comparison(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                            const ComparisonText& text, int width) {
  const FieldComparison fields = compare_fields(mesh, prediction, truth, text.predicted);
  const std::string error_title =
      fmt::format("error: RMSE {:.3g}, largest {:.3g}", fields.rmse, fields.largest);
  const FieldPanel panels[] = {
      {"prediction", fields.prediction, ColourMap::viridis, fields.low, fields.high, text.unit},
      {"truth", fields.truth, ColourMap::viridis, fields.low, fields.high, text.unit},
      {error_title, fields.error, ColourMap::magma, 0, fields.largest, text.unit}};
  return draw_panels(mesh, panels, text.caption, width);
}

}  // namespace meshgrad
