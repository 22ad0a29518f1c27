// SPDX-License-Identifier: Apache-2.0
// The keys loss.*: what errors cost, weights of fields and node types, sampled nodes, the change penalty.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/training_loss.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "support.h"
#include "train/unroll_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::UnrollCase;

/// What a model that predicts a constant costs; with 0 all errors are targets. [sum, weight, penalty].
std::array<double, 3> loss_of_constant(UnrollCase& c, double value, const LossConfig& loss,
                                       const std::vector<Sample>& samples, uint64_t seed = 0) {
  const Task task(MeshDynamics(c.dataset, c.config.data, 1, loss));
  const Batch batch =
      training_batch(task, c.runtime, c.config.precision, "train", samples, {.seed = seed}, c.normalizers);
  const Shape shape = batch.tensor("target").shape();
  const std::vector<double> values(static_cast<size_t>(shape.elements()), value);
  const Tensor prediction = Tensor::from<double>(c.runtime, values, shape, Tag::data, "prediction");
  const Model model = model_giving(c.model, {Variable(prediction, false)});
  Tape tape(c.runtime, Tape::Mode::evaluate);
  const LossTerms terms = task.loss(tape, model, batch, {});
  return {c.read(terms.sum.value()), task.loss_weight("train", samples),
          terms.penalty ? c.read(terms.penalty.value()) : 0.0};
}

std::array<double, 3> loss_of_zero(UnrollCase& c, const LossConfig& loss, const std::vector<Sample>& samples,
                                   uint64_t seed = 0) {
  return loss_of_constant(c, 0.0, loss, samples, seed);
}

/// Sum over predicted nodes of what cost(component, node type, target) says of a sample's normalised targets.
double sum_over_targets(UnrollCase& c, const Sample& sample,
                        const std::function<double(size_t, int32_t, double)>& cost) {
  const Batch batch = c.batch(1, {sample});
  const std::span<const double> target = batch.tensor("target").values<double>();
  const MeshView mesh = c.dataset.trajectory("train", sample.trajectory).mesh();
  double sum = 0.0;
  for (size_t i = 0; i < target.size(); ++i) {
    const int32_t type = mesh.node_type[i / 2];
    if (c.features.mesh().fields.is_predicted(type)) sum += cost(i % 2, type, target[i]);
  }
  return sum;
}

TEST_CASE("what errors cost, by hand") {
  UnrollCase c({.precision = DType::f64});
  const Sample sample{1, 3, 0};
  LossConfig loss;
  const double squares = sum_over_targets(c, sample, [](size_t, int32_t, double t) { return t * t; });
  CHECK(loss_of_zero(c, loss, {sample})[0] == doctest::Approx(squares).epsilon(1e-12));

  loss.name = LossName::l1;
  const double sizes = sum_over_targets(c, sample, [](size_t, int32_t, double t) { return std::abs(t); });
  CHECK(loss_of_zero(c, loss, {sample})[0] == doctest::Approx(sizes).epsilon(1e-12));

  loss.name = LossName::huber;
  loss.delta = 0.6;
  const double huber = sum_over_targets(c, sample, [](size_t, int32_t, double t) {
    return std::abs(t) <= 0.6 ? t * t : 0.6 * (2.0 * std::abs(t) - 0.6);
  });
  CHECK(huber < squares);
  CHECK(loss_of_zero(c, loss, {sample})[0] == doctest::Approx(huber).epsilon(1e-12));
  loss.delta = 1e6;
  CHECK(loss_of_zero(c, loss, {sample})[0] == doctest::Approx(squares).epsilon(1e-12));

  // A prediction of nothing is off by the whole target, in every sample.
  loss.name = LossName::relative_l2;
  for (const int64_t frame : {0, 5, 9}) {
    const auto terms = loss_of_zero(c, loss, {{0, frame, 0}, {1, frame, 0}});
    CHECK(terms[0] / terms[1] == doctest::Approx(1.0).epsilon(1e-9));
  }
}

TEST_CASE("weights of fields and of node types") {
  UnrollCase c({.precision = DType::f64});
  const Sample sample{0, 2, 0};
  LossConfig loss;
  loss.field_weights = {{"velocity", 2.5}};
  const double plain = loss_of_zero(c, {}, {sample})[0];
  CHECK(loss_of_zero(c, loss, {sample})[0] == doctest::Approx(2.5 * plain).epsilon(1e-12));
  loss.type_weights = {{"5", 10.0}};
  const double weighted = sum_over_targets(
      c, sample, [](size_t, int32_t type, double t) { return 2.5 * (type == 5 ? 10.0 : 1.0) * t * t; });
  const double weight = sum_over_targets(c, sample, [](size_t component, int32_t type, double) {
    return component == 1 ? 0.0 : type == 5 ? 10.0 : 1.0;
  });
  const auto terms = loss_of_zero(c, loss, {sample});
  CHECK(terms[0] == doctest::Approx(weighted).epsilon(1e-12));
  CHECK(terms[1] == weight);

  // The same weight of all types changes no mean.
  loss = {};
  loss.type_weight = 4.0;
  const auto scaled = loss_of_zero(c, loss, {sample});
  const auto unscaled = loss_of_zero(c, {}, {sample});
  CHECK(scaled[0] / scaled[1] == doctest::Approx(unscaled[0] / unscaled[1]).epsilon(1e-12));
}

