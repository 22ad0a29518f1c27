// SPDX-License-Identifier: Apache-2.0
// Unrolled training: batches of several steps, predictions that are a rollout's, gradients through the state,
// and runs. On the CPU, and on a GPU (cuda) or the simulated device where there is one.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/non_finite.h>

#include <algorithm>
#include <cmath>

#include "train/unroll_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::devices;
using test::message_of;
using test::ScratchDirectory;
using test::UnrollCase;

constexpr Prediction kPredictions[] = {Prediction::change, Prediction::second_change};

TEST_CASE("an unrolled batch has later frames without noise") {
  for (const Prediction predict : kPredictions) {
    UnrollCase c({.predict = predict, .precision = DType::f64});
    const NoiseOptions noise{.deviation = 0.1, .gamma = 1.0, .seed = 3};
    const auto batch_of = [&](const std::vector<Sample>& samples, const NoiseOptions& with, int64_t steps) {
      return training_batch(c.unrolled(steps), c.runtime, DType::f64, "train", samples, with, c.normalizers);
    };
    const Batch unrolled = batch_of({{0, 2, 0}, {1, 4, 0}}, noise, 3);
    const Batch first = batch_of({{0, 2, 0}, {1, 4, 0}}, noise, 1);
    CHECK_FALSE(first.has("unroll.target"));
    CHECK(test::equal_bits(unrolled.graph.node_features, first.graph.node_features));
    CHECK(test::equal_bits(unrolled.tensor("target"), first.tensor("target")));
    REQUIRE(UnrollCase::frames_of(unrolled) == 3);
    for (int64_t k = 1; k < 3; ++k) {
      const Batch data = batch_of({{0, 2 + k, 0}, {1, 4 + k, 0}}, {}, 1);
      const UnrolledFrame frame = unrolled_frame(unrolled, k);
      CHECK(test::equal_bits(frame.nodes, data.graph.node_features));
      CHECK(test::equal_bits(frame.target, data.tensor("target")));
    }
    const auto source = unrolled.tensor("unroll.source").values<int32_t>();
    const auto ratio = unrolled.tensor("unroll.ratio").values<double>();
    for (size_t column = 0; column < source.size(); ++column) {
      CHECK(source[column] == (column < 2 ? static_cast<int32_t>(column) : -1));
      CHECK(ratio[column] == (column < 2 ? c.normalizers.targets.standard_deviation(column) /
                                               c.normalizers.nodes.standard_deviation(column)
                                         : 0.0));
    }
  }
}

TEST_CASE("online normalisers learn from the first step only") {
  UnrollCase c({.precision = DType::f64});
  Normalizers one = c.features.mesh().online_normalizers(), many = one;
  const auto learn = [&](Normalizers& normalizers, int64_t steps) {
    return training_batch(c.unrolled(steps), c.runtime, DType::f64, "train", {{0, 2, 0}}, {}, normalizers,
                          true);
  };
  learn(one, 1);
  const Batch batch = learn(many, 4);
  CHECK(one.nodes.means() == many.nodes.means());
  CHECK(one.targets.squared_deviations() == many.targets.squared_deviations());
  CHECK(batch.tensor("unroll.ratio").values<double>()[1] ==
        many.targets.standard_deviation(1) / many.nodes.standard_deviation(1));
}

/// Errors of a rollout from a frame of the data with the data as its boundary: [step][node, output], in
/// standard deviations of the target; 0 on nodes that are not predicted.
std::vector<std::vector<double>> rollout_errors(UnrollCase& c, const Sample& sample, int64_t steps) {
  const TrajectoryView trajectory = c.dataset.trajectory("train", sample.trajectory);
  const std::vector<uint8_t> mask = c.features.mesh().fields.predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(c.features.mesh().fields.outputs);
  FieldState state = c.features.mesh().state_at(trajectory, sample.frame);
  std::vector<std::vector<double>> errors;
  for (int64_t t = sample.frame; t < sample.frame + steps; ++t) {
    const Batch batch = c.features.mesh().prediction_batch(c.runtime, c.config.precision, trajectory, t,
                                                           state, c.normalizers);
    Tape tape(c.runtime, Tape::Mode::evaluate);
    const Tensor prediction =
        to_host(forward(c.model, tape, batch.graph).front().value(), c.runtime.stream());
    SampleScratch scratch;
    FieldState predicted = state;
    c.features.mesh().advance(trajectory.mesh(), prediction, c.normalizers, scratch, predicted);
    std::vector<float>& next = predicted.current;
    const std::vector<float> truth = c.features.mesh().fields.target_values(trajectory, t + 1);
    std::vector<double>& now = errors.emplace_back(next.size());
    for (size_t i = 0; i < next.size(); ++i) {
      if (mask[i / width] == 0) next[i] = truth[i];
      now[i] = (static_cast<double>(next[i]) - static_cast<double>(truth[i])) /
               c.normalizers.targets.standard_deviation(i % width);
    }
    if (!state.previous.empty()) state.previous = state.current;
    state.current = std::move(next);
  }
  return errors;
}

