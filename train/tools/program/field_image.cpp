// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/field_image.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

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

using Bytes = std::vector<std::uint8_t>;

void append_number(Bytes& bytes, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(number >> shift));
}

/// A chunk of a PNG file (W3C, Portable Network Graphics, section 5.3): length, type, data, CRC of type and
/// data.
void append_chunk(Bytes& png, std::string_view type, const Bytes& data) {
  append_number(png, static_cast<std::uint32_t>(data.size()));
  const std::size_t checked = png.size();
  png.insert(png.end(), type.begin(), type.end());
  png.insert(png.end(), data.begin(), data.end());
  const uLong sum = crc32(0, png.data() + checked, static_cast<uInt>(png.size() - checked));
  append_number(png, static_cast<std::uint32_t>(sum));
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
  Bytes palette(3);  // red, green, blue; those of kNoMesh are not seen
  for (std::size_t i = FieldImage::kNotFinite; i < 256; ++i) {
    const double value = i == FieldImage::kNotFinite ? std::numeric_limits<double>::quiet_NaN()
                                                     : (static_cast<double>(i) - FieldImage::kLowest) /
                                                           (kHighestByte - FieldImage::kLowest);
    const Colour colour = colour_of(map, value);
    palette.insert(palette.end(), {colour.red, colour.green, colour.blue});
  }
  Bytes header;
  append_number(header, static_cast<std::uint32_t>(image.width));
  append_number(header, static_cast<std::uint32_t>(image.height));
  header.insert(header.end(),
                {8, 3, 0, 0, 0});  // bits of an index into the palette; deflate, no filters, not interlaced
  Bytes rows;
  const auto width = static_cast<std::ptrdiff_t>(image.width);
  for (auto row = image.pixels.begin(); row != image.pixels.end(); row += width) {
    rows.push_back(0);  // no filter
    rows.insert(rows.end(), row, row + width);
  }
  uLongf size = compressBound(rows.size());
  Bytes packed(size);
  if (compress(packed.data(), &size, rows.data(), rows.size()) != Z_OK)
    throw internal_error("zlib: a picture was not compressed");
  packed.resize(size);

  Bytes png = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  append_chunk(png, "IHDR", header);
  append_chunk(png, "PLTE", palette);
  append_chunk(png, "tRNS", {0});  // of kNoMesh; the other colours are opaque
  append_chunk(png, "IDAT", packed);
  append_chunk(png, "IEND", {});
  const auto bytes = std::as_bytes(std::span(png));
  return {bytes.begin(), bytes.end()};
}

}  // namespace meshgrad
