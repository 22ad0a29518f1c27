// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>
#include <meshgrad/kernels/tables.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "support.h"

namespace meshgrad::cuda {
// Not there in a build without CUDA; the tests then have nothing to call.
[[gnu::weak]] bool weight_gradients_support(DType, int64_t, int64_t);
[[gnu::weak]] void weight_gradients(std::span<const WeightGradientJob>, std::span<const ColumnSumJob>,
                                    Runtime&, const Stream&);
}  // namespace meshgrad::cuda

namespace meshgrad::test {
namespace {

using cuda::ColumnSumJob;
using cuda::WeightGradientJob;

constexpr Device kFirstGpu{DeviceKind::cuda, 0};

constexpr DType kTypes[] = {DType::f16, DType::bf16};

/// One matrix job and what it must give.
struct WeightCase {
  WeightGradientJob job;
  Tensor count;
  Matrix expected;
  int64_t rows;
  double largest;  ///< product that took part
};

/// `hidden_rows` more rows of NaN follow the real count, which is then in device memory.
WeightCase make_case(Runtime& runtime, RandomMatrices& random, DType dtype, int64_t rows, int64_t in,
                     int64_t out, int64_t hidden_rows = 0) {
  const Matrix x = stored_as(dtype, random.normal(rows, in));
  const Matrix d_z = stored_as(dtype, random.normal(rows, out, 0.25));
  const Matrix start = stored_as(DType::f32, random.normal(in, out));
  WeightCase result;
  result.rows = rows;
  result.largest = std::max(magnitude(start), magnitude(x) * magnitude(d_z));
  result.expected = reference::sum(start, reference::linear_backward(x, Matrix(in, out), d_z).d_weight);
  const auto extended = [&](Matrix matrix) {
    matrix.rows += hidden_rows;
    matrix.v.resize(static_cast<size_t>(matrix.rows * matrix.cols), std::numeric_limits<double>::quiet_NaN());
    return to_tensor(runtime, matrix, dtype);
  };
  result.job.x = extended(x);
  result.job.d_z = extended(d_z);
  result.job.d_weight = to_tensor(runtime, start, DType::f32);
  result.job.rows = Rows(rows + hidden_rows);
  if (hidden_rows > 0) {
    const int64_t count[] = {rows};
    result.count = Tensor::from<int64_t>(runtime, count, {1}, Tag::data);
    result.job.rows.count = result.count.data<int64_t>();
  }
  return result;
}

std::string difference(const WeightCase& done) {
  return test::difference(done.job.d_weight, done.expected, done.rows + 1, done.largest);
}

struct WeightShape {
  int64_t in, out;
};

TEST_CASE("weight gradients agree with the reference" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime = make_runtime(1, kFirstGpu);
  uint64_t seed = 9100;
  for (const WeightShape& width : {WeightShape{128, 128},
                                   {64, 64},
                                   {256, 256},
                                   {3, 128},
                                   {128, 2},
                                   {11, 64},
                                   {1, 1},
                                   {40, 72},
                                   {200, 136},
                                   {64, 256},
                                   {100, 8},
                                   {33, 65}}) {
    for (const DType dtype : kTypes) {
      for (const int64_t rows : {0, 1, 31, 33, 129, 1009}) {
        if (rows == 1009 && (dtype == DType::bf16 || width.in * width.out > 128 * 128)) continue;
        CAPTURE(width.in);
        CAPTURE(width.out);
        CAPTURE(name_of(dtype));
        CAPTURE(rows);
        RandomMatrices random(seed++);
        const WeightCase only = make_case(runtime, random, dtype, rows, width.in, width.out);
        const int64_t launches = gpu::counters().launches;
        cuda::weight_gradients({&only.job, 1}, {}, runtime, runtime.stream());
        CHECK(gpu::counters().launches - launches == (rows > 0 ? 2 : 0));
        CHECK(difference(only) == "");
      }
    }
  }
}

void check_shared_launch(Runtime& runtime) {
  for (const DType dtype : kTypes) {
    CAPTURE(name_of(dtype));
    RandomMatrices random(9300);
    std::vector<WeightCase> cases;
    cases.push_back(make_case(runtime, random, dtype, 701, 128, 128, 99));
    cases.push_back(make_case(runtime, random, dtype, 701, 4, 128, 99));
    cases.push_back(make_case(runtime, random, dtype, 113, 128, 128, 13));
    cases.push_back(make_case(runtime, random, dtype, 0, 64, 64, 50));
    cases.push_back(make_case(runtime, random, dtype, 113, 128, 3));
    cases.push_back(make_case(runtime, random, dtype, 32, 256, 64, 1));
    std::vector<WeightGradientJob> jobs;
    for (const WeightCase& one : cases) jobs.push_back(one.job);

    const Matrix partials = stored_as(DType::f32, random.normal(37, 200));
    const Matrix start = stored_as(DType::f32, random.normal(1, 130));
    const Tensor target = to_vector(runtime, start, DType::f32);
    Matrix expected = start;
    for (int64_t row = 0; row < partials.rows; ++row) {
      for (int64_t c = 0; c < start.cols; ++c) expected.at(0, c) += partials.at(row, c + 70);
    }
    const ColumnSumJob sum{to_tensor(runtime, partials, DType::f32), 70, target};

    const int64_t launches = gpu::counters().launches;
    cuda::weight_gradients(jobs, {&sum, 1}, runtime, runtime.stream());
    CHECK(gpu::counters().launches - launches == 2);
    for (const WeightCase& one : cases) CHECK(difference(one) == "");
    CHECK(test::difference(target, expected, partials.rows + 1, magnitude(partials)) == "");
  }
}

TEST_CASE("weight gradients and column sums share a launch" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime = make_runtime(1, kFirstGpu);
  check_shared_launch(runtime);
}

void check_same_bits(Runtime& runtime) {
  std::vector<Matrix> first;
  for (const int64_t hidden_rows : {0, 0, 1, 500}) {
    CAPTURE(hidden_rows);
    // The same draws each time: rows after the count are not drawn.
    RandomMatrices random(9400);
    std::vector<WeightCase> cases;
    cases.push_back(make_case(runtime, random, DType::f16, 1500, 64, 64, hidden_rows));
    cases.push_back(make_case(runtime, random, DType::f16, 300, 128, 100, 2 * hidden_rows));
    std::vector<WeightGradientJob> jobs;
    for (const WeightCase& one : cases) jobs.push_back(one.job);
    cuda::weight_gradients(jobs, {}, runtime, runtime.stream());
    for (size_t i = 0; i < cases.size(); ++i) {
      const Matrix result = to_matrix(cases[i].job.d_weight);
      if (first.size() < cases.size()) {
        first.push_back(result);
        CHECK(difference(cases[i]) == "");
      } else {
        CHECK(result.v == first[i].v);
      }
    }
  }
}

TEST_CASE("weight gradients have the same bits in every run" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime = make_runtime(1, kFirstGpu);
  check_same_bits(runtime);
}

TEST_CASE("weight gradients take unaligned rows and many jobs" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime = make_runtime(1, kFirstGpu);
  RandomMatrices random(9500);
  const int64_t rows = 77, count = cuda::kMaxWeightGradientJobs + 1;
  const Matrix storage = stored_as(DType::f16, random.normal(1, rows * 64 + 1));
  const Tensor stored = to_tensor(runtime, storage, DType::f16);
  const Matrix x(rows, 64, std::vector<double>(storage.v.begin() + 1, storage.v.end()));
  std::vector<WeightCase> cases;
  std::vector<WeightGradientJob> jobs;
  for (int64_t i = 0; i < count; ++i) {
    WeightCase one = make_case(runtime, random, DType::f16, rows, 64, 64);
    if (i == 0) {
      // The same gradient of another x, which starts two bytes late.
      const Matrix start = to_matrix(one.job.d_weight);
      const Matrix d_z = to_matrix(one.job.d_z);
      one.job.x = Tensor::over(stored.storage(), size_of(DType::f16), {rows, 64}, DType::f16);
      one.expected = reference::sum(start, reference::linear_backward(x, Matrix(64, 64), d_z).d_weight);
      one.largest = std::max(magnitude(start), magnitude(x) * magnitude(d_z));
    }
    jobs.push_back(one.job);
    cases.push_back(std::move(one));
  }
  std::vector<ColumnSumJob> sums;
  std::vector<Matrix> expected;
  double largest = 0.0;
  for (int64_t s = 0; s <= cuda::kMaxColumnSumJobs; ++s) {
    const Matrix partials = stored_as(DType::f32, random.normal(s * 3, s % 2 == 0 ? 128 : 33));
    expected.push_back(Matrix(1, partials.cols));
    for (int64_t i = 0; i < partials.rows * partials.cols; ++i) {
      expected.back().v[static_cast<size_t>(i % partials.cols)] += partials.v[static_cast<size_t>(i)];
    }
    largest = std::max(largest, magnitude(partials));
    sums.push_back({to_tensor(runtime, partials, DType::f32), 0,
                    to_vector(runtime, Matrix(1, partials.cols), DType::f32)});
  }
  const int64_t launches = gpu::counters().launches;
  cuda::weight_gradients(jobs, sums, runtime, runtime.stream());
  CHECK(gpu::counters().launches - launches == 4);
  for (const WeightCase& one : cases) CHECK(difference(one) == "");
  for (size_t s = 0; s < sums.size(); ++s) {
    CHECK(test::difference(sums[s].target, expected[s], sums[s].partials.rows() + 1, largest) == "");
  }
}

TEST_CASE("a weight gradient over no real rows is left as it was" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime = make_runtime(1, kFirstGpu);
  RandomMatrices random(9600);
  const WeightCase only = make_case(runtime, random, DType::f16, 0, 64, 64, 70);
  cuda::weight_gradients({&only.job, 1}, {}, runtime, runtime.stream());
  CHECK(to_matrix(only.job.d_weight).v == only.expected.v);
}

TEST_CASE("weight gradients support 16 bits up to their widest tile" *
          doctest::skip(cuda_devices().empty())) {
  CHECK(cuda::weight_gradients_support(DType::f16, 1, cuda::kMaxWeightGradientWidth));
  CHECK(cuda::weight_gradients_support(DType::bf16, cuda::kMaxWeightGradientWidth, 1));
  CHECK_FALSE(cuda::weight_gradients_support(DType::f16, cuda::kMaxWeightGradientWidth + 1, 1));
  CHECK_FALSE(cuda::weight_gradients_support(DType::f16, 128, cuda::kMaxWeightGradientWidth + 1));
  CHECK_FALSE(cuda::weight_gradients_support(DType::f32, 128, 128));
}

}  // namespace
}  // namespace meshgrad::test
