// SPDX-License-Identifier: Apache-2.0
// What a run that fails says: the first value that is not finite, by block, op, tensor and row. On the CPU,
// and on a GPU (cuda) or the simulated device where there is one.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/non_finite.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using Phase = NonFinite::Phase;
using test::contains;
using test::devices;
using test::ScratchDirectory;

/// A model and a batch of one sample.
struct NonFiniteFixture {
  ScratchDirectory scratch;
  Config config;
  Dataset dataset;
  MeshDynamics features;
  Normalizers normalizers;
  Runtime runtime;
  Model model;
  Batch batch;

  NonFiniteFixture(Device device, DType precision, ComputePath path)
      : config(test::small_config(scratch.path, test::pack_waves(scratch.path, 4, 6))),
        dataset(Dataset::open(config.data.path)),
        features(dataset, config.data),
        normalizers(features.mesh().dataset_normalizers({})),
        runtime({.device = device, .threads = 1}),
        model([&] {
          config.model.path = path;
          return make_model(config.model, features.mesh().sizes);
        }()) {
    model.parameters.allocate(runtime, precision, 1);
    batch = training_batch(Task(features), runtime, precision, "train", {{0, 1, 0}}, {}, normalizers, false);
  }

  std::optional<NonFinite> search(double seed) {
    fill_zero(model.parameters.gradients(), runtime.stream());
    const std::optional<NonFinite> found = find_non_finite(runtime, Task(features), model, batch, seed);
    // The same where everything is recomputed.
    fill_zero(model.parameters.gradients(), runtime.stream());
    std::vector<RecomputedStages> stages;
    for (int64_t stage = 0; stage < static_cast<int64_t>(model.stages.size()); ++stage)
      stages.push_back({stage, stage + 1});
    const std::optional<NonFinite> again =
        find_non_finite(runtime, Task(features), model, batch, seed, {stages});
    CHECK(found.has_value() == again.has_value());
    if (found && again) CHECK(found->text() == again->text());
    return found;
  }

  /// Multiplies one parameter.
  void scale(const std::string& name, float factor) {
    const ParameterSet& set = model.parameters;
    const Tensor host = host_tensor(set.values().shape(), DType::f32);
    copy(to_host(set.values(), runtime.stream()), host, Stream(Device{}));
    const int64_t index = set.find(name);
    REQUIRE(index >= 0);
    const std::span<float> values = set.slice(host, static_cast<size_t>(index)).values<float>();
    for (float& w : values) w *= factor;
    set.set(set.values(), host, runtime.stream());
  }

  /// Writes one value into a tensor of f32.
  void put(const Tensor& tensor, int64_t at, float value) {
    copy(Tensor::borrow(&value, {1}, DType::f32),
         tensor.reshaped(Shape{tensor.elements()}).row_range(at, at + 1), runtime.stream());
  }
};

void check_found(const std::optional<NonFinite>& found, Phase phase, const std::string& scope,
                 const std::string& op, const std::string& tensor) {
  REQUIRE(found.has_value());
  CAPTURE(found->text());
  CHECK(found->phase == phase);
  CHECK(found->scope == scope);
  CHECK(found->op == op);
  CHECK(found->tensor == tensor);
  CHECK(found->count > 0);
  CHECK(found->count <= found->elements);
}

TEST_CASE("a finite step has nothing to report") {
  for (const Device device : devices()) {
    for (const DType precision : {DType::f32, DType::f16, DType::bf16}) {
      for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
        NonFiniteFixture f(device, precision, path);
        CHECK_FALSE(f.search(0.01).has_value());
        const Tensor gradients = to_host(f.model.parameters.gradients(), f.runtime.stream());
        double largest = 0.0;
        for (const float g : gradients.values<float>()) largest = std::max(largest, std::abs(double{g}));
        CHECK(largest > 0.0);
        CHECK(std::isfinite(largest));
      }
    }
  }
}