TEST_CASE("unrolled predictions are those of a rollout") {
  constexpr int64_t kSteps = 5;
  const std::vector<Sample> samples{{0, 2, 0}, {1, 6, 0}};
  for (const Device device : devices()) {
    for (const Prediction predict : kPredictions) {
      for (const DType precision : {DType::f64, DType::f32}) {
        if (device.kind == DeviceKind::cuda && precision == DType::f64) continue;
        CAPTURE(name_of(device));
        CAPTURE(name_of(precision));
        CAPTURE(static_cast<int>(predict));
        UnrollCase c({.predict = predict, .precision = precision, .device = device});
        std::vector<Tensor> errors;
        const double loss = c.loss(c.batch(kSteps, samples), &errors);
        REQUIRE(errors.size() == kSteps);
        double worst = 0.0, largest = 0.0, sum = 0.0;
        int64_t first_row = 0;
        for (const Sample& sample : samples) {
          const auto expected = rollout_errors(c, sample, kSteps);
          for (size_t k = 0; k < expected.size(); ++k) {
            const test::Matrix ours = test::to_matrix(to_host(errors[k], c.runtime.stream()));
            for (size_t i = 0; i < expected[k].size(); ++i) {
              const double error = ours.v[static_cast<size_t>(first_row * ours.cols) + i];
              worst = std::max(worst, std::abs(error - expected[k][i]));
              largest = std::max(largest, std::abs(error));
              sum += error * error;
            }
          }
          first_row += static_cast<int64_t>(expected[0].size()) / c.features.mesh().fields.outputs;
        }
        // A rollout rounds its state to f32: 1e-7 of fields of about 1, of which a standard deviation of the
        // target is a few hundredths, or thousandths of second changes.
        CHECK(largest > 1.0);
        CHECK(worst < 5e-5 * largest);
        CHECK(loss == doctest::Approx(sum).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("the first step's loss is that of a single step") {
  for (const Prediction predict : kPredictions) {
    UnrollCase c({.predict = predict});
    std::vector<Tensor> errors;
    const double all = c.loss(c.batch(2), &errors);
    double second = 0.0;
    for (const double error : test::to_matrix(errors[1]).v) second += error * error;
    CHECK(c.loss(c.batch(1)) == doctest::Approx(all - second).epsilon(1e-6));
  }
}

TEST_CASE("gradients through three steps are the finite differences") {
  for (const Prediction predict : kPredictions) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      UnrollCase c({.predict = predict,
                    .precision = DType::f64,
                    .path = path,
                    .activation = Activation::tanh,
                    .width = 3,
                    .blocks = 1,
                    .side = 3});
      const Batch batch = c.batch(3);
      const Tensor gradients = c.gradients(batch, {}).values;
      const std::span<double> parameters = c.model.parameters.values().values<double>();
      const double factor = c.read(c.seed);
      double worst = 0.0, largest = 0.0;
      constexpr double kStep = 1e-5;
      for (size_t i = 0; i < parameters.size(); i += 3) {
        const double middle = parameters[i];
        parameters[i] = middle + kStep;
        const double above = c.loss(batch);
        parameters[i] = middle - kStep;
        const double below = c.loss(batch);
        parameters[i] = middle;
        const double difference = factor * (above - below) / (2.0 * kStep);
        largest = std::max(largest, std::abs(difference));
        worst = std::max(worst, std::abs(difference - gradients.data<double>()[i]));
      }
      CHECK(largest > 0.1);
      CHECK(worst < 1e-7 * largest);
    }
  }
}

TEST_CASE("a window's loss is the mean over its steps") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4));
  config.unroll.steps = 4;
  config.train.steps = 1;
  config.train.accumulate = 2;
  config.train.noise = 0.0;
  config.train.validate_every = 0;
  test::train_here(config);
  double logged = 0.0;
  for (const auto& row : read_metrics(fs::path(config.run.dir) / "metrics.jsonl"))
    if (row.count("loss") > 0) logged = row.at("loss");

  const Dataset dataset = Dataset::open(config.data.path);
  const MeshDynamics features(dataset, config.data, 4);
  Normalizers normalizers = features.mesh().dataset_normalizers({});
  Runtime runtime({.device = {}, .threads = 1});
  const Task task(features);
  const Model model = make_model(runtime, config, task.sizes());
  const Sampler sampler(task, "train", static_cast<uint64_t>(config.run.seed));
  const Recomputation none;
  double sum = 0.0, count = 0.0;
  for (int64_t i = 0; i < 4; ++i) {
    const Sample sample = sampler.at(i);
    CHECK(sample.frame + 4 < dataset.frames("train", sample.trajectory));
    const Batch batch = training_batch(task, runtime, config.precision, "train", {sample}, {}, normalizers);
    Tape tape(runtime, Tape::Mode::evaluate);
    sum += *task.loss(tape, model, batch, none).sum.value().data<double>();
    const MeshView mesh = dataset.trajectory("train", sample.trajectory).mesh();
    count += 4.0 * static_cast<double>(features.mesh().fields.predicted_nodes(mesh));
  }
  CHECK(logged == doctest::Approx(sum / count).epsilon(1e-6));
}

