// SPDX-License-Identifier: Apache-2.0
#include "reference/latent.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "support.h"

namespace meshgrad::test {
namespace {

constexpr double kLatentSeed = 0.37;

Tensor floats(Runtime& runtime, const std::vector<float>& values) {
  const Tensor made = exact_tensor(runtime, {std::ssize(values)}, DType::f32);
  return values.empty()
             ? made
             : to_vector(runtime, Matrix(1, std::ssize(values), {values.begin(), values.end()}), DType::f32);
}

/// All four kernels on one batch.
struct LatentRun {
  Tensor z, d_moments, d_loss;
  double sum = 0.0;
  LatentRun(const Backend& backend, Runtime& runtime, const Rows& rows, const Tensor& moments,
            const Tensor& d_z, const std::vector<float>& weights, const Tensor& keys, bool accumulate = false)
      : z(unwritten(runtime, {moments.rows(), moments.width() / 2}, moments.dtype())),
        d_moments(unwritten(runtime, moments.shape(), moments.dtype())),
        d_loss(unwritten(runtime, moments.shape(), moments.dtype())) {
    const LatentKernels& kernels = backend.kernels->latent;
    const Stream& stream = runtime.stream();
    const NoiseKey key{.seed = 11, .op = 3, .row_keys = keys};
    const Tensor row_weights = floats(runtime, weights), total = unwritten(runtime, {1}, DType::f64);
    const Tensor seed = to_vector(runtime, Matrix(1, 1, {kLatentSeed}), DType::f64);
    kernels.sample_latent_forward({.rows = rows, .moments = moments, .z = z, .key = key}, stream);
    SampleLatentBackward back{
        .rows = rows, .moments = moments, .d_z = d_z, .d_moments = d_moments, .key = key};
    kernels.sample_latent_backward(back, stream);
    LatentLossForward loss{.rows = rows, .moments = moments, .weights = row_weights, .sum = total};
    kernels.latent_loss_forward(loss, runtime, stream);
    LatentLossBackward loss_back{
        .rows = rows, .moments = moments, .weights = row_weights, .seed = seed, .d_moments = d_loss};
    kernels.latent_loss_backward(loss_back, stream);
    if (accumulate) {
      back.accumulate = loss.accumulate = loss_back.accumulate = true;
      kernels.sample_latent_backward(back, stream);
      kernels.latent_loss_forward(loss, runtime, stream);
      kernels.latent_loss_backward(loss_back, stream);
    }
    sum = to_matrix(total).at(0, 0);
  }
};

Tensor to_keys(Runtime& runtime, const std::vector<int64_t>& keys) {
  return Tensor::from<int64_t>(runtime, keys, Shape{std::ssize(keys)}, Tag::data, "row keys");
}

TEST_CASE("latent values and losses agree with the reference") {
  uint64_t seed = 9100;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t width : {1, 2, 7, 16, 33}) {
        for (const int64_t rows : backend.sizes_and(width <= 2, 20011)) {
          RandomMatrices random(seed++);
          CAPTURE(name_of(dtype));
          CAPTURE(width);
          CAPTURE(rows);
          Runtime runtime = backend.runtime();
          const Matrix moments = stored_as(dtype, random.normal(rows, 2 * width));
          const Matrix d_z = stored_as(dtype, random.normal(rows, width));
          std::vector<float> weights;
          std::vector<int64_t> keys;
          for (int64_t i = 0; i < rows; ++i) weights.push_back(0.25F * static_cast<float>(i % 5));
          for (int64_t i = 0; i < rows && width != 2; ++i)
            keys.push_back(i % 2 == 0 ? i * 77 : -i - (int64_t{1} << 40));
          const bool twice = width == 7;
          const LatentRun run(backend, runtime, rows, to_tensor(runtime, moments, dtype),
                              to_tensor(runtime, d_z, dtype), weights,
                              keys.empty() ? Tensor() : to_keys(runtime, keys), twice);
          const Matrix noise = reference::latent_noise(11, 3, keys, rows, width);
          const double times = twice ? 2.0 : 1.0;
          const auto scaled = [&](Matrix matrix) {
            for (double& value : matrix.v) value *= times;
            return matrix;
          };
          CHECK(difference(run.z, reference::sample_latent(moments, noise), 2, 8.0) == "");
          CHECK(difference(run.d_moments, scaled(reference::sample_latent_backward(moments, noise, d_z)), 2,
                           8.0) == "");
          const double loss = times * reference::latent_loss(moments, weights);
          CHECK(std::abs(run.sum - loss) <=
                tolerance(accumulator_of(dtype), rows * width, 64.0) + tolerance(DType::f64, rows, loss));
          CHECK(difference(run.d_loss, scaled(reference::latent_loss_backward(moments, weights, kLatentSeed)),
                           2, 8.0) == "");
        }
      }
    }
  }
}

