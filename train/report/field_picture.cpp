// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/report/field_picture.h>
#include <meshgrad/train/report/field_raster.h>
#include <meshgrad/train/report/ticks.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

constexpr Colour kPaper = {255, 255, 255};
constexpr Colour kInk = {35, 40, 48};
constexpr Colour kFaintInk = {110, 118, 129};
constexpr Colour kFrame = {208, 212, 218};

// In pixels; text sizes are heights of capitals.
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
constexpr double kCaptionSize = 15;
constexpr double kTitleSize = 13;
constexpr double kLabelSize = 11;

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

void draw_bar(Image& image, const FieldPanel& panel, int x, int y, int height) {
  for (int row = 0; row < height; ++row) {
    const double value = 1 - (row + 0.5) / height;
    image.fill_rectangle(x, y + row, kBarWidth, 1, colour_of(panel.map, value));
  }
  for (const Tick& tick : linear_ticks(panel.low, panel.high, std::clamp(height / 45, 2, 6))) {
    const double at = y + (1 - (tick.value - panel.low) / (panel.high - panel.low)) * height;
    image.draw_line(x + kBarWidth + 1, at, x + kBarWidth + 5, at, 1, kFaintInk);
    draw_text(image, x + kBarWidth + 10, at + kLabelSize / 2, kLabelSize, tick.label, kInk);
  }
  if (!panel.unit.empty()) draw_text(image, x, y - 11, kLabelSize, panel.unit, kFaintInk);
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

}  // namespace

Image draw_fields(const MeshView& mesh, std::span<const FieldPanel> panels, const std::string& caption,
                  int width) {
  check_mesh("draw_fields", mesh);
  for (const FieldPanel& panel : panels) check_field("draw_fields", mesh, {panel.title, 1, panel.values});
  const Projection projection = project(mesh);
  const PanelLayout layout = lay_out(projection, panels.size(), !caption.empty(), width);
  Image image(layout.image_width, layout.image_height, kPaper);
  if (!caption.empty()) draw_text(image, kMargin, kMargin + kCaptionSize, kCaptionSize, caption, kInk);
  int y = layout.top;
  for (FieldPanel panel : panels) {
    std::tie(panel.low, panel.high) = usable_range(panel.low, panel.high);
    draw_text(image, kMargin, y + kTitleBand - 12, kTitleSize, panel.title, kInk);
    y += kTitleBand;
    image.fill_rectangle(kMargin - 1, y - 1, layout.plot_width + 2, layout.plot_height + 2, kFrame);
    image.fill_rectangle(kMargin, y, layout.plot_width, layout.plot_height, kPaper);
    raster_field(image, kMargin, y, layout.plot_width, layout.plot_height, mesh, projection, panel.values,
                 panel.map, panel.low, panel.high);
    const int bar = std::max(layout.plot_height, kMinPlotHeight);
    draw_bar(image, panel, kMargin + layout.plot_width + kBarGap, y, bar);
    y += bar + kPanelGap;
  }
  return image;
}

Image draw_comparison(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                      const ComparisonText& text, int width) {
  check_field("draw_comparison", mesh, prediction);
  check_field("draw_comparison", mesh, truth);
  if (prediction.components != truth.components) {
    throw invalid_argument("draw_comparison", "prediction and truth with as many components",
                           fmt::format("{} and {}", prediction.components, truth.components));
  }
  std::vector<float> difference(truth.values.size());
  double squares = 0, worst = 0;
  for (std::size_t i = 0; i < difference.size(); ++i) {
    difference[i] = prediction.values[i] - truth.values[i];
    squares += static_cast<double>(difference[i]) * difference[i];
  }
  std::vector<float> error = magnitude(difference, truth.components);
  for (float& value : error) {
    value = std::abs(value);
    worst = std::max<double>(worst, value);
  }
  const std::vector<float> predicted = magnitude(prediction.values, truth.components);
  const std::vector<float> expected = magnitude(truth.values, truth.components);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const float value : expected) {
    if (!std::isfinite(value)) continue;
    low = std::min<double>(low, value);
    high = std::max<double>(high, value);
  }
  const double rmse = difference.empty() ? 0 : std::sqrt(squares / static_cast<double>(difference.size()));
  const std::string error_title = fmt::format("error:  RMSE {:.3g},  largest {:.3g}", rmse, worst);
  const FieldPanel panels[] = {{"prediction", predicted, ColourMap::viridis, low, high, text.unit},
                               {"truth", expected, ColourMap::viridis, low, high, text.unit},
                               {error_title, error, ColourMap::magma, 0, worst, text.unit}};
  return draw_fields(mesh, panels, text.caption, width);
}

}  // namespace meshgrad
