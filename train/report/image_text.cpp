// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/report/image.h>

#include <algorithm>

namespace meshgrad {
namespace {

// From ' ' to '~', one glyph a row: strokes through points "xy" of a grid 5 wide (x = 0..4) and 9 high (y = 0
// the top of a capital, 2 of a small letter, 6 the baseline, 8 a descender); ',' begins a new stroke.
constexpr std::array<std::string_view, 95> kGlyphs = {
    "",
    "00 04,06 06",
    "00 01,20 21",
    "10 16,30 36,02 42,04 44",
    "41 30 10 01 02 13 33 44 45 36 16 05,20 26",
    "06 40,00 10 11 01 00,35 45 46 36 35",
    "46 02 01 10 20 31 04 05 16 26 44",
    "00 01",
    "10 01 05 16",
    "00 11 15 06",
    "21 25,02 44,42 04",
    "03 43,21 25",
    "16 07",
    "03 33",
    "06 06",
    "06 30",
    "10 20 31 35 26 16 05 01 10",
    "01 10 16,06 26",
    "01 10 20 31 32 06 36",
    "01 10 20 31 32 23 13,23 34 35 26 16 05",
    "26 20 04 34",
    "30 00 03 23 34 35 26 16 05",
    "31 20 10 01 05 16 26 35 34 23 03",
    "00 30 31 16",
    "13 02 01 10 20 31 32 23 13 04 05 16 26 35 34 23",
    "05 16 26 35 31 20 10 01 02 13 33",
    "03 03,06 06",
    "13 13,16 07",
    "31 03 35",
    "02 32,04 34",
    "01 33 05",
    "01 10 20 31 32 14,16 16",
    "34 23 24 34 32 12 03 05 16 36,34 44 42 30 10 01 05",
    "06 20 46,14 34",
    "00 06 36 45 44 33 03,33 42 41 30 00",
    "41 30 10 01 05 16 36 45",
    "00 06 26 44 42 20 00",
    "40 00 06 46,03 33",
    "40 00 06,03 33",
    "41 30 10 01 05 16 36 45 43 23",
    "00 06,40 46,03 43",
    "00 20,10 16,06 26",
    "30 35 26 16 05",
    "00 06,40 03 46",
    "00 06 36",
    "06 00 23 40 46",
    "06 00 46 40",
    "10 30 41 45 36 16 05 01 10",
    "06 00 30 41 42 33 03",
    "10 30 41 45 36 16 05 01 10,24 46",
    "06 00 30 41 42 33 03,23 46",
    "41 30 10 01 02 13 33 44 45 36 16 05",
    "00 40,20 26",
    "00 05 16 36 45 40",
    "00 26 40",
    "00 16 22 36 40",
    "00 46,40 06",
    "00 23 40,23 26",
    "00 40 06 46",
    "10 00 07 17",
    "00 36",
    "00 10 17 07",
    "02 20 42",
    "07 47",
    "00 11",
    "12 22 33 36,34 14 05 16 26 35",
    "00 06,03 12 22 33 35 26 16 05",
    "33 22 12 03 05 16 26 35",
    "30 36,33 22 12 03 05 16 26 35",
    "04 34 33 22 12 03 05 16 26 35",
    "20 11 16,02 22",
    "32 37 28 18 07,33 22 12 03 05 16 26 35",
    "00 06,03 12 22 33 36",
    "02 06,00 00",
    "12 17 08,10 10",
    "00 06,32 04 36",
    "00 06",
    "02 06,03 12 23 26,23 32 43 46",
    "02 06,03 12 22 33 36",
    "12 22 33 35 26 16 05 03 12",
    "02 08,03 12 22 33 35 26 16 05",
    "32 38,33 22 12 03 05 16 26 35",
    "02 06,03 12 22",
    "33 22 12 03 14 24 35 26 16 05",
    "10 15 26,02 22",
    "02 05 16 26 35,32 36",
    "02 26 42",
    "02 16 23 36 42",
    "02 36,32 06",
    "02 26,42 18 08",
    "02 32 06 36",
    "20 11 12 03 14 15 26",
    "00 07",
    "00 11 12 23 14 15 06",
    "03 12 23 32",
};
constexpr std::string_view kUnknown = "00 40 46 06 00";
constexpr double kCapitalUnits = 6;
constexpr double kGapUnits = 1.8;
constexpr double kSpaceUnits = 1.4;
constexpr double kStroke = 0.14;  // of the capital's height

std::string_view glyph_of(char c) {
  return c < ' ' || c > '~' ? kUnknown : kGlyphs[static_cast<std::size_t>(c - ' ')];
}

double glyph_width(std::string_view glyph) {
  if (glyph.empty()) return kSpaceUnits;
  int widest = 0;
  for (std::size_t i = 0; i + 1 < glyph.size(); i += 3) widest = std::max(widest, glyph[i] - '0');
  return widest;
}

}  // namespace

double text_width(double size, std::string_view text) {
  double units = 0;
  for (const char c : text) units += glyph_width(glyph_of(c)) + kGapUnits;
  return text.empty() ? 0 : (units - kGapUnits) * size / kCapitalUnits;
}

void draw_text(Image& image, double x, double y, double size, std::string_view text, Colour colour) {
  const double unit = size / kCapitalUnits;
  for (const char c : text) {
    const std::string_view glyph = glyph_of(c);
    const auto px = [&](std::size_t i) { return x + (glyph[i] - '0') * unit; };
    const auto py = [&](std::size_t i) { return y + (glyph[i + 1] - '0' - kCapitalUnits) * unit; };
    for (std::size_t i = 0; i + 4 < glyph.size(); i += 3) {
      if (glyph[i + 2] == ' ') image.draw_line(px(i), py(i), px(i + 3), py(i + 3), size * kStroke, colour);
    }
    x += (glyph_width(glyph) + kGapUnits) * unit;
  }
}

}  // namespace meshgrad
