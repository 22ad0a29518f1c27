// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

constexpr double kClassSeed = 0.037;

/// Forward and backward of one batch; logits and labels of `capacity` rows, of which `count` are real.
struct ClassLossRun {
  double sum = 0.0, weight = 0.0;
  Tensor d_logits;
  ClassLossRun(const Backend& backend, Runtime& runtime, const Rows& rows, const Tensor& logits,
               const std::vector<int32_t>& labels, const std::vector<uint8_t>& mask,
               const std::vector<float>& weights = {}, const TeacherOutput& teacher = {})
      : d_logits(unwritten(runtime, logits.shape(), logits.dtype())) {
    const std::vector<double> seed{kClassSeed};
    const ClassLossForward forward{
        .rows = rows,
        .logits = logits,
        .labels = to_index(runtime, labels),
        .mask = mask_tensor(runtime, mask),
        .sum = unwritten(runtime, {1}, DType::f64),
        .weight = unwritten(runtime, {1}, DType::f64),
        .class_weights = weights.empty() ? Tensor()
                                         : Tensor::from<float>(runtime, weights, Shape{std::ssize(weights)},
                                                               Tag::data, "class weights"),
        .teacher = teacher};
    backend.kernels->class_loss.class_loss_forward(forward, runtime, runtime.stream());
    sum = to_matrix(forward.sum).at(0, 0);
    weight = to_matrix(forward.weight).at(0, 0);
    backend.kernels->class_loss.class_loss_backward(
        {.rows = rows,
         .logits = logits,
         .labels = forward.labels,
         .mask = forward.mask,
         .seed = Tensor::from<double>(runtime, seed, Shape{1}, Tag::data, "seed"),
         .d_logits = d_logits,
         .class_weights = forward.class_weights,
         .teacher = teacher},
        runtime.stream());
  }
};

TEST_CASE("class loss and its gradient agree with the reference") {
  uint64_t seed = 7100;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t classes : {1, 2, 7, 31, 33, 70}) {
        for (const int64_t rows : backend.sizes_and(classes <= 2, 20011)) {
          for (const double share : {0.0, 0.6, 1.0}) {
            RandomMatrices random(seed++);
            CAPTURE(classes);
            CAPTURE(rows);
            CAPTURE(share);
            CAPTURE(random.seed());
            Runtime runtime = backend.runtime();
            const Matrix logits = stored_as(dtype, random.normal(rows, classes, 3.0));
            const std::vector<int32_t> labels = random.indices(rows, classes);
            std::vector<uint8_t> mask = random.mask(rows, share);
            for (size_t i = 0; i < mask.size(); i += 3) mask[i] = static_cast<uint8_t>(mask[i] * 255);
            const ClassLossRun run(backend, runtime, rows, to_tensor(runtime, logits, dtype), labels, mask);
            const auto ref = reference::class_loss(logits, labels, mask);
            // Rows are computed in the accumulation dtype, the largest below 32, and added in f64.
            CHECK(std::abs(run.sum - ref.sum) <= tolerance(accumulator_of(dtype), rows * classes, 32.0) +
                                                     tolerance(DType::f64, rows, ref.sum));
            CHECK(run.weight == ref.weight);
            CHECK(difference(run.d_logits, reference::class_loss_backward(logits, labels, mask, kClassSeed),
                             classes, kClassSeed) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("class loss with class weights agrees with the reference") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t classes : {1, 2, 7, 33}) {
        for (const int64_t rows : {0, 1, 31, 33, 1009}) {
          RandomMatrices random(7300 + static_cast<uint64_t>(classes * 2000 + rows));
          CAPTURE(classes);
          CAPTURE(rows);
          Runtime runtime = backend.runtime();
          const Matrix logits = stored_as(dtype, random.normal(rows, classes, 3.0));
          const std::vector<int32_t> labels = random.indices(rows, classes);
          const std::vector<uint8_t> mask = random.mask(rows, 0.7);
          std::vector<float> weights;
          for (int64_t c = 0; c < classes; ++c) weights.push_back(0.25F * static_cast<float>(1 + c * c % 11));
          const ClassLossRun run(backend, runtime, rows, to_tensor(runtime, logits, dtype), labels, mask,
                                 weights);
          const auto ref = reference::class_loss(logits, labels, mask, weights);
          CHECK(std::abs(run.sum - ref.sum) <= tolerance(accumulator_of(dtype), rows * classes, 88.0) +
                                                   tolerance(DType::f64, rows, ref.sum));
          CHECK(run.weight == ref.weight);
          CHECK(difference(run.d_logits,
                           reference::class_loss_backward(logits, labels, mask, kClassSeed, weights), classes,
                           2.75 * kClassSeed) == "");
        }
      }
    }
  }
}

