// SPDX-License-Identifier: Apache-2.0
// Training with storage in 16 bits, on the CPU but where a case names cuda.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/mesh_dynamics.h>
#include <meshgrad/train/learn/task/task.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

Config config_of(const fs::path& folder, const fs::path& data, DType precision) {
  Config config = test::small_config(folder, data);
  config.precision = precision;
  config.run.dir = (folder / std::string(name_of(precision))).string();
  config.train.log_every = 1;
  return config;
}

TEST_CASE("a first precision is one that the device multiplies fast") {
  CHECK(precision_for({DeviceKind::cpu, 0}) == DType::f32);
  CHECK(precision_for_capability(90) == DType::bf16);
  CHECK(precision_for_capability(80) == DType::bf16);
  CHECK(precision_for_capability(75) == DType::f16);
  CHECK(precision_for_capability(61) == DType::f32);
}

// 30 steps of Adam move the weights by 30 learning rates at most, whatever the precision; what differs is the
// rounding of each loss and the side of relu on which a few pre-activations fall.
TEST_CASE("the CPU learns in 16 bits what it learns in f32") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  std::map<DType, std::vector<double>> valid;  // of each seed
  for (const int64_t seed : {3, 4, 5}) {
    CAPTURE(seed);
    const fs::path folder = scratch.path / std::to_string(seed);
    Config single = config_of(folder, data, DType::f32);
    single.run.seed = seed;
    valid[DType::f32].push_back(test::train_here(single).state.last_valid_loss);
    const std::vector<double> expected = test::losses_of(single.run.dir);
    REQUIRE(expected.size() == 30);
    // Single batches differ by more than a short run learns.
    CHECK(std::accumulate(expected.end() - 10, expected.end(), 0.0) <
          0.95 * std::accumulate(expected.begin(), expected.begin() + 10, 0.0));
    for (const DType precision : {DType::f16, DType::bf16}) {
      CAPTURE(name_of(precision));
      Config config = config_of(folder, data, precision);
      config.run.seed = seed;
      const TrainResult result = test::train_here(config);
      CHECK(result.state.optimizer.skipped == 0);
      valid[precision].push_back(result.state.last_valid_loss);
      const std::vector<double> losses = test::losses_of(config.run.dir);
      REQUIRE(losses.size() == expected.size());
      double largest = 0.0;
      for (size_t i = 0; i < losses.size(); ++i)
        largest = std::max(largest, std::abs(losses[i] / expected[i] - 1.0));
      CHECK(largest < (precision == DType::f16 ? 0.02 : 0.1));
      CHECK(largest > 0.0);
      CHECK(std::abs(valid[precision].back() / valid[DType::f32].back() - 1.0) < 0.1);
      const SafetensorsFile checkpoint(fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
      CHECK(checkpoint.view().at("model.processor.0.edge_mlp.linear_0.weight").dtype ==
            SafetensorsDtype::f32);
    }
  }
  const auto [least, most] = std::minmax_element(valid[DType::f32].begin(), valid[DType::f32].end());
  for (const DType precision : {DType::f16, DType::bf16}) {
    const double mean = (valid[precision][0] + valid[precision][1] + valid[precision][2]) / 3.0;
    CHECK(mean > *least);
    CHECK(mean < *most);
  }
}

TEST_CASE("a run in 16 bits does not depend on threads or stops") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  for (const DType precision : {DType::f16, DType::bf16}) {
    CAPTURE(name_of(precision));
    Config config = config_of(scratch.path, data, precision);
    const std::string dir = config.run.dir;
    config.run.dir = dir + "-straight";
    test::train_here(config);
    const std::string straight = test::checkpoint_bytes(config.run.dir, "last");
    CHECK(!straight.empty());
    config.run.dir = dir + "-threads";
    test::train_here(config, false, nullptr, 3);
    CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(dir + "-straight"));
    config.run.dir = dir + "-stopped";
    int64_t batches = 0;
    CHECK(test::train_here(config, false, [&] { return ++batches == 40; }).stopped);
    CHECK_FALSE(test::train_here(config, true).stopped);
    CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(dir + "-straight"));
  }
}

/// Bytes of activations that a forward pass of the small model keeps.
int64_t kept_by_forward(Device device, DType precision, ComputePath path, const fs::path& data) {
  Config config = test::small_config({}, data);
  config.model.path = path;
  Runtime runtime({.device = device, .threads = 1});
  const Dataset dataset = Dataset::open(config.data.path);
  const MeshDynamics features(dataset, config.data);
  config.precision = precision;
  const Model model = make_model(runtime, config, features.mesh().sizes);
  Normalizers normalizers = features.mesh().dataset_normalizers({});
  const Batch batch =
      training_batch(Task(features), runtime, precision, "train", {{0, 1, 0}}, {}, normalizers, false);
  Tape tape(runtime);
  const Variable prediction = forward(model, tape, batch.graph).front();
  CHECK(prediction.value().dtype() == precision);
  return runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].requested.current;
}

TEST_CASE("activations in 16 bits take half the bytes of f32") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path, 5, 4);
  std::vector<Device> devices{Device{}};
  if (!cuda_devices().empty()) devices.push_back({DeviceKind::cuda, 0});
  for (const Device device : devices) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      const int64_t single = kept_by_forward(device, DType::f32, path, data);
      CHECK(single > 10000);
      CHECK(2 * kept_by_forward(device, DType::f16, path, data) == single);
      CHECK(2 * kept_by_forward(device, DType::bf16, path, data) == single);
    }
  }
}

