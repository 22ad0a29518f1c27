// SPDX-License-Identifier: Apache-2.0
// A field on a grid of pixels, its colours, and the PNG of both.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace meshgrad {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// Perceptually uniform colour maps, dark to bright.
enum class ColourMap { viridis, magma };
std::string_view name_of(ColourMap map);
/// Colours at equal distances from 0 to 1; between them colours are interpolated linearly.
std::span<const Colour> stops_of(ColourMap map);
/// `value` from 0 to 1 is clamped; NaN is grey.
Colour colour_of(ColourMap map, double value);

/// A byte a pixel, row-major, origin top left.
struct FieldImage {
  static constexpr std::uint8_t kNoMesh = 0;     ///< transparent
  static constexpr std::uint8_t kNotFinite = 1;  ///< grey
  static constexpr std::uint8_t kLowest = 2;     ///< from here to 255: 0 to 1 of the colour map

  int width = 0, height = 0;
  std::vector<std::uint8_t> pixels;  ///< [height, width]

  /// The byte of a value, where 0 and 1 are the ends of the colour map.
  static std::uint8_t byte_of(double value);
};

/// With the colour map as the palette.
std::vector<std::byte> encode_png(const FieldImage& image, ColourMap map);

}  // namespace meshgrad
