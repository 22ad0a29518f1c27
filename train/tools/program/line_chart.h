// SPDX-License-Identifier: Apache-2.0
// Line charts as SVG: the loss curve.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

struct ChartSeries {
  std::string name;       ///< in the legend
  std::vector<double> x;  ///< as many as y
  std::vector<double> y;  ///< points that are not finite, or not positive on a log axis, are left out
};

struct ChartText {
  std::string title, x_label, y_label;
};

/// A self-contained SVG (no script, no font file, no external reference) on a transparent background, in
/// colours that are legible on white and on black. A series of many points is drawn as its mean within each
/// of up to 250 slices of the x axis (geometric on a log axis), inside a pale band from its least to its
/// greatest value there; one of few points as a line through markers. At most four series; InvalidArgument
/// otherwise or when x and y differ in length.
std::string line_chart_svg(std::span<const ChartSeries> series, const ChartText& text, bool log_y = true);

/// Writes line_chart_svg to a file, atomically.
void write_line_chart(const std::filesystem::path& path, std::span<const ChartSeries> series,
                      const ChartText& text, bool log_y = true);

}  // namespace meshgrad