TEST_CASE("bad data and bad parameters are told apart") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : devices()) {
    NonFiniteFixture f(device, DType::f32, ComputePath::fused);
    const int64_t width = f.batch.tensor("target").width();
    f.put(f.batch.tensor("target"), 0, nan);  // of a wall: masked
    CHECK_FALSE(f.search(0.01).has_value());
    const int64_t row = 5;
    f.put(f.batch.tensor("target"), row * width + 1, nan);
    std::optional<NonFinite> found = f.search(0.01);
    check_found(found, Phase::given, "batch", "", "target");
    CHECK(found->row == row);
    CHECK(found->count == 1);
    CHECK(std::isnan(found->value));
    CHECK(found->elements < f.batch.tensor("target").elements());
    CHECK(contains(found->text(), "batch: target holds nan in row 5, and 1 of its"));
    CHECK(contains(found->fix(DType::f32), "bad values in the data"));

    f.put(f.batch.graph.edge_sets[0].features, 0, std::numeric_limits<float>::infinity());
    check_found(f.search(0.01), Phase::given, "batch", "", "edge features of mesh");

    NonFiniteFixture heavy(device, DType::f16, ComputePath::fused);
    heavy.scale("processor.1.node_mlp.linear_1.weight", 1e6f);
    found = heavy.search(0.01);
    check_found(found, Phase::given, "parameters", "", "processor.1.node_mlp.linear_1.weight in f16");
    CHECK(contains(found->fix(DType::f16), "optimizer.lr"));
  }
}

TEST_CASE("forward overflows are named by block, op and tensor") {
  for (const Device device : devices()) {
    {
      // Two weight matrices whose product is beyond 65504, each by itself in range.
      NonFiniteFixture f(device, DType::f16, ComputePath::op_by_op);
      f.scale("processor.1.edge_mlp.linear_0.weight", 6e4f);
      f.scale("processor.1.edge_mlp.linear_1.weight", 6e4f);
      const std::optional<NonFinite> found = f.search(0.01);
      check_found(found, Phase::forward, "processor.1", "linear", "linear");
      CHECK(contains(found->text(), "forward of op linear in processor.1: linear holds "));
      CHECK(contains(found->fix(DType::f16), "precision = \"bf16\""));
    }
    {
      NonFiniteFixture f(device, DType::f16, ComputePath::fused);
      f.scale("node_decoder.linear_1.weight", 6e4f);
      f.scale("node_decoder.linear_2.weight", 6e4f);
      check_found(f.search(0.01), Phase::forward, "decoder", "mlp", "mlp");
    }
    {
      NonFiniteFixture f(device, DType::f32, ComputePath::fused);
      f.scale("processor.0.edge_mlp.linear_0.weight", 1e30f);
      f.scale("processor.0.edge_mlp.linear_1.weight", 1e30f);
      const std::optional<NonFinite> found = f.search(0.01);
      REQUIRE(found.has_value());
      CHECK(found->scope == "processor.0");
      CHECK(found->op == "edge_update");
      CHECK_FALSE(contains(found->fix(DType::f32), "precision"));
    }
  }
}

TEST_CASE("backward overflows are named by block, op and tensor") {
  for (const Device device : devices()) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      NonFiniteFixture f(device, DType::f16, path);
      // The decoder's last layer amplifies small errors of the outputs in the backward pass.
      double seed = 1e3;
      while (!f.search(seed) && seed < 1e12) seed *= 8.0;
      const std::optional<NonFinite> found = f.search(seed);
      check_found(found, Phase::backward, found->scope, found->op, found->tensor);
      CHECK(contains(found->tensor, "gradient of "));
      CHECK(contains(found->fix(DType::f16), "loss_scale.floor"));
    }
    {
      NonFiniteFixture f(device, DType::f16, ComputePath::fused);
      check_found(f.search(1e12), Phase::backward, "", "masked_loss", "gradient of mlp");
    }
    {
      // All errors are of one sign: their sum, the gradient of the last bias, overflows before any other.
      NonFiniteFixture f(device, DType::f32, ComputePath::op_by_op);
      for (const char* name : {"linear_1.weight", "linear_1.bias", "linear_2.weight"})
        f.scale(std::string("node_decoder.") + name, 1e-6f);
      for (int64_t i = 0; i < f.batch.tensor("target").elements(); ++i)
        f.put(f.batch.tensor("target"), i, 1.0f);
      check_found(f.search(1e38), Phase::backward, "decoder", "linear",
                  "gradient of node_decoder.linear_2.bias");
    }
  }
}

