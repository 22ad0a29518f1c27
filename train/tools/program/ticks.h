// SPDX-License-Identifier: Apache-2.0
// Round numbers for axes and colour bars.
#pragma once
#include <string>
#include <vector>

namespace meshgrad {

struct Tick {
  double value = 0;
  std::string label;
};

/// About `count` multiples of 1, 2 or 5 times a power of ten within [low, high], labelled with only the
/// digits that distinguish them. Empty unless low < high and both are finite.
std::vector<Tick> linear_ticks(double low, double high, int count);

/// Powers of ten within [low, high]; with fewer than three, also their 2- and 5-fold; linear ticks where even
/// those are too few. Needs 0 < low < high, else empty.
std::vector<Tick> log_ticks(double low, double high);

}  // namespace meshgrad