TEST_CASE("class loss with a teacher agrees with the reference") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t classes : {1, 2, 7, 33}) {
        for (const int64_t rows : {0, 1, 31, 33, 1009}) {
          for (const double temperature : {0.5, 1.0, 4.0}) {
            for (const double share : {0.0, 0.7, 1.0}) {
              RandomMatrices random(7500 + static_cast<uint64_t>(classes * 2000 + rows));
              CAPTURE(classes);
              CAPTURE(rows);
              CAPTURE(temperature);
              CAPTURE(share);
              Runtime runtime = backend.runtime();
              const Matrix logits = stored_as(dtype, random.normal(rows, classes, 3.0));
              const reference::Teacher by{stored_as(dtype, random.normal(rows, classes, 3.0)), share,
                                          temperature};
              const std::vector<int32_t> labels = random.indices(rows, classes);
              const std::vector<uint8_t> mask = random.mask(rows, 0.7);
              const std::vector<float> weights(static_cast<size_t>(classes), 1.5F);
              const ClassLossRun run(backend, runtime, rows, to_tensor(runtime, logits, dtype), labels, mask,
                                     weights, {to_tensor(runtime, by.logits, dtype), share, temperature});
              const auto ref = reference::class_loss(logits, labels, mask, weights, by);
              CHECK(std::abs(run.sum - ref.sum) <=
                    tolerance(accumulator_of(dtype), rows * classes, 48.0 * (1.0 + temperature)) +
                        tolerance(DType::f64, rows, ref.sum));
              CHECK(run.weight == ref.weight);
              CHECK(difference(run.d_logits,
                               reference::class_loss_backward(logits, labels, mask, kClassSeed, weights, by),
                               classes, 1.5 * kClassSeed * std::max(1.0, temperature)) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a teacher that diverged makes the loss NaN") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    const Tensor logits = to_tensor(runtime, Matrix(2, 2, {1.0, 2.0, 3.0, 4.0}), DType::f32);
    const Tensor teacher = to_tensor(runtime, Matrix(2, 2, {1.0, 2.0, std::nan(""), 4.0}), DType::f32);
    const ClassLossRun run(backend, runtime, 2, logits, {0, 1}, {1, 1}, {}, {teacher, 0.5, 2.0});
    CHECK(std::isnan(run.sum));
    CHECK(std::isnan(to_matrix(run.d_logits).at(1, 0)));
    CHECK(std::isfinite(to_matrix(run.d_logits).at(0, 0)));
  }
}

TEST_CASE("class loss of large logits neither overflows nor hides a NaN") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      const Matrix large(2, 3, {30000.0, 29999.0, -30000.0, -30000.0, 30000.0, 30000.0});
      const Matrix logits = stored_as(dtype, large);
      const std::vector<int32_t> labels{0, 2};
      const std::vector<uint8_t> mask{1, 1};
      const ClassLossRun run(backend, runtime, 2, to_tensor(runtime, logits, dtype), labels, mask);
      const auto ref = reference::class_loss(logits, labels, mask);
      CHECK(std::abs(run.sum - ref.sum) <= tolerance(accumulator_of(dtype), 3, ref.sum));
      CHECK(difference(run.d_logits, reference::class_loss_backward(logits, labels, mask, kClassSeed), 3,
                       kClassSeed) == "");
      for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        Matrix diverged = logits;
        diverged.at(1, 0) = bad;
        const ClassLossRun found(backend, runtime, 2, to_tensor(runtime, diverged, dtype), labels, mask);
        CHECK(std::isnan(found.sum));
        CHECK(std::isnan(to_matrix(found.d_logits).at(1, 1)));
        CHECK(to_matrix(found.d_logits).at(0, 1) == to_matrix(run.d_logits).at(0, 1));
      }
    }
  }
}

TEST_CASE("class loss: rows outside the mask may hold anything") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(7001);
      Matrix logits = stored_as(dtype, random.normal(33, 5));
      std::vector<int32_t> labels = random.indices(33, 5);
      std::vector<uint8_t> mask(33, 1);
      mask[7] = mask[32] = 0;
      const auto ref = reference::class_loss(logits, labels, mask);
      for (const int64_t row : {7, 32}) logits.at(row, 2) = std::nan("");
      labels[7] = -1, labels[32] = 1 << 30;
      const ClassLossRun run(backend, runtime, 33, to_tensor(runtime, logits, dtype), labels, mask);
      CHECK(std::abs(run.sum - ref.sum) <= tolerance(accumulator_of(dtype), 33 * 5, ref.sum));
      CHECK(run.weight == 31.0);
      const Matrix d = to_matrix(run.d_logits);
      for (int64_t c = 0; c < 5; ++c) CHECK((d.at(7, c) == 0.0 && d.at(32, c) == 0.0 && d.at(8, c) != 0.0));
    }
  }
}

TEST_CASE("class loss of an invalid label is NaN") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int32_t label : {-1, 5, 6, 1 << 30, std::numeric_limits<int32_t>::min()}) {
        CAPTURE(label);
        Runtime runtime = backend.runtime();
        RandomMatrices random(7002);
        const Tensor logits = to_tensor(runtime, random.normal(3, 5), dtype);
        const ClassLossRun run(backend, runtime, 3, logits, {1, 0, label}, {1, 1, 1});
        CHECK(std::isnan(run.sum));
        CHECK(run.weight == 3.0);
        const Matrix d = to_matrix(run.d_logits);
        for (int64_t c = 0; c < 5; ++c) CHECK((std::isnan(d.at(2, c)) && std::isfinite(d.at(1, c))));
      }
    }
  }
}

