// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/run/gradient_noise.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

GradientNoise gradient_noise(const GradientSquare& small, const GradientSquare& large) {
  if (!(small.samples > 0.0 && small.samples < large.samples)) {
    throw invalid_argument("gradient_noise", "a small batch and a larger one",
                           fmt::format("{} and {} samples", small.samples, large.samples));
  }
  return {.noise = (small.square - large.square) / (1.0 / small.samples - 1.0 / large.samples),
          .signal = (large.samples * large.square - small.samples * small.square) /
                    (large.samples - small.samples)};
}

/// Of batches of other sizes the mean square is |G|^2 + S times the mean of 1 / samples.
std::optional<GradientSquare> mean_square(Ranks& ranks, const GradientSquare& mine) {
  double squares = 0.0, inverse = 0.0, batches = 0.0;
  for (const GradientSquare& of_rank : all_gather(ranks, mine, "gradient noise")) {
    if (of_rank.samples == 0.0) continue;
    squares += of_rank.square;
    inverse += 1.0 / of_rank.samples;
    batches += 1.0;
  }
  if (batches == 0.0) return std::nullopt;
  return GradientSquare{squares / batches, batches / inverse};
}

void GradientNoiseMean::add(const GradientNoise& measured) {
  constexpr double kLatest = 0.05;
  const double share = std::max(kLatest, 1.0 / static_cast<double>(++measured_));
  mean_.noise += share * (measured.noise - mean_.noise);
  mean_.signal += share * (measured.signal - mean_.signal);
}

std::optional<double> GradientNoiseMean::scale() const {
  if (measured_ == 0 || mean_.signal <= 0.0) return std::nullopt;
  return std::max(0.0, mean_.noise) / mean_.signal;
}

}  // namespace meshgrad
