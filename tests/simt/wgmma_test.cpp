// SPDX-License-Identifier: Apache-2.0
// RuntimeOptions::wgmma: which GPUs get the kernel with products of warpgroups, what is said where they do
// not, and whether mistakes in it would be noticed.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>
#include <meshgrad/train/learn/run/precision.h>

#include "device.h"
#include "reference/mlp.h"
#include "support.h"

#include <string>
#include <vector>

namespace meshgrad::test {
namespace {

using simt::ProductMistake;

constexpr int64_t kRows = 131, kManyRows = 1009, kIn = 128, kOut = 96;

struct Outcome {
  std::vector<std::string> kernels, messages;
  std::string description, difference, error;
};

enum class Launches : uint8_t { once, and_captured };

/// A weight gradient over four full stages and three rows; or twice, and captured twice. Of many rows a block
/// has several stages.
Outcome run(bool wgmma, DType dtype, uint64_t seed, Launches launches, int64_t rows = kRows) {
  Outcome outcome;
  RuntimeOptions options;
  options.device = {DeviceKind::cuda, 0};
  options.wgmma = wgmma;
  options.log = [&](LogLevel, std::string_view text) { outcome.messages.emplace_back(text); };
  Runtime runtime(options);
  outcome.description = describe_wgmma(runtime, dtype);
  RandomMatrices random(seed);
  const Matrix x = stored_as(dtype, random.normal(rows, kIn)),
               d_z = stored_as(dtype, random.normal(rows, kOut));
  const cuda::WeightGradientJob job{to_tensor(runtime, x, dtype), to_tensor(runtime, d_z, dtype),
                                    to_tensor(runtime, Matrix(kIn, kOut), DType::f32), rows};
  const auto work = [&](Runtime& own) { cuda::weight_gradients({&job, 1}, {}, own, own.stream()); };
  CapturedWork captured(runtime, "weight gradients", work);
  simt::take_reports();
  try {
    work(runtime);
    if (launches == Launches::and_captured) {
      captured.run();
      work(runtime);
      captured.run();
    }
    runtime.stream().synchronize();
    Matrix expected = reference::linear_backward(x, Matrix(kIn, kOut), d_z).d_weight;
    const int times = launches == Launches::once ? 1 : 4;
    for (double& value : expected.v) value *= times;
    outcome.difference = difference(job.d_weight, expected, times * rows, magnitude(x) * magnitude(d_z));
  } catch (const DeviceError& error) {
    outcome.error = error.what();
    simt::repair_devices();
  }
  for (const simt::LaunchReport& report : simt::take_reports()) {
    if (report.name == std::string_view("weight_gradients.sum")) continue;  // of slices, the same for both
    if (outcome.kernels.empty() || outcome.kernels.back() != report.name)
      outcome.kernels.push_back(report.name);
  }
  return outcome;
}

Outcome run_on(int capability, bool wgmma, DType dtype = DType::f16) {
  simt::set_compute_capability(capability);
  const Outcome outcome = run(wgmma, dtype, 100 + static_cast<uint64_t>(capability), Launches::and_captured);
  simt::set_compute_capability(0);
  CHECK(outcome.error == "");
  CHECK(outcome.difference == "");
  return outcome;
}

using Texts = std::vector<std::string>;

TEST_CASE("warpgroup products run where asked for and supported") {
  const Texts plain{"weight_gradients"}, by_warpgroups{"weight_gradients_wgmma"};
  for (const int capability : {80, 90, 100}) {
    CAPTURE(capability);
    const Outcome off = run_on(capability, false);
    CHECK(off.kernels == plain);
    CHECK(off.messages.empty());
    CHECK(off.description == "");
  }
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Outcome on = run_on(90, true, dtype);
    CHECK(on.kernels == by_warpgroups);
    CHECK(on.messages.empty());
    CHECK(contains(on.description, "has run on no GPU yet"));
  }
}

TEST_CASE("a GPU without warpgroup products logs it once") {
  for (const int capability : {80, 100, 121}) {
    CAPTURE(capability);
    const Outcome on = run_on(capability, true);
    CHECK(on.kernels == Texts{"weight_gradients"});
    const std::string number = std::to_string(capability / 10) + "." + std::to_string(capability % 10);
    const std::string expected = "wgmma = true has no effect: the GPU has compute capability " + number +
                                 ", and products of warpgroups need 9.0";
    CHECK(on.messages == Texts{expected});
    CHECK(on.description == expected);
  }
}

TEST_CASE("without tensor maps threads copy the rows") {
  simt::set_tensor_maps(false);
  const Outcome without = run_on(90, true);
  simt::set_tensor_maps(true);
  CHECK(without.kernels == Texts{"weight_gradients_wgmma"});
  CHECK(without.messages == Texts{"weight gradients are copied by threads, not by TMA: the simulated device "
                                  "makes none"});
}

TEST_CASE("mistakes in warpgroup weight gradients are found") {
  struct Found {
    ProductMistake mistake;
    const char* message;
  };
  for (const Found& found : {Found{ProductMistake::shared_fence, "has not fenced"},
                             {ProductMistake::fence, "product_fence between"},
                             {ProductMistake::commit, "accumulators of a product that runs"},
                             {ProductMistake::wait, "of a product that runs"},
                             {ProductMistake::copy_bytes, "is in flight"},
                             {ProductMistake::copy_wait, "is in flight"},
                             {ProductMistake::warp_sync, "copies that one thread starts"},
                             {ProductMistake::swizzle, ""},
                             {ProductMistake::leading_bytes, ""}}) {
    CAPTURE(static_cast<int>(found.mistake));
    for (const uint64_t seed : {1, 2, 3}) {
      simt::set_seed(seed);
      simt::set_product_mistake(found.mistake);
      const bool between = found.mistake == ProductMistake::warp_sync;
      const Outcome outcome = run(true, DType::f16, seed, Launches::once, between ? kManyRows : kRows);
      simt::set_product_mistake(ProductMistake::none);
      CAPTURE(outcome.error);
      // A wrong descriptor reads other numbers, or memory that nothing wrote.
      if (*found.message == 0) CHECK((!outcome.error.empty() || !outcome.difference.empty()));
      if (*found.message != 0) CHECK(contains(outcome.error, found.message));
    }
  }
}

}  // namespace
}  // namespace meshgrad::test
