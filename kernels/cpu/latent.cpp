// SPDX-License-Identifier: Apache-2.0
// Plain loops: the noise costs most, and latent values are few.
#include <meshgrad/kernels/cpu/slab_sums.h>
#include <meshgrad/kernels/latent_noise.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kLatentRowsPerTask = 64;

/// Calls body(column, noise) for the columns of a row.
template <class A, class Body>
void each_noise(const LatentNoise& noise, int64_t row, int64_t width, const Body& body) {
  if (!noise.draws) {
    for (int64_t c = 0; c < width; ++c) body(c, A(0));
    return;
  }
  const uint64_t row_key = noise.row_key(row);
  for (int64_t c = 0; c < width; c += 2) {
    const auto bits = noise.bits(row_key, c / 2);
    const A radius = std::sqrt(A(-2) * std::log((static_cast<A>(bits[0]) + A(1)) * A(0x1p-32)));
    const A angle = A(2) * std::numbers::pi_v<A> * (static_cast<A>(bits[1]) * A(0x1p-32));
    body(c, radius * std::cos(angle));
    if (c + 1 < width) body(c + 1, radius * std::sin(angle));
  }
}

template <class Body>
void each_row(const Stream& stream, int64_t rows, const Body& body) {
  stream.parallel_for((rows + kLatentRowsPerTask - 1) / kLatentRowsPerTask, [&](int64_t task) {
    const int64_t begin = task * kLatentRowsPerTask;
    for (int64_t i = begin; i < std::min(rows, begin + kLatentRowsPerTask); ++i) body(i);
  });
}

/// to [+]= value.
template <class S, class A>
void put(S& to, A value, bool add) {
  to = S(add ? static_cast<A>(to) + value : value);
}

template <class S>
void sample_latent_forward_of(const SampleLatentForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.z.width();
  const LatentNoise noise = latent_noise(args.key);
  each_row(stream, args.rows.value(), [&](int64_t i) {
    const S* const mean = args.moments.data<S>() + 2 * i * width;
    S* const z = args.z.data<S>() + i * width;
    each_noise<A>(noise, i, width, [&](int64_t c, A drawn) {
      const A deviation = noise.draws ? std::exp(static_cast<A>(mean[width + c])) : A(0);
      z[c] = S(static_cast<A>(mean[c]) + deviation * drawn);
    });
  });
}

template <class S>
void sample_latent_backward_of(const SampleLatentBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.d_z.width();
  const LatentNoise noise = latent_noise(args.key);
  each_row(stream, args.rows.value(), [&](int64_t i) {
    const S* const mean = args.moments.data<S>() + 2 * i * width;
    const S* const d_z = args.d_z.data<S>() + i * width;
    S* const to = args.d_moments.data<S>() + 2 * i * width;
    each_noise<A>(noise, i, width, [&](int64_t c, A drawn) {
      const auto gradient = static_cast<A>(d_z[c]);
      put(to[c], gradient, args.accumulate);
      const A deviation = noise.draws ? std::exp(static_cast<A>(mean[width + c])) : A(0);
      put(to[width + c], gradient * (deviation * drawn), args.accumulate);
    });
  });
}

template <class S>
void latent_loss_forward_of(const LatentLossForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.moments.width() / 2;
  const float* weights = args.weights.data<float>();
  const double total = slab_sum(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      if (weights[i] == 0.0F) continue;
      const S* const mean = args.moments.data<S>() + 2 * i * width;
      A of_row = A(0);
      for (int64_t c = 0; c < width; ++c) {
        const auto m = static_cast<A>(mean[c]), l = static_cast<A>(mean[width + c]);
        of_row += m * m + std::exp(A(2) * l) - A(1) - A(2) * l;
      }
      sum += 0.5 * static_cast<double>(weights[i]) * static_cast<double>(of_row);
    }
    return sum;
  });
  store_sum(stream, args.sum, total, args.accumulate);
}

template <class S>
void latent_loss_backward_of(const LatentLossBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.moments.width() / 2;
  const float* weights = args.weights.data<float>();
  each_row(stream, args.rows.value(), [&](int64_t i) {
    const S* const mean = args.moments.data<S>() + 2 * i * width;
    S* const to = args.d_moments.data<S>() + 2 * i * width;
    const A scale = static_cast<A>(*args.seed.data<double>()) * static_cast<A>(weights[i]);
    for (int64_t c = 0; c < width; ++c) {
      const A of_mean = weights[i] == 0.0F ? A(0) : scale * static_cast<A>(mean[c]);
      const A of_log =
          weights[i] == 0.0F ? A(0) : scale * (std::exp(A(2) * static_cast<A>(mean[width + c])) - A(1));
      put(to[c], of_mean, args.accumulate);
      put(to[width + c], of_log, args.accumulate);
    }
  });
}

}  // namespace

const LatentKernels latent_kernels{
    .sample_latent_forward =
        [](const SampleLatentForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.z.dtype(), [&]<class S>() { sample_latent_forward_of<S>(args, stream); });
        },
    .sample_latent_backward =
        [](const SampleLatentBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.d_z.dtype(),
                               [&]<class S>() { sample_latent_backward_of<S>(args, stream); });
        },
    .latent_loss_forward =
        [](const LatentLossForward& args, Runtime&, const Stream& stream) {
          dispatch_cpu_storage(args.moments.dtype(),
                               [&]<class S>() { latent_loss_forward_of<S>(args, stream); });
        },
    .latent_loss_backward =
        [](const LatentLossBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.moments.dtype(),
                               [&]<class S>() { latent_loss_backward_of<S>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