TEST_CASE("the sampler leaves the unrolled steps their frames") {
  const ScratchDirectory scratch;
  const Dataset dataset = Dataset::open(test::pack_waves(scratch.path, 3, 6));
  const auto task = [&](Prediction predict, int64_t frames) {
    DataConfig config;
    config.predict = predict;
    return Task(MeshDynamics(dataset, config, frames));
  };
  CHECK(task(Prediction::change, 1).mesh().sample_frames(6).end == 5);
  CHECK(task(Prediction::change, 4).mesh().sample_frames(6).end == 2);
  CHECK(Sampler(task(Prediction::change, 3), "train", 0).samples() == 2 * 3);
  CHECK(Sampler(task(Prediction::second_change, 3), "train", 0).samples() == 2 * 2);
  CHECK(Sampler(task(Prediction::change, 5), "train", 0).samples() == 2);
  const std::string message = message_of([&] { Sampler(task(Prediction::second_change, 5), "train", 0); });
  CHECK_MESSAGE(
      contains(message,
               "needed trajectories of at least 7 frames, got none; fix: lower unroll.steps or data.history"),
      message);
}

TEST_CASE("an unrolled run resumes to the same bits") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4));
  config.unroll.steps = 3;
  config.train.steps = 6;
  config.train.validate_every = 3;
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 2;
  config.normalize.max_samples = 24;
  config.memory.plan_steps = true;
  test::train_here(config);
  const std::string straight = test::checkpoint_bytes(config.run.dir, "last");
  const std::string metrics = test::lasting_metrics(config.run.dir);
  fs::remove_all(config.run.dir);
  int64_t batches = 0;
  test::train_here(config, false, [&] { return ++batches == 8; });
  config.recompute.segments = SegmentUnit::sequence;  // may change at a resume
  config.recompute.mode = RecomputeMode::block;
  batches = 0;
  test::train_here(config, true, [&] { return ++batches == 6; });
  config.recompute = {};
  test::train_here(config, true);
  CHECK(test::checkpoint_bytes(config.run.dir, "last") == straight);
  CHECK(test::lasting_metrics(config.run.dir) == metrics);
  config.unroll.steps = 2;
  CHECK(contains(message_of([&] { test::train_here(config, true); }), "[unroll.steps]"));
}

TEST_CASE("a bad value is found in a later unrolled step, too") {
  for (const Device device : devices()) {
    CAPTURE(name_of(device));
    UnrollCase c({.precision = DType::f32, .device = device});
    Batch batch = c.batch(3);
    CHECK_FALSE(find_non_finite(c.runtime, c.unrolled(3), c.model, batch, 1.0).has_value());
    // A state that is off by far more than f32 holds.
    Tensor& in_batch = std::find_if(batch.tensors.begin(), batch.tensors.end(), [](const NamedTensor& named) {
                         return named.name == "unroll.ratio";
                       })->tensor;
    const Tensor ratio = in_batch;
    const std::vector<float> huge(static_cast<size_t>(ratio.elements()), 3e38f);
    in_batch = Tensor::from<float>(c.runtime, huge, ratio.shape(), Tag::data, "ratio");
    for (const SegmentUnit unit : {SegmentUnit::block, SegmentUnit::frame, SegmentUnit::sequence}) {
      const auto found = find_non_finite(c.runtime, c.unrolled(3), c.model, batch, 1.0, {.segments = unit});
      REQUIRE(found.has_value());
      CHECK(found->phase == NonFinite::Phase::forward);
      CHECK_MESSAGE(contains(found->text(), "forward of op add_columns in frame.1: shifted holds "),
                    found->text());
    }
    in_batch = ratio;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    copy(Tensor::from<float>(c.runtime, std::vector<float>{nan, nan}, {1, 2}, Tag::data, "nan"),
         unrolled_frame(batch, 2).target.row_range(5, 6), c.runtime.stream());
    const auto given = find_non_finite(c.runtime, c.unrolled(3), c.model, batch, 1.0);
    REQUIRE(given.has_value());
    CHECK_MESSAGE(contains(given->text(), "batch: target of unrolled step 2 holds nan in row 5"),
                  given->text());
  }
}

