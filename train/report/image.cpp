// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/report/image.h>
#include <png.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

// Ten even steps of each map; between them the colour is interpolated. The maps are those of S. van der Walt
// and N. Smith for matplotlib (public domain).
constexpr std::array<Colour, 10> kViridis = {{{68, 1, 84},
                                              {72, 40, 120},
                                              {62, 73, 137},
                                              {49, 104, 142},
                                              {38, 130, 142},
                                              {31, 158, 137},
                                              {53, 183, 121},
                                              {110, 206, 88},
                                              {181, 222, 43},
                                              {253, 231, 37}}};
constexpr std::array<Colour, 10> kMagma = {{{0, 0, 4},
                                            {24, 15, 61},
                                            {68, 15, 118},
                                            {114, 31, 129},
                                            {158, 47, 127},
                                            {205, 64, 113},
                                            {241, 96, 93},
                                            {253, 150, 104},
                                            {254, 202, 141},
                                            {252, 253, 191}}};
constexpr Colour kNotANumber = {150, 150, 150};

std::uint8_t mixed(std::uint8_t from, std::uint8_t to, double part) {
  return static_cast<std::uint8_t>(std::lround(from + (to - from) * part));
}

Colour mixed(Colour from, Colour to, double part) {
  return {mixed(from.red, to.red, part), mixed(from.green, to.green, part), mixed(from.blue, to.blue, part)};
}

double distance_to_segment(double x, double y, double x0, double y0, double x1, double y1) {
  const double dx = x1 - x0, dy = y1 - y0;
  const double length = dx * dx + dy * dy;
  const double along = length > 0 ? std::clamp(((x - x0) * dx + (y - y0) * dy) / length, 0.0, 1.0) : 0.0;
  return std::hypot(x - (x0 + along * dx), y - (y0 + along * dy));
}

}  // namespace

Image::Image(int width, int height, Colour background)
    : width_(width),
      height_(height),
      pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), background) {}

void Image::blend(int x, int y, Colour colour, double opacity) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  Colour& pixel = pixels_[index(x, y)];
  pixel = mixed(pixel, colour, std::clamp(opacity, 0.0, 1.0));
}

void Image::fill_rectangle(int x, int y, int width, int height, Colour colour) {
  for (int j = std::max(y, 0); j < std::min(y + height, height_); ++j) {
    for (int i = std::max(x, 0); i < std::min(x + width, width_); ++i) pixels_[index(i, j)] = colour;
  }
}

void Image::draw_line(double x0, double y0, double x1, double y1, double thickness, Colour colour) {
  const double radius = thickness / 2;
  const auto first = [&](double a, double b) {
    return std::max(static_cast<int>(std::min(a, b) - radius - 1), 0);
  };
  const auto last = [&](double a, double b, int size) {
    return std::min(static_cast<int>(std::max(a, b) + radius + 1), size - 1);
  };
  for (int y = first(y0, y1); y <= last(y0, y1, height_); ++y) {
    for (int x = first(x0, x1); x <= last(x0, x1, width_); ++x) {
      const double cover = radius + 0.5 - distance_to_segment(x + 0.5, y + 0.5, x0, y0, x1, y1);
      if (cover > 0) blend(x, y, colour, cover);
    }
  }
}

Colour colour_of(ColourMap map, double value) {
  if (std::isnan(value)) return kNotANumber;
  const auto& anchors = map == ColourMap::viridis ? kViridis : kMagma;
  const double place = std::clamp(value, 0.0, 1.0) * static_cast<double>(anchors.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), anchors.size() - 2);
  return mixed(anchors[below], anchors[below + 1], place - static_cast<double>(below));
}

void write_png(const std::filesystem::path& path, const Image& image) {
  static_assert(sizeof(Colour) == 3);
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width());
  header.height = static_cast<png_uint_32>(image.height());
  header.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::vector<std::byte> encoded(bytes);
  if (png_image_write_to_memory(&header, encoded.data(), &bytes, 0, image.pixels().data(), 0, nullptr) == 0) {
    throw internal_error(fmt::format("libpng: {}", header.message));
  }
  write_file_atomically(path, std::span<const std::byte>(encoded.data(), bytes));
}

}  // namespace meshgrad
