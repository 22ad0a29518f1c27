// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/tools/program/line_chart.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/ticks.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace meshgrad {
namespace {

constexpr double kWidth = 880, kHeight = 420;
constexpr double kLeft = 78, kRight = 24, kTop = 52, kBottom = 58;
constexpr std::size_t kPointSlices = 250;
constexpr std::size_t kManyPoints = 300;
constexpr std::string_view kColours[] = {"#2f81f7", "#e8833a", "#3fa45b", "#b565d8"};

struct Point {
  double x, y;
};

struct Band {
  double x, mean, low, high;
};

/// Data to pixels, with a linear or a logarithmic y axis.
class Axes {
 public:
  Axes(std::span<const std::vector<Point>> lines, bool log_y) : log_y_(log_y) {
    double infinity = std::numeric_limits<double>::infinity();
    low_ = {infinity, infinity};
    high_ = {-infinity, -infinity};
    for (const auto& line : lines) {
      for (const Point& point : line) {
        low_ = {std::min(low_.x, point.x), std::min(low_.y, point.y)};
        high_ = {std::max(high_.x, point.x), std::max(high_.y, point.y)};
      }
    }
    if (!(low_.x <= high_.x)) low_ = {0, log_y ? 0.1 : 0.0}, high_ = {1, 1};
    if (low_.x == high_.x) high_.x += 1;
    if (log_y) {
      const double margin = std::pow(high_.y / low_.y, 0.05) * (high_.y / low_.y < 1.05 ? 1.2 : 1.0);
      low_.y /= margin;
      high_.y *= margin;
    } else {
      const double margin = std::max(0.05 * (high_.y - low_.y), std::abs(high_.y) * 1e-3 + 1e-12);
      low_.y -= margin;
      high_.y += margin;
    }
  }

  Point low() const { return low_; }
  Point high() const { return high_; }
  double x(double value) const {
    return kLeft + (value - low_.x) / (high_.x - low_.x) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double part = log_y_ ? std::log(value / low_.y) / std::log(high_.y / low_.y)
                               : (value - low_.y) / (high_.y - low_.y);
    return kHeight - kBottom - part * (kHeight - kTop - kBottom);
  }
  std::vector<Tick> y_ticks() const {
    return log_y_ ? log_ticks(low_.y, high_.y) : linear_ticks(low_.y, high_.y, 6);
  }
  std::vector<Tick> x_ticks() const { return linear_ticks(low_.x, high_.x, 8); }

 private:
  bool log_y_;
  Point low_{}, high_{};
};

std::vector<Point> usable_points(const ChartSeries& series, bool log_y) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool usable =
        std::isfinite(series.x[i]) && std::isfinite(series.y[i]) && (!log_y || series.y[i] > 0);
    if (usable) points.push_back({series.x[i], series.y[i]});
  }
  std::ranges::stable_sort(points, {}, &Point::x);
  return points;
}

std::vector<Band> slices(std::span<const Point> points, bool log_y) {
  std::vector<Band> bands;
  const std::size_t each = (points.size() + kPointSlices - 1) / kPointSlices;
  for (std::size_t begin = 0; begin < points.size(); begin += each) {
    const auto part = points.subspan(begin, std::min(each, points.size() - begin));
    Band band{0, 0, part[0].y, part[0].y};
    for (const Point& point : part) {
      band.x += point.x / static_cast<double>(part.size());
      band.mean += (log_y ? std::log(point.y) : point.y) / static_cast<double>(part.size());
      band.low = std::min(band.low, point.y);
      band.high = std::max(band.high, point.y);
    }
    if (log_y) band.mean = std::exp(band.mean);
    bands.push_back(band);
  }
  return bands;
}

std::string polyline(std::string_view points, std::string_view colour) {
  return fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\" "
      "stroke-linecap=\"round\"/>\n",
      points, colour);
}