TEST_CASE("latent noise is standard normal, different by op and seed") {
  const int64_t rows = 5000, width = 5;
  const Matrix noise = reference::latent_noise(1, 0, {}, rows, width);
  double mean = 0.0, square = 0.0, neighbours = 0.0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      mean += noise.at(i, c), square += noise.at(i, c) * noise.at(i, c);
      if (c > 0) neighbours += noise.at(i, c) * noise.at(i, c - 1);
    }
  }
  const auto count = static_cast<double>(rows * width);
  CHECK(std::abs(mean / count) < 4.0 / std::sqrt(count));
  CHECK(std::abs(square / count - 1.0) < 4.0 * std::sqrt(2.0 / count));
  CHECK(std::abs(neighbours / count) < 4.0 / std::sqrt(count));
  CHECK(reference::latent_noise(2, 0, {}, 1, 1).at(0, 0) != noise.at(0, 0));
  CHECK(reference::latent_noise(1, 1, {}, 1, 1).at(0, 0) != noise.at(0, 0));
  CHECK(reference::latent_noise(1, 0, {4}, 1, 2).at(0, 1) == noise.at(4, 1));
}

TEST_CASE("latent values without noise are the means") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      const Tensor moments = to_tensor(runtime, Matrix(2, 2, {0.5, 1000.0, -2.0, 3.0}), dtype);
      const Tensor z = unwritten(runtime, {2, 1}, dtype), d_moments = unwritten(runtime, {2, 2}, dtype);
      const NoiseKey key{.draws = false};
      const LatentKernels& kernels = backend.kernels->latent;
      kernels.sample_latent_forward({.rows = 2, .moments = moments, .z = z, .key = key}, runtime.stream());
      kernels.sample_latent_backward(
          {.rows = 2, .moments = moments, .d_z = z, .d_moments = d_moments, .key = key}, runtime.stream());
      CHECK(to_matrix(z).v == std::vector<double>{0.5, -2.0});
      CHECK(to_matrix(d_moments).v == std::vector<double>{0.5, 0.0, -2.0, 0.0});
    }
  }
}

TEST_CASE("latent kernels ignore rows after the real count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t count : {0, 1, 100}) {
        CAPTURE(count);
        const int64_t capacity = 129;
        Runtime runtime = backend.runtime();
        RandomMatrices random(9200);
        Matrix moments = stored_as(dtype, random.normal(capacity, 6));
        const Tensor d_z = to_tensor(runtime, random.normal(capacity, 3), dtype);
        std::vector<float> weights(static_cast<size_t>(capacity), 1.0F), real = weights;
        std::fill(real.begin() + count, real.end(), 0.0F);
        const double loss = reference::latent_loss(moments, real);
        std::fill(moments.v.begin() + 6 * count, moments.v.end(), std::nan(""));
        const Tensor rows = to_count(runtime, count);
        const LatentRun run(backend, runtime, Rows(capacity, rows.data<int64_t>()),
                            to_tensor(runtime, moments, dtype), d_z, weights, {});
        CHECK(std::abs(run.sum - loss) <= tolerance(accumulator_of(dtype), 6 * count, 64.0));
        for (const Tensor& tensor : {run.z, run.d_moments, run.d_loss}) {
          CHECK(equal_bits(tensor.row_range(count, capacity),
                           unwritten(runtime, {capacity - count, tensor.width()}, dtype)));
          for (int64_t i = 0; i < count; ++i) CHECK(std::isfinite(to_matrix(tensor).at(i, 0)));
        }
      }
    }
  }
}