TEST_CASE("the change penalty is a second term of the loss") {
  UnrollCase c({.precision = DType::f64});
  const Sample sample{0, 2, 0};
  LossConfig loss;
  loss.name = LossName::l1;  // the penalty stays squared
  loss.type_weights = {{"5", 10.0}};
  const double errors = loss_of_constant(c, 3.0, loss, {sample})[0];
  loss.change_penalty = 0.25;
  const double penalty = sum_over_targets(
      c, sample, [](size_t, int32_t type, double) { return 0.25 * (type == 5 ? 10.0 : 1.0) * 9.0; });
  const auto terms = loss_of_constant(c, 3.0, loss, {sample});
  CHECK(terms[2] == doctest::Approx(penalty).epsilon(1e-12));
  CHECK(terms[0] == doctest::Approx(errors + penalty).epsilon(1e-12));
  CHECK(terms[1] == loss_of_zero(c, loss, {sample})[1]);
}

TEST_CASE("gradients of an unrolled loss match differences") {
  for (const LossName name : {LossName::mse, LossName::huber, LossName::relative_l2}) {
    CAPTURE(static_cast<int>(name));
    UnrollCase c({.precision = DType::f64, .activation = Activation::tanh, .width = 3, .blocks = 1});
    LossConfig loss;
    loss.name = name;
    loss.delta = 0.5;
    loss.sample = 0.5;
    loss.type_weights = {{"5", 3.0}};
    loss.field_weights = {{"velocity", 0.7}};
    loss.change_penalty = 0.4;
    const Task task(MeshDynamics(c.dataset, c.config.data, 3, loss));
    const Batch batch =
        training_batch(task, c.runtime, DType::f64, "train", {{0, 2, 0}, {1, 3, 0}}, {}, c.normalizers);
    const auto value = [&] {
      Tape tape(c.runtime, Tape::Mode::evaluate);
      return c.read(task.loss(tape, c.model, batch, {}).sum.value());
    };
    {
      fill_zero(c.model.parameters.gradients(), c.runtime.stream());
      Tape tape(c.runtime);
      tape.backward(task.loss(tape, c.model, batch, {}).sum, c.seed);
    }
    const std::span<const double> gradients = c.model.parameters.gradients().values<double>();
    const std::span<double> parameters = c.model.parameters.values().values<double>();
    double worst = 0.0, largest = 0.0;
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < parameters.size(); i += 3) {
      const double middle = parameters[i];
      parameters[i] = middle + kStep;
      const double above = value();
      parameters[i] = middle - kStep;
      const double below = value();
      parameters[i] = middle;
      const double difference = c.read(c.seed) * (above - below) / (2.0 * kStep);
      largest = std::max(largest, std::abs(difference));
      worst = std::max(worst, std::abs(difference - gradients[i]));
    }
    CHECK(largest > 0.01);
    CHECK(worst < 1e-7 * largest);
  }
}

TEST_CASE("an unrolled relative error is a share of the first target") {
  UnrollCase c({.precision = DType::f64});
  LossConfig relative;
  relative.name = LossName::relative_l2;
  const Sample sample{1, 3, 0};
  const auto unrolled = [&](const LossConfig& loss) {
    const Task task(MeshDynamics(c.dataset, c.config.data, 3, loss));
    const Batch batch = training_batch(task, c.runtime, DType::f64, "train", {sample}, {}, c.normalizers);
    Tape tape(c.runtime, Tape::Mode::evaluate);
    return c.read(task.loss(tape, c.model, batch, {}).sum.value());
  };
  const auto first = loss_of_zero(c, {}, {sample});  // the target's squares, and the nodes
  CHECK(unrolled(relative) == doctest::Approx(unrolled({}) / (first[0] / first[1])).epsilon(1e-12));
}

