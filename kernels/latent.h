// SPDX-License-Identifier: Apache-2.0
// latent: values drawn from a normal distribution of each row and column, and how far the distributions are
// from the standard normal one. Kingma, Welling, "Auto-encoding variational Bayes" (2014): the
// reparametrisation of section 2.4 and appendix B. Moments are [rows, 2 width]: the means, then the
// logarithms of the standard deviations. All values share one storage dtype (f32, f16 or bf16; f64 on the
// CPU). Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/kernels/noise_key.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// z = mean + exp(log deviation) noise, with the noise of latent_noise.h; the mean alone where the key draws
/// none. Nothing is saved.
struct SampleLatentForward {
  Rows rows;
  Tensor moments;  ///< [rows, 2 width]
  Tensor z;        ///< [rows, width], written
  NoiseKey key;
};
/// d_moments [+]= d_z for the mean, d_z exp(log deviation) noise (or 0) for the log deviation.
struct SampleLatentBackward {
  Rows rows;
  Tensor moments;
  Tensor d_z;        ///< [rows, width]
  Tensor d_moments;  ///< [rows, 2 width]
  bool accumulate = false;
  NoiseKey key;
};
/// sum [+]= sum over rows i and columns j of weights[i] (mean^2 + exp(2 log deviation) - 1 - 2 log
/// deviation) / 2, the Kullback-Leibler divergence from the standard normal distribution. Each row is
/// computed in the accumulation dtype, and rows are summed in f64 over slabs of fixed size, in order.
struct LatentLossForward {
  Rows rows;
  Tensor moments;
  Tensor weights;  ///< f32 [rows]; a row of weight 0 may hold anything
  Tensor sum;      ///< f64 scalar [1]
  bool accumulate = false;
};
/// d_moments = seed weights[i] (mean; exp(2 log deviation) - 1); 0 in rows of weight 0.
struct LatentLossBackward {
  Rows rows;
  Tensor moments, weights;  ///< as in forward
  Tensor seed;              ///< f64 scalar [1] in device memory: gradient of the loss by `sum`
  Tensor d_moments;         ///< [rows, 2 width]
  bool accumulate = false;  ///< add to what d_moments holds
};

Work work_of(const SampleLatentForward& args);
Work work_of(const SampleLatentBackward& args);
Work work_of(const LatentLossForward& args);
Work work_of(const LatentLossBackward& args);

struct LatentKernels {
  void (*sample_latent_forward)(const SampleLatentForward&, const Stream&);
  void (*sample_latent_backward)(const SampleLatentBackward&, const Stream&);
  void (*latent_loss_forward)(const LatentLossForward&, Runtime&, const Stream&);
  void (*latent_loss_backward)(const LatentLossBackward&, const Stream&);
};

namespace kernels {
void sample_latent_forward(const SampleLatentForward& args, const Stream& stream);
void sample_latent_backward(const SampleLatentBackward& args, const Stream& stream);
void latent_loss_forward(const LatentLossForward& args, Runtime& runtime, const Stream& stream);
void latent_loss_backward(const LatentLossBackward& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