TEST_CASE("latent loss leaves rows of weight 0 out, whatever they hold") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(9300);
      Matrix moments = stored_as(dtype, random.normal(5, 6));
      const std::vector<float> weights{1.0F, 0.0F, 1.0F, 1.0F, 0.5F};
      const double loss = reference::latent_loss(moments, weights);
      moments.at(1, 0) = moments.at(1, 5) = std::nan("");
      const LatentRun run(backend, runtime, 5, to_tensor(runtime, moments, dtype),
                          to_tensor(runtime, random.normal(5, 3), dtype), weights, {});
      CHECK(std::abs(run.sum - loss) <= tolerance(accumulator_of(dtype), 15, 64.0));
      for (int64_t c = 0; c < 6; ++c) CHECK(to_matrix(run.d_loss).at(1, c) == 0.0);
    }
  }
}

TEST_CASE("latent kernels have the same bits for any thread count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<std::unique_ptr<Runtime>> runtimes;
      std::vector<LatentRun> runs;
      const int64_t rows = backend.many(50021);
      for (const int threads : backend.thread_counts()) {
        RuntimeOptions options;
        options.device = backend.device;
        options.threads = threads;
        Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
        RandomMatrices random(9400);
        const Tensor moments = to_tensor(runtime, random.normal(rows, 6), dtype);
        const Tensor d_z = to_tensor(runtime, random.normal(rows, 3), dtype);
        runs.emplace_back(backend, runtime, rows, moments, d_z,
                          std::vector<float>(static_cast<size_t>(rows), 0.5F), Tensor());
        CHECK(runs.back().sum == runs.front().sum);
        CHECK(equal_bits(runs.back().z, runs.front().z));
        CHECK(equal_bits(runs.back().d_moments, runs.front().d_moments));
        CHECK(equal_bits(runs.back().d_loss, runs.front().d_loss));
      }
      CHECK(runs.front().sum > 0.0);
    }
  }
}

TEST_CASE("latent kernels say which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](auto&& change) {
    SampleLatentForward args{.rows = 3,
                             .moments = unwritten(runtime, {3, 4}, DType::f32),
                             .z = unwritten(runtime, {3, 2}, DType::f32),
                             .key = {}};
    change(args);
    return invalid_argument_text([&] { kernels::sample_latent_forward(args, runtime.stream()); });
  };
  CHECK(contains(error([](SampleLatentForward& a) { a.moments = {}; }), "sample_latent.forward: moments"));
  CHECK(contains(error([&](SampleLatentForward& a) {
                   a.moments = unwritten(runtime, {3, 5}, DType::f32);
                 }),
                 "needed f32[3, 4], got f32[3, 5]"));
  CHECK(contains(error([](SampleLatentForward& a) { a.z = a.moments; }), "z] needed f32[3, 2]"));
  CHECK(contains(error([](SampleLatentForward& a) { a.key.row_keys = a.z; }), "row_keys] needed i64[3]"));
  const Tensor moments = unwritten(runtime, {3, 4}, DType::f32);
  CHECK(contains(invalid_argument_text([&] {
                   kernels::latent_loss_forward(
                       {.rows = 3, .moments = moments, .weights = moments, .sum = {}}, runtime,
                       runtime.stream());
                 }),
                 "latent_loss.forward: weights] needed f32[3], got f32[3, 4]"));
}

}  // namespace
}  // namespace meshgrad::test