TEST_CASE("validation counts all nodes, without the penalty") {
  UnrollCase c({.precision = DType::f64});
  LossConfig plain, training;
  plain.name = training.name = LossName::huber;
  plain.type_weights = training.type_weights = {{"5", 3.0}};
  training.sample = 0.25;
  training.change_penalty = 0.5;
  const std::vector<Sample> samples{{0, 2, 0}, {1, 3, 0}};
  const auto terms = [&](const Task& task) {
    const Batch batch = training_batch(task, c.runtime, DType::f64, "train", samples, {}, c.normalizers);
    Tape tape(c.runtime, Tape::Mode::evaluate);
    const LossTerms loss = task.loss(tape, c.model, batch, {});
    CHECK(!loss.penalty);
    return std::pair(c.read(loss.sum.value()), task.loss_weight("train", samples));
  };
  const Task task(MeshDynamics(c.dataset, c.config.data, 1, training));
  CHECK(terms(task.for_validation()) == terms(Task(MeshDynamics(c.dataset, c.config.data, 1, plain))));
}

TEST_CASE("sampled nodes have the mean of all nodes") {
  // Values of 50 nodes, of which 15 count each time: Var = (1 - n/N) S^2 / n, S^2 = sum (x - mean)^2 / (N -
  // 1).
  constexpr size_t kNodes = 50;
  std::vector<double> values(kNodes), weights(kNodes);
  for (size_t i = 0; i < kNodes; ++i) values[i] = normal(7, hash_of("values"), i) + (i == 3 ? 4.0 : 0.0);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / kNodes;
  double spread = 0.0;
  for (const double value : values) spread += (value - mean) * (value - mean) / (kNodes - 1);
  const double chosen = static_cast<double>(sampled_nodes(0.3, kNodes));
  CHECK(chosen == 15.0);
  const double expected = (1.0 - chosen / kNodes) * spread / chosen;

  constexpr uint32_t kVisits = 40000;
  double sum = 0.0, squares = 0.0;
  std::vector<int> counts(kNodes);
  for (uint32_t visit = 0; visit < kVisits; ++visit) {
    sample_nodes(0.3, 5, /*sample=*/0x100000003u, visit, weights);
    double estimate = 0.0;
    for (size_t i = 0; i < kNodes; ++i) {
      estimate += weights[i] * values[i] / kNodes;
      counts[i] += weights[i] > 0.0 ? 1 : 0;
    }
    sum += estimate;
    squares += (estimate - mean) * (estimate - mean);
  }
  // Four standard deviations of an empirical mean, and of an empirical variance (about sqrt(2 / visits)).
  CHECK(std::abs(sum / kVisits - mean) < 4.0 * std::sqrt(expected / kVisits));
  CHECK(std::abs(squares / kVisits / expected - 1.0) < 4.0 * std::sqrt(2.0 / kVisits));
  for (const int count : counts)
    CHECK(std::abs(count - 0.3 * kVisits) < 5.0 * std::sqrt(0.3 * 0.7 * kVisits));
}

TEST_CASE("sampling depends only on seed, sample and visit") {
  std::vector<double> first(100), second(100);
  sample_nodes(0.25, 1, 2, 3, first);
  sample_nodes(0.25, 1, 2, 3, second);
  CHECK(first == second);
  CHECK(std::count(first.begin(), first.end(), 4.0) == 25);
  for (const auto& [seed, sample, visit] :
       {std::tuple<uint64_t, uint64_t, uint32_t>{2, 2, 3}, {1, 4, 3}, {1, 2, 4}}) {
    sample_nodes(0.25, seed, sample, visit, second);
    CHECK(first != second);
  }
  sample_nodes(1e-6, 1, 2, 3, first);
  CHECK(std::count(first.begin(), first.end(), 100.0) == 1);
  std::vector<double> none;
  sample_nodes(0.5, 1, 2, 3, none);
  CHECK(none.empty());

  UnrollCase c({.precision = DType::f64});
  LossConfig loss;
  loss.sample = 0.25;
  const std::vector<Sample> samples{{0, 2, 0}};
  CHECK(loss_of_zero(c, loss, samples, 1) == loss_of_zero(c, loss, samples, 1));
  CHECK(loss_of_zero(c, loss, samples, 1)[0] != loss_of_zero(c, loss, samples, 2)[0]);
  CHECK(loss_of_zero(c, loss, samples)[1] == loss_of_zero(c, {}, samples)[1]);
}

/// All at once, with what splits the work.
Config everything(const test::ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 12;
  config.train.log_every = 1;
  config.train.validate_every = 6;
  config.train.checkpoint_every = 6;
  config.model.width = 8;
  config.loss.name = LossName::huber;
  config.loss.delta = 0.5;
  config.loss.type_weights = {{"5", 3.0}};
  config.loss.field_weights = {{"velocity", 0.7}};
  config.loss.sample = 0.5;
  config.loss.change_penalty = 0.2;
  config.unroll.steps = 4;
  return config;
}