// The trainer's report.

Config failing_config(const fs::path& folder, Device device) {
  Config config = test::small_config(folder, test::pack_waves(folder, 4, 6));
  config.run.device = device.kind == DeviceKind::cpu ? "cpu" : "cuda";
  config.model.width = 8;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 0;
  config.train.accumulate = 2;
  config.train.log_every = 1;
  return config;
}

Config overflowing_config(const fs::path& folder, Device device) {
  Config config = failing_config(folder, device);
  config.precision = DType::f16;
  config.train.noise = 1e6;  // features beyond 65504
  return config;
}

std::string failure_of(const Config& config, Device device, bool resume = false) {
  Runtime runtime({.device = device, .threads = 1});
  TrainOptions options;
  options.resume = resume;
  return test::message_of([&] { train(runtime, config, options); });
}

TEST_CASE("a run ends after max_skips skipped steps in a row") {
  for (const Device device : devices()) {
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      if (graphs == GraphsMode::capture && device.kind == DeviceKind::cpu) continue;
      const ScratchDirectory scratch;
      Config config = overflowing_config(scratch.path, device);
      config.graphs = graphs;
      config.loss_scale.max_skips = 4;
      const std::string text = failure_of(config, device);
      CAPTURE(text);
      CHECK(contains(text, "needed a finite gradient, got 4 steps in a row without one"));
      CHECK(contains(text, "loss scale 8192; batch: node features holds"));
      CHECK(contains(text, "[step 4]"));
      CHECK(contains(text, "fix: set precision = \"bf16\""));
    }
  }
}

TEST_CASE("a run of 16 bits does not end without a finite loss") {
  for (const Device device : devices()) {
    const ScratchDirectory scratch;
    Config config = overflowing_config(scratch.path, device);
    config.train.steps = 3;  // fewer than max_skips
    const std::string text = failure_of(config, device);
    CHECK_MESSAGE(contains(text, "[step 3] needed a finite loss at the last step, got nan or infinity"),
                  text);
    CHECK_MESSAGE(contains(text, "batch: node features holds"), text);
  }
}

TEST_CASE("skips in a row are counted over a stop and a resume") {
  const ScratchDirectory scratch;
  Config config = overflowing_config(scratch.path, {});
  config.loss_scale.max_skips = 4;
  int64_t batches = 0;
  CHECK(test::train_here(config, false, [&] { return ++batches == 5; }).stopped);
  CHECK(contains(failure_of(config, {}, true), "[step 4] needed a finite gradient, got 4 steps in a row"));
}

TEST_CASE("a loss that is not finite is reported by its batch") {
  for (const Device device : devices()) {
    const ScratchDirectory scratch;
    Config config = failing_config(scratch.path, device);
    config.optimizer = {.name = OptimizerKind::sgd, .lr = 1e30};
    config.schedule = {.name = RateCurve::constant};
    config.train.clip_norm = 0.0;
    const std::string text = failure_of(config, device);
    CAPTURE(text);
    CHECK(contains(text, "[step 2] needed a finite loss, got nan or infinity; forward of op "));
    CHECK(contains(text, "fix: lower optimizer.lr or set train.clip_norm"));
  }
}

TEST_CASE("the program exits 1 with the report") {
  const ScratchDirectory scratch;
  Config config = overflowing_config(scratch.path, {});
  config.loss_scale.max_skips = 2;
  const test::Outcome outcome =
      test::run_meshgrad({"train", test::write_config(scratch.path, config), "--quiet"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.err, "[step 2] needed a finite gradient, got 2 steps in a row without one; loss"));
  CHECK(contains(outcome.err, "batch: node features holds "));
}

}  // namespace
}  // namespace meshgrad
