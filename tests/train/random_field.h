// SPDX-License-Identifier: Apache-2.0
// Random fields for gradients against finite differences, and their products.
#pragma once
#include <random>
#include <vector>

namespace meshgrad::test {

/// Values of f32 in [-scale, scale].
inline std::vector<double> random_field(size_t size, unsigned seed, double scale = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<double> field(size);
  for (double& value : field) value = static_cast<double>(static_cast<float>(scale) * draw(random));
  return field;
}

inline double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace meshgrad::test
