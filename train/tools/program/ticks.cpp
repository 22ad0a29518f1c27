// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/tools/program/ticks.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

/// "0.002", "1.5", "20000"; "2e-05" and "3e+06" where zeros would hide the number.
std::string label_of(double value, double step, double largest) {
  if (value == 0) return "0";
  if (step < 1e-4 || largest >= 1e6) {
    const int digits = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9) -
                                        std::floor(std::log10(step) + 1e-9));
    return fmt::format("{:.{}e}", value, std::max(digits, 0));
  }
  return fmt::format("{:.{}f}", value, std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9))));
}

}  // namespace

std::vector<Tick> linear_ticks(double low, double high, int count) {
  std::vector<Tick> ticks;
  const double spread = high - low;
  if (!(low < high) || !std::isfinite(spread) || count < 1) return ticks;
  const double power = std::pow(10.0, std::floor(std::log10(spread / count)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = power * factor;
    if (spread / step <= count) break;
  }
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  // Ends that differ by little more than rounding have no round numbers between them, and beyond 2^53 steps
  // from zero the steps cannot be counted.
  if (!(step > 0) || last - first > 4.0 * count || std::max(std::abs(first), std::abs(last)) > 1e15)
    return ticks;
  const double largest = std::max(std::abs(low), std::abs(high));
  for (double i = first; i <= last; ++i) ticks.push_back({i * step, label_of(i * step, step, largest)});
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high) {
  std::vector<Tick> ticks;
  if (!(low > 0 && low < high) || !std::isfinite(high)) return ticks;
  const int first = static_cast<int>(std::floor(std::log10(low))),
            last = static_cast<int>(std::ceil(std::log10(high)));
  const int stride = std::max(1, (last - first) / 8);
  const auto add = [&](int exponent, int factor) {
    const double value = factor * std::pow(10.0, exponent);
    if (value < low * (1 - 1e-9) || value > high * (1 + 1e-9)) return;
    ticks.push_back({value, exponent >= -3 && exponent <= 4 ? fmt::format("{:g}", value)
                                                            : fmt::format("{}e{}", factor, exponent)});
  };
  for (int exponent = first; exponent <= last; exponent += stride) add(exponent, 1);
  if (ticks.size() >= 3) return ticks;
  ticks.clear();
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const int factor : {1, 2, 5}) add(exponent, factor);
  }
  return ticks.size() >= 2 ? ticks : linear_ticks(low, high, 4);
}

}  // namespace meshgrad
