// SPDX-License-Identifier: Apache-2.0
// A small raster image: shapes and text with smooth edges, saved as PNG. What the pictures of fields are made
// of.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace meshgrad {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// Row-major, 8-bit sRGB, origin top left, y downwards; pixel (i, j) covers [i, i+1) x [j, j+1).
class Image {
 public:
  Image(int width, int height, Colour background);

  int width() const { return width_; }
  int height() const { return height_; }
  Colour at(int x, int y) const { return pixels_[index(x, y)]; }
  /// Ignored outside the image. `opacity` from 0 to 1.
  void blend(int x, int y, Colour colour, double opacity = 1);
  void fill_rectangle(int x, int y, int width, int height, Colour colour);
  /// Straight, round ends, smooth edges.
  void draw_line(double x0, double y0, double x1, double y1, double thickness, Colour colour);

  const std::vector<Colour>& pixels() const { return pixels_; }

 private:
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x);
  }
  int width_, height_;
  std::vector<Colour> pixels_;
};

/// Draws printable ASCII in the built-in face, strokes on a small grid; `size` is the height of a
/// capital in pixels. (x, y) is the left end of the baseline. Other characters appear as a small box.
void draw_text(Image& image, double x, double y, double size, std::string_view text, Colour colour);
/// The width draw_text needs.
double text_width(double size, std::string_view text);

/// Saves through AtomicFile; DataError when the file cannot be written.
void write_png(const std::filesystem::path& path, const Image& image);

/// Perceptually even colour maps, 0 to 1, dark to bright; values outside are clamped, NaN is grey.
enum class ColourMap { viridis, magma };
Colour colour_of(ColourMap map, double value);

}  // namespace meshgrad