TEST_CASE("loss terms are logged and survive recomputation") {
  const test::ScratchDirectory scratch;
  Config config = everything(scratch);
  test::train_here(config);
  const auto trained = test::tensors_of(config);
  const std::string metrics = test::lasting_metrics(config.run.dir);
  int lines = 0;
  for (const auto& row : read_metrics(fs::path(config.run.dir) / "metrics.jsonl")) {
    if (row.count("loss") == 0) continue;
    ++lines;
    CHECK(row.at("loss_change_penalty") > 0.0);
    CHECK(row.at("loss_error") + row.at("loss_change_penalty") == doctest::Approx(row.at("loss")));
  }
  CHECK(lines == 12);

  config.run.dir += "_stopped";
  int calls = 0;
  CHECK(test::train_here(config, false, [&] { return ++calls == 20; }).stopped);
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == trained);
  CHECK(test::lasting_metrics(config.run.dir) == metrics);

  for (const SegmentUnit unit : {SegmentUnit::frame, SegmentUnit::sequence}) {
    config.run.dir += "_recomputed";
    config.recompute.mode = RecomputeMode::block;
    config.recompute.segments = unit;
    config.recompute.check = true;
    test::train_here(config);
    CHECK(test::tensors_of(config) == trained);
    CHECK(test::lasting_metrics(config.run.dir) == metrics);
  }
}

TEST_CASE("accumulated batches have the loss of one large batch") {
  const test::ScratchDirectory scratch;
  Config config = everything(scratch);
  config.loss.name = LossName::relative_l2;
  config.train.steps = 2;
  config.optimizer.lr = 0.0;
  config.schedule.name = RateCurve::constant;
  config.precision = DType::f64;
  test::train_here(config);
  const std::vector<double> split = test::losses_of(config.run.dir);
  config.run.dir += "_whole";
  config.train.batch *= config.train.accumulate;
  config.train.accumulate = 1;
  test::train_here(config);
  const std::vector<double> whole = test::losses_of(config.run.dir);
  REQUIRE(whole.size() == split.size());
  for (size_t i = 0; i < whole.size(); ++i) CHECK(split[i] == doctest::Approx(whole[i]).epsilon(1e-12));
}

TEST_CASE("the coverage of sampled nodes is printed") {
  UnrollCase c({});
  CHECK(c.features.mesh().describe_sampling("train", 3.0) == "");
  LossConfig loss;
  loss.sample = 0.5;
  const std::string text = TrainingLoss(loss).describe_sampling(c.features.mesh(), "train", 3.0);
  // Of 5 x 5 nodes 12 are predicted: 9 inside and 3 where the flow leaves.
  CHECK_MESSAGE(contains(text, "6 of 12 predicted nodes"), text);
  CHECK_MESSAGE(contains(text, "87.5 %"), text);
  // Of many trajectories a few are opened.
  auto data = std::make_shared<MemoryData>();
  data->dim = 2;
  data->fields = {{.name = "u", .components = 1}};
  data->splits = {{.name = "train", .first = 0, .count = 100}};
  const std::vector<float> positions{0, 0, 1, 0, 2, 0}, u{0, 0, 0, 1, 1, 1};
  const std::vector<int32_t> types{0, 0, 0}, first{0, 1}, second{1, 2};
  data->add_mesh("line", positions, types, first, second);
  for (int i = 0; i < 100; ++i) data->trajectories.push_back({.mesh = 0, .frames = 2, .fields = {u}});
  DataConfig config;
  config.inputs = config.targets = {"u"};
  const MeshTask task(Dataset::over(data), config, true);
  const std::string few = TrainingLoss(loss).describe_sampling(task, "train", 3.0);
  CHECK_MESSAGE(contains(few, "largest mesh of 32 trajectories"), few);
}

TEST_CASE("keys of the loss that contradict others are refused") {
  const auto error_of = [](const std::vector<std::string>& overrides) {
    return message_of([&] { parse_config("", "x.toml", overrides); });
  };
  CHECK(contains(error_of({"loss.field_weights=presure=2"}), "[loss.field_weights]"));
  CHECK(contains(error_of({"loss.type_weights=4=2"}), "predicted_types"));
  CHECK(contains(error_of({"loss.field_weights=0"}), "a weight above 0"));
  CHECK(contains(error_of({"loss.field_weights={velocity=0}"}), "a weight above 0"));
  CHECK(contains(error_of({"loss.change_penalty=1", "task.name=steady_field", "data.inputs=a"}),
                 "steady_field"));
  CHECK(error_of({"loss.type_weights=5=10", "loss.field_weights=velocity=0.5"}) == "");
}

}  // namespace
}  // namespace meshgrad
