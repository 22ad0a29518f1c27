// SPDX-License-Identifier: Apache-2.0
// Reference implementations of latent and pair_loss.
#pragma once
#include <meshgrad/kernels/latent_noise.h>

#include "reference/matrix.h"

namespace meshgrad::reference {

/// [rows, width]; `keys`: of the rows, empty: their index.
Matrix latent_noise(uint64_t seed, uint32_t op, const std::vector<int64_t>& keys, int64_t rows,
                    int64_t width);
Matrix sample_latent(const Matrix& moments, const Matrix& noise);
Matrix sample_latent_backward(const Matrix& moments, const Matrix& noise, const Matrix& d_z);

double latent_loss(const Matrix& moments, const std::vector<float>& weights);
Matrix latent_loss_backward(const Matrix& moments, const std::vector<float>& weights, double seed);

/// As NodePairs; empty `linked`: all are.
struct Pairs {
  std::vector<int32_t> starts, offsets, others;
  std::vector<uint8_t> linked;
  std::vector<float> weights;
  bool all = false;
};
double pair_loss(const Matrix& z, const Pairs& pairs);
Matrix pair_loss_backward(const Matrix& z, const Pairs& pairs, double seed);

}  // namespace meshgrad::reference
