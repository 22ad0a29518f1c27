// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/field_image.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace meshgrad {
namespace {

// Ten even steps of each map, after S. van der Walt and N. Smith for matplotlib (public domain).
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
constexpr Colour kGrey = {150, 150, 150};
constexpr double kHighestByte = 255;

std::uint8_t interpolate(std::uint8_t from, std::uint8_t to, double part) {
  return static_cast<std::uint8_t>(std::lround(from + (to - from) * part));
}

}  // namespace

std::string_view name_of(ColourMap map) { return map == ColourMap::viridis ? "viridis" : "magma"; }

std::span<const Colour> stops_of(ColourMap map) { return map == ColourMap::viridis ? kViridis : kMagma; }

Colour colour_of(ColourMap map, double value) {
  if (std::isnan(value)) return kGrey;
  const std::span<const Colour> stops = stops_of(map);
  const double place = std::clamp(value, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), stops.size() - 2);
  const Colour from = stops[below], to = stops[below + 1];
  const double part = place - static_cast<double>(below);
  return {interpolate(from.red, to.red, part), interpolate(from.green, to.green, part),
          interpolate(from.blue, to.blue, part)};
}

std::uint8_t FieldImage::byte_of(double value) {
  if (!std::isfinite(value)) return kNotFinite;
  return static_cast<std::uint8_t>(
      std::lround(kLowest + std::clamp(value, 0.0, 1.0) * (kHighestByte - kLowest)));
}

std::vector<std::byte> encode_png(const FieldImage& image, ColourMap map) {
  std::array<std::array<std::uint8_t, 4>, 256> palette{};  // red, green, blue, alpha
  for (std::size_t i = FieldImage::kNotFinite; i < palette.size(); ++i) {
    const double value = i == FieldImage::kNotFinite ? std::numeric_limits<double>::quiet_NaN()
                                                     : (static_cast<double>(i) - FieldImage::kLowest) /
                                                           (kHighestByte - FieldImage::kLowest);
    const Colour colour = colour_of(map, value);
    palette[i] = {colour.red, colour.green, colour.blue, 255};
  }
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGBA_COLORMAP;
  header.colormap_entries = palette.size();
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::vector<std::byte> encoded(bytes);
  if (png_image_write_to_memory(&header, encoded.data(), &bytes, 0, image.pixels.data(), 0, palette.data()) ==
      0)
    throw internal_error(fmt::format("libpng: {}", header.message));
  encoded.resize(bytes);
  return encoded;
}

}  // namespace meshgrad
