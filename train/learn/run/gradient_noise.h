// SPDX-License-Identifier: Apache-2.0
// Gradient noise scale: about how many samples a step may have before more of them stop paying. Source:
// McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training" (2018), appendix A.1. The
// mean gradient of B samples has E|G_B|^2 = |G|^2 + S / B, where G is the true gradient and S the trace of
// the samples' covariance. Two batch sizes give both:
//   |G|^2 = (B_large |G_large|^2 - B_small |G_small|^2) / (B_large - B_small)
//   S = (|G_small|^2 - |G_large|^2) / (1 / B_small - 1 / B_large),   B_simple = S / |G|^2.
// One measurement is noisy and may be negative: S and |G|^2 are averaged before they are divided.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

#include <cstdint>
#include <optional>

namespace meshgrad {

struct GradientNoise {
  double noise = 0.0;   ///< S
  double signal = 0.0;  ///< |G|^2
};

/// The squared norm of the mean gradient of so many samples.
struct GradientSquare {
  double square = 0.0, samples = 0.0;
};

/// Throws InvalidArgument unless `large` has more samples than `small`, which has some.
GradientNoise gradient_noise(const GradientSquare& small, const GradientSquare& large);

/// One small batch that stands for those of all ranks: the mean of their squares, at the harmonic mean of
/// their samples. Ranks without samples do not count; nothing where none has any. Collective.
std::optional<GradientSquare> mean_square(Ranks& ranks, const GradientSquare& mine);

/// Exponential means of S and |G|^2. The first measurements count alike.
class GradientNoiseMean {
 public:
  void add(const GradientNoise& measured);
  /// B_simple in samples; nothing before the first measurement and while the mean of |G|^2 is not positive.
  std::optional<double> scale() const;

 private:
  GradientNoise mean_;
  int64_t measured_ = 0;
};

}  // namespace meshgrad
