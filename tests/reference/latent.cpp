// SPDX-License-Identifier: Apache-2.0
#include "reference/latent.h"

#include <cmath>
#include <numbers>

namespace meshgrad::reference {

Matrix latent_noise(uint64_t seed, uint32_t op, const std::vector<int64_t>& keys, int64_t rows,
                    int64_t width) {
  LatentNoise noise = meshgrad::latent_noise({.seed = seed, .op = op});
  noise.row_keys = keys.empty() ? nullptr : keys.data();
  Matrix drawn(rows, width);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      const auto bits = noise.bits(noise.row_key(i), c / 2);
      const double radius = std::sqrt(-2.0 * std::log((bits[0] + 1.0) * 0x1p-32));
      const double angle = 2.0 * std::numbers::pi * (bits[1] * 0x1p-32);
      drawn.at(i, c) = radius * (c % 2 == 0 ? std::cos(angle) : std::sin(angle));
    }
  }
  return drawn;
}

Matrix sample_latent(const Matrix& moments, const Matrix& noise) {
  Matrix z = noise;
  for (int64_t i = 0; i < z.rows; ++i)
    for (int64_t c = 0; c < z.cols; ++c)
      z.at(i, c) = moments.at(i, c) + std::exp(moments.at(i, z.cols + c)) * noise.at(i, c);
  return z;
}

Matrix sample_latent_backward(const Matrix& moments, const Matrix& noise, const Matrix& d_z) {
  Matrix d(moments.rows, moments.cols);
  for (int64_t i = 0; i < d_z.rows; ++i) {
    for (int64_t c = 0; c < d_z.cols; ++c) {
      d.at(i, c) = d_z.at(i, c);
      d.at(i, d_z.cols + c) = d_z.at(i, c) * std::exp(moments.at(i, d_z.cols + c)) * noise.at(i, c);
    }
  }
  return d;
}

double latent_loss(const Matrix& moments, const std::vector<float>& weights) {
  const int64_t width = moments.cols / 2;
  double sum = 0.0;
  for (int64_t i = 0; i < moments.rows; ++i) {
    for (int64_t c = 0; c < width && weights[static_cast<size_t>(i)] != 0.0F; ++c) {
      const double mean = moments.at(i, c), log = moments.at(i, width + c);
      sum += 0.5 * static_cast<double>(weights[static_cast<size_t>(i)]) *
             (mean * mean + std::exp(2.0 * log) - 1.0 - 2.0 * log);
    }
  }
  return sum;
}

Matrix latent_loss_backward(const Matrix& moments, const std::vector<float>& weights, double seed) {
  const int64_t width = moments.cols / 2;
  Matrix d(moments.rows, moments.cols);
  for (int64_t i = 0; i < moments.rows; ++i) {
    const double scale = seed * static_cast<double>(weights[static_cast<size_t>(i)]);
    for (int64_t c = 0; c < width && scale != 0.0; ++c) {
      d.at(i, c) = scale * moments.at(i, c);
      d.at(i, width + c) = scale * (std::exp(2.0 * moments.at(i, width + c)) - 1.0);
    }
  }
  return d;
}

namespace {

/// Calls term(i, j, weight, linked) for each pair that counts, at both of its nodes, of a node with itself
/// once.
template <class Term>
void each_pair(const Pairs& pairs, const Term& term) {
  for (size_t graph = 0; graph + 1 < pairs.starts.size(); ++graph) {
    const double weights[] = {static_cast<double>(pairs.weights[2 * graph + 1]),
                              static_cast<double>(pairs.weights[2 * graph])};
    for (int32_t i = pairs.starts[graph]; i < pairs.starts[graph + 1]; ++i) {
      std::vector<bool> listed(static_cast<size_t>(pairs.starts[graph + 1]));
      for (int32_t e = pairs.offsets[static_cast<size_t>(i)]; e < pairs.offsets[static_cast<size_t>(i) + 1];
           ++e) {
        const int32_t j = pairs.others[static_cast<size_t>(e)];
        const bool linked = pairs.linked.empty() || pairs.linked[static_cast<size_t>(e)] != 0;
        term(i, j, weights[linked ? 1 : 0], linked);
        listed[static_cast<size_t>(j)] = true;
      }
      for (int32_t j = pairs.starts[graph]; j < pairs.starts[graph + 1] && pairs.all; ++j)
        if (!listed[static_cast<size_t>(j)]) term(i, j, weights[0], false);
    }
  }
}

double product(const Matrix& z, int64_t i, int64_t j) {
  double sum = 0.0;
  for (int64_t c = 0; c < z.cols; ++c) sum += z.at(i, c) * z.at(j, c);
  return sum;
}

}  // namespace

double pair_loss(const Matrix& z, const Pairs& pairs) {
  double sum = 0.0;
  each_pair(pairs, [&](int64_t i, int64_t j, double weight, bool linked) {
    const double x = linked ? -product(z, i, j) : product(z, i, j);
    sum += weight * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
  });
  return sum;
}

Matrix pair_loss_backward(const Matrix& z, const Pairs& pairs, double seed) {
  Matrix d(z.rows, z.cols);
  each_pair(pairs, [&](int64_t i, int64_t j, double weight, bool linked) {
    const double probability = 1.0 / (1.0 + std::exp(-product(z, i, j)));
    const double slope = seed * weight * (linked ? probability - 1.0 : probability);
    for (int64_t c = 0; c < z.cols; ++c) {
      d.at(i, c) += slope * z.at(j, c);
      d.at(j, c) += slope * z.at(i, c);
    }
  });
  return d;
}

}  // namespace meshgrad::reference