TEST_CASE("class loss ignores rows after the real count") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const int64_t count : {0, 1, 100}) {
        CAPTURE(count);
        Runtime runtime = backend.runtime();
        RandomMatrices random(7003);
        const int64_t capacity = 129;
        Matrix logits = stored_as(dtype, random.normal(capacity, 3));
        const std::vector<int32_t> labels = random.indices(capacity, 3);
        std::vector<uint8_t> counted(static_cast<size_t>(capacity), 1);
        std::fill(counted.begin() + count, counted.end(), uint8_t{0});
        const auto ref = reference::class_loss(logits, labels, counted);
        std::fill(logits.v.begin() + 3 * count, logits.v.end(), std::nan(""));
        const Tensor real = to_count(runtime, count);
        const ClassLossRun run(backend, runtime, Rows(capacity, real.data<int64_t>()),
                               to_tensor(runtime, logits, dtype), labels,
                               std::vector<uint8_t>(counted.size(), 1));
        CHECK(std::abs(run.sum - ref.sum) <= tolerance(accumulator_of(dtype), 3 * count, ref.sum));
        CHECK(run.weight == ref.weight);
        CHECK(equal_bits(run.d_logits.row_range(count, capacity),
                         unwritten(runtime, {capacity - count, 3}, dtype)));
        for (int64_t i = 0; i < count; ++i) CHECK(std::isfinite(to_matrix(run.d_logits).at(i, 0)));
      }
    }
  }
}

TEST_CASE("class loss has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      std::vector<std::unique_ptr<Runtime>> runtimes;
      std::vector<ClassLossRun> runs;
      const int64_t rows = backend.many(50021);
      for (const int threads : backend.thread_counts()) {
        RuntimeOptions options;
        options.device = backend.device;
        options.threads = threads;
        Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
        RandomMatrices random(7004);
        const Tensor logits = to_tensor(runtime, random.normal(rows, 4), dtype);
        const std::vector<int32_t> labels = random.indices(rows, 4);
        runs.emplace_back(backend, runtime, rows, logits, labels, random.mask(rows, 0.7));
        CHECK(runs.back().sum == runs.front().sum);
        CHECK(runs.back().weight == runs.front().weight);
        CHECK(equal_bits(runs.back().d_logits, runs.front().d_logits));
      }
      CHECK(runs.front().sum > 0.0);
    }
  }
}

TEST_CASE("class loss says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](auto&& change) {
    ClassLossForward args{.rows = 3,
                          .logits = unwritten(runtime, {3, 2}, DType::f32),
                          .labels = to_index(runtime, {0, 1, 0}),
                          .mask = mask_tensor(runtime, {0, 0, 0}),
                          .sum = unwritten(runtime, {1}, DType::f64),
                          .weight = unwritten(runtime, {1}, DType::f64)};
    change(args);
    return invalid_argument_text([&] { kernels::class_loss_forward(args, runtime, runtime.stream()); });
  };
  CHECK(error([](ClassLossForward&) {}) == "");
  CHECK(contains(error([](ClassLossForward& a) { a.logits = {}; }), "class_loss.forward: logits"));
  CHECK(contains(error([](ClassLossForward& a) { a.rows = 4; }), "needed f32[4, 2], got f32[3, 2]"));
  CHECK(contains(error([](ClassLossForward& a) { a.labels = a.mask; }), "labels] needed i32[3], got u8[3]"));
  CHECK(contains(error([](ClassLossForward& a) { a.mask = a.labels; }), "mask] needed u8[3], got i32[3]"));
  CHECK(contains(error([](ClassLossForward& a) { a.sum = a.labels; }), "sum] needed f64[1]"));
  CHECK(contains(error([](ClassLossForward& a) { a.weight = {}; }), "class_loss.forward: weight"));
  CHECK(contains(error([](ClassLossForward& a) { a.class_weights = a.sum; }),
                 "class_weights] needed f32[2], got f64[1]"));
  CHECK(contains(error([](ClassLossForward& a) { a.teacher.values = a.sum; }),
                 "teacher.values] needed f32[3, 2], got f64[1]"));
  const Tensor logits = unwritten(runtime, {3, 2}, DType::f32);
  const std::string text = invalid_argument_text([&] {
    kernels::class_loss_backward({.rows = 3,
                                  .logits = logits,
                                  .labels = to_index(runtime, {0, 1, 0}),
                                  .mask = mask_tensor(runtime, {0, 0, 0}),
                                  .seed = unwritten(runtime, {1}, DType::f64),
                                  .d_logits = unwritten(runtime, {3, 2}, DType::f64)},
                                 runtime.stream());
  });
  CHECK(contains(text, "class_loss.backward: d_logits] needed f32[3, 2], got f64[3, 2]"));
}

}  // namespace
}  // namespace meshgrad::test