TEST_CASE("on a device, too, gradients do not depend on recomputation" *
          doctest::skip(cuda_devices().empty())) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    UnrollCase c({.predict = Prediction::second_change,
                  .precision = precision,
                  .side = 3,
                  .device = {DeviceKind::cuda, 0}});
    const Batch batch = c.batch(3, {{0, 2, 0}});
    const Tensor plain = c.gradients(batch, {}).values;
    CHECK(test::magnitude(test::to_matrix(plain)) > 0.0);
    c.config.recompute.mode = RecomputeMode::block;
    for (const SegmentUnit unit : {SegmentUnit::frame, SegmentUnit::sequence}) {
      const Recomputation again{.stages = uniform_segments(c.config, c.model), .segments = unit};
      CHECK(test::equal_bits(c.gradients(batch, again).values, plain));
    }
  }
}

struct DeviceRuns {
  ScratchDirectory scratch;
  Config config;

  DeviceRuns() : config(test::small_config(scratch.path, test::pack_waves(scratch.path, 3, 6))) {
    config.unroll.steps = 2;
    config.model.width = 8;
    config.train.steps = 3;
    config.train.batch = config.train.accumulate = 1;
    config.train.validate_every = config.train.checkpoint_every = 0;
    config.train.log_every = 1;
  }
  Config named(const std::string& name) const {
    Config one = config;
    one.run.dir = (scratch.path / name).string();
    return one;
  }
  static void run(const Config& one, Device device, bool resume = false, int64_t stop_after = -1) {
    Runtime runtime({.device = device, .threads = 2, .allocator = one.memory});
    TrainOptions options;
    options.resume = resume;
    int64_t batches = 0;
    options.observer.stop = [&] { return ++batches == stop_after; };
    train(runtime, one, options);
  }
  static std::vector<double> losses(const Config& one) {
    std::vector<double> all;
    for (const auto& row : read_metrics(fs::path(one.run.dir) / "metrics.jsonl"))
      if (row.count("loss") > 0) all.push_back(row.at("loss"));
    return all;
  }
};

TEST_CASE("a device trains unrolled samples as the CPU does" * doctest::skip(cuda_devices().empty())) {
  DeviceRuns runs;
  constexpr Device kFirstGpu{DeviceKind::cuda, 0};
  const Config cpu = runs.named("cpu");
  DeviceRuns::run(cpu, {});
  const std::vector<double> expected = DeviceRuns::losses(cpu);
  REQUIRE(expected.size() == 3);
  runs.config.run.device = "cuda";
  std::vector<double> captured;
  for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
    runs.config.graphs = graphs;
    const Config straight = runs.named(graphs == GraphsMode::off ? "off" : "captured");
    DeviceRuns::run(straight, kFirstGpu);
    captured = DeviceRuns::losses(straight);
    REQUIRE(captured.size() == expected.size());
    for (size_t i = 0; i < captured.size(); ++i)
      CHECK(captured[i] == doctest::Approx(expected[i]).epsilon(1e-3));
  }
  Config broken = runs.named("broken");
  DeviceRuns::run(broken, kFirstGpu, false, 2);
  broken.recompute.segments = SegmentUnit::frame;
  DeviceRuns::run(broken, kFirstGpu, true);
  CHECK(DeviceRuns::losses(broken) == captured);
  runs.config.precision = DType::f16;
  runs.config.train.steps = 1;
  const Config narrow = runs.named("narrow");
  DeviceRuns::run(narrow, kFirstGpu);
  CHECK(DeviceRuns::losses(narrow).front() == doctest::Approx(expected.front()).epsilon(0.05));
}

}  // namespace
}  // namespace meshgrad