std::string drawn_series(std::span<const Point> points, const Axes& axes, std::string_view colour,
                         bool log_y) {
  std::string line, svg;
  if (points.size() > kManyPoints) {
    const std::vector<Band> bands = slices(points, log_y);
    std::string outline;
    for (const Band& band : bands) {
      outline += fmt::format("{:.1f},{:.1f} ", axes.x(band.x), axes.y(band.high));
      line += fmt::format("{:.1f},{:.1f} ", axes.x(band.x), axes.y(band.mean));
    }
    for (auto band = bands.rbegin(); band != bands.rend(); ++band) {
      outline += fmt::format("{:.1f},{:.1f} ", axes.x(band->x), axes.y(band->low));
    }
    svg = fmt::format("<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.22\"/>\n", outline, colour);
    return svg + polyline(line, colour);
  }
  for (const Point& point : points) line += fmt::format("{:.1f},{:.1f} ", axes.x(point.x), axes.y(point.y));
  svg = polyline(line, colour);
  for (const Point& point : points) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", axes.x(point.x),
                       axes.y(point.y), points.size() > 60 ? 2 : 3.5, colour);
  }
  return svg;
}

std::string drawn_frame(const Axes& axes, const ChartText& text) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string svg = "<g stroke=\"#8b949e\" stroke-opacity=\"0.3\">\n";
  for (const Tick& tick : axes.y_ticks()) {
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n", kLeft, axes.y(tick.value),
                       right, axes.y(tick.value));
  }
  for (const Tick& tick : axes.x_ticks()) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\"/>\n", axes.x(tick.value),
                       bottom, axes.x(tick.value), bottom + 5);
  }
  svg += fmt::format("</g>\n<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#8b949e\"/>\n", kLeft,
                     bottom, right, bottom);
  svg += "<g fill=\"#7d8590\">\n";
  for (const Tick& tick : axes.y_ticks()) {
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 9,
                       axes.y(tick.value) + 4.5, tick.label);
  }
  for (const Tick& tick : axes.x_ticks()) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", axes.x(tick.value),
                       bottom + 21, tick.label);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + right) / 2,
                     kHeight - 12, escape_markup(text.x_label));
  svg += fmt::format("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + bottom) / 2, escape_markup(text.y_label));
  return svg + fmt::format("<text x=\"{}\" y=\"28\" font-size=\"16\" font-weight=\"600\">{}</text>\n</g>\n",
                           kLeft, escape_markup(text.title));
}

std::string drawn_legend(std::span<const ChartSeries> series) {
  std::string svg;
  double x = kWidth - kRight;
  for (std::size_t i = series.size(); i-- > 0;) {
    x -= 7.2 * static_cast<double>(series[i].name.size());
    svg += fmt::format("<text x=\"{:.0f}\" y=\"28\" fill=\"#7d8590\">{}</text>\n", x,
                       escape_markup(series[i].name));
    svg += fmt::format(
        "<line x1=\"{:.0f}\" y1=\"23.5\" x2=\"{:.0f}\" y2=\"23.5\" stroke=\"{}\" stroke-width=\"3\" "
        "stroke-linecap=\"round\"/>\n",
        x - 28, x - 9, kColours[i]);
    x -= 48;
  }
  return svg;
}

}  // namespace

std::string line_chart_svg(std::span<const ChartSeries> series, const ChartText& text, bool log_y) {
  if (series.size() > std::size(kColours)) {
    throw invalid_argument("line_chart_svg", fmt::format("at most {} series", std::size(kColours)),
                           std::to_string(series.size()));
  }
  std::vector<std::vector<Point>> lines;
  for (const ChartSeries& one : series) {
    if (one.x.size() != one.y.size()) {
      throw invalid_argument(fmt::format("line_chart_svg: series \"{}\"", one.name), "as many x as y",
                             fmt::format("{} and {}", one.x.size(), one.y.size()));
    }
    lines.push_back(usable_points(one, log_y));
  }
  const Axes axes(lines, log_y);
  std::string svg = svg_start(kWidth, kHeight);
  svg += drawn_frame(axes, text);
  for (std::size_t i = 0; i < lines.size(); ++i) svg += drawn_series(lines[i], axes, kColours[i], log_y);
  return svg + drawn_legend(series) + "</svg>\n";
}

void write_line_chart(const std::filesystem::path& path, std::span<const ChartSeries> series,
                      const ChartText& text, bool log_y) {
  write_file_atomically(path, line_chart_svg(series, text, log_y));
}

}  // namespace meshgrad