TEST_CASE("a run with a changing loss scale survives any stop") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch.path, test::pack_waves(scratch.path), DType::f16);
  config.loss_scale.rule = {.initial = 1e9, .growth = 4.0, .interval = 3, .cap = 1e12, .hysteresis = 2};
  const TrainResult straight = test::train_here(config);
  CHECK(straight.state.optimizer.skipped > 10);
  CHECK(straight.state.optimizer.steps > 10);
  fs::rename(config.run.dir, scratch.path / "straight");
  std::set<double> scales;
  for (const auto& row : read_metrics(scratch.path / "straight" / "metrics.jsonl"))
    if (row.count("loss_scale") > 0) scales.insert(row.at("loss_scale"));
  CHECK(scales.size() > 3);
  int64_t batches = 0;
  const auto stop = [&] { return ++batches % 7 == 0; };
  bool stopped = test::train_here(config, false, stop).stopped;
  int64_t pieces = 1;
  for (; stopped && pieces < 20; ++pieces) stopped = test::train_here(config, true, stop).stopped;
  CHECK(pieces == 14);
  CHECK(test::checkpoint_bytes(config.run.dir, "last") ==
        test::checkpoint_bytes(scratch.path / "straight", "last"));
  CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(scratch.path / "straight"));
}

TEST_CASE("gradients freed between windows leave the same run") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  for (const DType precision : {DType::f32, DType::f16}) {
    Config config = config_of(scratch.path, data, precision);
    config.train.steps = 6;
    config.train.validate_every = 2;
    test::train_here(config);
    const fs::path kept = scratch.path / ("kept-" + std::string(name_of(precision)));
    fs::rename(config.run.dir, kept);
    config.train.free_gradients = true;
    std::vector<int64_t> between, within;
    const auto piece = [&](bool resume, int64_t last) {
      Runtime runtime({.device = {}, .threads = 1});
      const auto gradients = [&] {
        return runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::gradients)].allocated.current;
      };
      TrainOptions options;
      options.resume = resume;
      options.observer.progress = [&](const TrainObserver::Progress&) { between.push_back(gradients()); };
      options.observer.stop = [&] {
        if (const int64_t bytes = gradients(); bytes > 0) within.push_back(bytes);
        return static_cast<int64_t>(within.size()) == last;
      };
      return train(runtime, config, options).stopped;
    };
    CHECK(piece(false, 5));  // in the middle of the third window
    CHECK_FALSE(piece(true, -1));
    CHECK(between == std::vector<int64_t>(6, 0));
    CHECK(within.size() == 12);  // after the first and the second batch of each window
    CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(kept));
    const SafetensorsFile a(kept / "checkpoints" / "last.safetensors");
    const SafetensorsFile b(fs::path(config.run.dir) / "checkpoints" / "last.safetensors");
    for (const SafetensorsTensor& tensor : a.view().tensors)
      CHECK(to_f64(tensor) == to_f64(b.view().at(tensor.name)));
  }
}

TEST_CASE("a run in 16 bits says once what is stored how") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path, 4, 6);
  for (const DType precision : {DType::f32, DType::f16, DType::bf16}) {
    Config config = config_of(scratch.path, data, precision);
    config.train.steps = 1;
    config.train.validate_every = 0;
    config.loss_scale.rule.initial = 1024.0;
    std::vector<std::string> lines;
    Runtime runtime({.device = {}, .threads = 1});
    TrainOptions options;
    options.observer.event = [&](const RunEvent& event) {
      if (event.text.starts_with("precision ")) lines.push_back(event.text);
    };
    train(runtime, config, options);
    REQUIRE(lines.size() == (precision == DType::f32 ? 0 : 1));
    if (precision == DType::f16) CHECK(test::contains(lines[0], "16 bits; master weights, weight gradients"));
    if (precision == DType::f16) CHECK(test::contains(lines[0], "the loss scale is 1024"));
    if (precision == DType::bf16) CHECK(test::contains(lines[0], "no loss scale"));
  }
}

TEST_CASE("f16 overflows skip steps and lower the loss scale") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch.path, test::pack_waves(scratch.path), DType::f16);
  config.train.noise = 1e6;
  config.train.steps = 9;
  config.train.validate_every = 0;
  int polls = 0;
  const RunState state = test::train_here(config, false, [&] { return ++polls == 9; }).state;
  CHECK(state.optimizer.skipped == 3);
  CHECK(state.optimizer.steps == 0);
}

TEST_CASE("tf32 says what it does on this device") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch.path, test::pack_waves(scratch.path), DType::f32);
  config.train.steps = 2;
  config.tf32 = true;
  std::string checkpoints[2];
  std::vector<std::string> said;
  for (const bool on : {false, true}) {
    config.run.dir = (scratch.path / (on ? "on" : "off")).string();
    Runtime runtime({.threads = 1, .tf32 = on});
    TrainOptions options;
    options.observer.event = [&](const RunEvent& event) { said.push_back(event.text); };
    train(runtime, config, options);
    for (const double loss : test::losses_of(config.run.dir))
      checkpoints[on ? 1 : 0] += std::to_string(loss) + " ";
  }
  CHECK(checkpoints[0] == checkpoints[1]);
  CHECK(std::count(said.begin(), said.end(),
                   "tf32 = true has no effect on the CPU, whose GEMMs multiply in f32") == 1);
}

}  // namespace
}  // namespace meshgrad
