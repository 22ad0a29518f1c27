// SPDX-License-Identifier: Apache-2.0
// Validation in batches: how samples are batched, and that their losses are those of samples alone.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/validation.h>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::ScratchDirectory;

/// Waves on 9 and 16 nodes to train on, 5 samples of 9 nodes to validate.
struct ValidatedWaves {
  ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 3, 6));
  Dataset dataset = Dataset::open(config.data.path);
  Task task = make_task(config, dataset);

  Validation validate(const Device& device, int64_t batch) {
    Runtime runtime({.device = device, .threads = 2});
    config.train.batch = batch;
    const Task own = make_task(config, dataset);
    const Model model = make_model(runtime, config, own.sizes());
    Normalizers normalizers = own.dataset_normalizers({});
    Ranks alone;
    return validate_model(runtime, alone, own, model, {}, normalizers, config, {}, {}).value();
  }
};

TEST_CASE("samples are batched in order, within a shape") {
  const ValidatedWaves w;
  const std::vector<Sample> samples{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 2, 0}, {1, 1, 0}};
  const auto sizes = [&](const BatchShape& room) {
    std::vector<size_t> result;
    size_t next = 0;
    for (const std::vector<Sample>& batch : batches_within(room, w.task, "train", samples)) {
      result.push_back(batch.size());
      for (const Sample& sample : batch) {
        CHECK(sample.trajectory == samples[next].trajectory);
        CHECK(sample.frame == samples[next++].frame);
      }
    }
    CHECK(next == samples.size());
    return result;
  };
  using Sizes = std::vector<size_t>;  // of 9, 16, 9, 9 and 16 nodes
  CHECK(sizes({.nodes = 100, .edges = 1000, .graphs = 8}) == Sizes{5});
  CHECK(sizes({.nodes = 100, .edges = 1000, .graphs = 2}) == Sizes{2, 2, 1});
  CHECK(sizes({.nodes = 25, .edges = 1000, .graphs = 8}) == Sizes{2, 2, 1});
  CHECK(sizes({.nodes = 34, .edges = 1000, .graphs = 8}) == Sizes{3, 2});
  CHECK(sizes({.nodes = 100, .edges = 98, .graphs = 8}) == Sizes{2, 2, 1});
  CHECK(sizes({.nodes = 10, .edges = 1000, .graphs = 8}) == Sizes{1, 1, 1, 1, 1});  // also those without room
  CHECK(sizes({.nodes = 100, .edges = 1000, .graphs = 1}) == Sizes{1, 1, 1, 1, 1});
  CHECK(batches_within({}, w.task, "train", {}).empty());
}

TEST_CASE("a CPU validation is independent of the batching") {
  ValidatedWaves w;
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      for (const LossName name : {LossName::mse, LossName::relative_l2}) {
        w.config.precision = precision;
        w.config.model.path = path;
        w.config.loss.name = name;
        w.config.train.validate_samples = 0;
        const Validation alone = w.validate({}, 1);
        CHECK(alone.loss > 0.0);
        CHECK(alone.error > 0.0);
        for (const int64_t batch : {2, 3, 8}) {
          const Validation together = w.validate({}, batch);
          CHECK(together.loss == alone.loss);
          CHECK(together.error == alone.error);
          CHECK(together.baseline == alone.baseline);
        }
      }
    }
  }
}

TEST_CASE("a device validation depends on batches by rounding" * doctest::skip(cuda_devices().empty())) {
  ValidatedWaves w;
  w.config.train.validate_samples = 0;
  const Validation cpu = w.validate({}, 1);
  for (const int64_t batch : {1, 3}) {
    const Validation gpu = w.validate({DeviceKind::cuda, 0}, batch);
    CHECK(gpu.loss == doctest::Approx(cpu.loss).epsilon(1e-5));
    CHECK(gpu.error == doctest::Approx(cpu.error).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace meshgrad
