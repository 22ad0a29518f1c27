// SPDX-License-Identifier: Apache-2.0
// Inputs that are targets, given at several frames (data.history): columns, noise, statistics, rollouts,
// runs.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/task/task.h>

#include <cmath>

#include "train/mesh_arrays.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

constexpr Prediction kBoth[] = {Prediction::change, Prediction::second_change};
constexpr size_t kHistory = 3;
constexpr size_t kColumns = 2 * kHistory + 9;

struct HistoryCase {
  test::ScratchDirectory scratch;
  Dataset dataset = Dataset::open(test::pack_waves(scratch.path, 4, 8));
  Runtime runtime{RuntimeOptions{.device = {}, .threads = 1}};

  MeshDynamics task(Prediction predict, int64_t history = kHistory, int64_t frames = 1) const {
    DataConfig config;
    config.predict = predict;
    config.history = history;
    return MeshDynamics(dataset, config, frames);
  }
  /// In the unit of the data.
  Batch batch(const MeshDynamics& task, const Sample& sample, const NoiseOptions& noise) {
    const auto plain = [](int64_t width) {
      const auto n = static_cast<size_t>(width);
      return Normalizer::fixed(std::vector<double>(n, 0.0), std::vector<double>(n, 1.0));
    };
    Normalizers none{plain(task.mesh().fields.node_inputs), plain(3), plain(2)};
    return training_batch(Task(task), runtime, DType::f64, "train", {sample}, noise, none, false);
  }
  double velocity(int64_t t, size_t i) const {
    return static_cast<double>(dataset.trajectory("train", 0).field("velocity").frame(t)[i]);
  }
};

TEST_CASE("history: inputs are the last changes, latest first") {
  HistoryCase c;
  for (const Prediction predict : kBoth) {
    const bool second = predict == Prediction::second_change;
    const MeshDynamics task = c.task(predict);
    REQUIRE(task.mesh().fields.node_inputs == static_cast<int64_t>(kColumns));
    const Batch batch = c.batch(task, {0, 4, 0}, {});
    const auto x = batch.graph.node_features.values<double>();
    for (size_t i = 0; i < 32; ++i) {
      const size_t node = i / 2, component = i % 2;
      const auto column = [&](size_t block) { return x[node * kColumns + 2 * block + component]; };
      const auto change = [&](int64_t t) { return c.velocity(t, i) - c.velocity(t - 1, i); };
      CHECK(column(0) == (second ? change(4) : c.velocity(4, i)));
      CHECK(column(1) == change(second ? 3 : 4));
      CHECK(column(2) == change(second ? 2 : 3));
      const double goal = second ? change(5) - change(4) : change(5);
      CHECK(batch.tensor("target").values<double>()[i] == doctest::Approx(goal).epsilon(1e-12));
    }
    for (size_t node = 0; node < 16; ++node) {  // the one-hot type follows them
      for (size_t type = 0; type < 9; ++type) {
        const bool is = c.dataset.trajectory("train", 0).mesh().node_type[node] == static_cast<int32_t>(type);
        CHECK(x[node * kColumns + 6 + type] == (is ? 1.0 : 0.0));
      }
    }
  }
}

TEST_CASE("history: a sample has the frames that it needs before it") {
  HistoryCase c;
  for (const Prediction predict : kBoth) {
    const int64_t first = predict == Prediction::second_change ? 3 : 2;
    const MeshDynamics task = c.task(predict);
    const MeshTask& mesh = task.mesh();
    CHECK(mesh.sample_frames(8).first == first);
    CHECK(mesh.sample_frames(8).end == 7);
    CHECK(mesh.sample_frames(first + 1).size() == 0);
    CHECK(mesh.least_frames() == first + 2);
    CHECK(mesh.sample_frames(mesh.least_frames()).size() == 1);
    CHECK(Sampler(Task(task), "train", 0).samples() == 2 * (7 - first));
    c.batch(task, {0, first, 0}, {});
  }
}

struct Sums {
  double squares = 0.0, products = 0.0;
  double count = 0.0;
  double deviation() const { return std::sqrt(squares / count); }
};

TEST_CASE("history: noise is a random walk") {
  HistoryCase c;
  const NoiseOptions noise{.deviation = 0.3, .gamma = 0.25, .seed = 7};
  for (const Prediction predict : kBoth) {
    const bool second = predict == Prediction::second_change;
    const MeshDynamics task = c.task(predict);
    const Batch clean = c.batch(task, {0, 4, 0}, {});
    const auto types = c.dataset.trajectory("train", 0).mesh().node_type;
    Sums step[kHistory], last, left;
    for (uint32_t visit = 0; visit < 600; ++visit) {
      const Batch noisy = c.batch(task, {0, 4, visit}, noise);
      for (size_t i = 0; i < 32; ++i) {
        const size_t node = i / 2;
        const auto added = [&](size_t block) {
          const size_t at = node * kColumns + 2 * block + i % 2;
          return noisy.graph.node_features.values<double>()[at] -
                 clean.graph.node_features.values<double>()[at];
        };
        // What each draw adds to the frame before, latest first; of the oldest frame it is all there is.
        const double draws[] = {second ? added(0) : added(1), second ? added(1) : added(2),
                                second ? added(2) : added(0) - added(1) - added(2)};
        const double in_target =
            noisy.tensor("target").values<double>()[i] - clean.tensor("target").values<double>()[i];
        if (types[node] != 0) {
          CHECK(std::abs(draws[0]) + std::abs(draws[1]) + std::abs(draws[2]) + std::abs(in_target) < 1e-12);
          continue;
        }
        const double walk = draws[0] + draws[1] + draws[2];
        const double goal = second ? -0.25 * walk - draws[0] : -0.25 * walk;
        CHECK(in_target == doctest::Approx(goal).epsilon(1e-4));
        for (size_t k = 0; k < kHistory; ++k) {
          step[k].squares += draws[k] * draws[k];
          step[k].products += draws[k] * draws[(k + 1) % kHistory];
          step[k].count += 1.0;
        }
        last.squares += walk * walk;
        left.squares += in_target * in_target;
        last.count += 1.0;
        left.count += 1.0;
      }
    }
    const double each = 0.3 / std::sqrt(3.0);
    for (const Sums& sums : step) {  // 4800 draws: 1 % is one standard error
      CHECK(sums.deviation() == doctest::Approx(each).epsilon(0.04));
      CHECK(std::abs(sums.products / sums.count) < 0.06 * each * each);
    }
    CHECK(last.deviation() == doctest::Approx(0.3).epsilon(0.04));
    // The normaliser of targets knows what the noise leaves there.
    const double quiet = task.mesh().dataset_normalizers({}).targets.standard_deviation(0);
    CHECK(task.mesh().dataset_normalizers(noise).targets.standard_deviation(0) ==
          doctest::Approx(std::hypot(quiet, left.deviation())).epsilon(0.04));
  }
}

TEST_CASE("history: columns of changes have their own scale") {
  HistoryCase c;
  const Normalizers one = c.task(Prediction::change, 1).mesh().dataset_normalizers({});
  const Normalizers three = c.task(Prediction::change).mesh().dataset_normalizers({});
  const Normalizers second = c.task(Prediction::second_change).mesh().dataset_normalizers({});
  const double change = c.dataset.field_stats("velocity", NodeTypeSet::all(), Quantity::change).std.front();
  CHECK(three.nodes.standard_deviation(0) == one.nodes.standard_deviation(0));
  CHECK(three.nodes.standard_deviation(2) == doctest::Approx(change));
  CHECK(three.nodes.standard_deviation(4) == doctest::Approx(change));
  CHECK(three.nodes.standard_deviation(6) == 1.0);
  for (const size_t column : {0, 2, 4})
    CHECK(second.nodes.standard_deviation(column) == doctest::Approx(change));
}

TEST_CASE("history: a rollout feeds predictions back") {
  for (const Prediction predict : kBoth) {
    const test::ScratchDirectory scratch;
    Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4, 8));
    config.data.predict = predict;
    config.data.history = 2;
    config.train.steps = 4;
    config.train.validate_every = 2;
    test::train_here(config);
    const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
    Runtime runtime({.device = {}, .threads = 1});
    const Predictor predictor(runtime, checkpoint);
    const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
    const bool second = predict == Prediction::second_change;
    const size_t first = second ? 2 : 1, earlier = first;
    const auto mask = predictor.mesh_dynamics().fields.predicted_mask(trajectory.mesh());
    std::vector<std::vector<float>> frames;
    for (size_t t = 0; t <= first; ++t) {
      const auto frame = trajectory.field("velocity").frame(static_cast<int64_t>(t));
      frames.emplace_back(frame.begin(), frame.end());
    }
    size_t seen = 0;
    roll_out(predictor, trajectory, {.steps = 4, .boundary = RolloutBoundary::initial},
             [&](const RolloutFrame& now) {
               FieldState state{.current = frames.back(), .previous = {}};
               for (size_t age = 1; age <= earlier; ++age) {
                 const std::vector<float>& frame = frames[frames.size() - 1 - age];
                 state.previous.insert(state.previous.end(), frame.begin(), frame.end());
               }
               const std::vector<float> next = predict_next(predictor, trajectory, now.t - 1, state);
               CHECK(now.ours == next);
               CHECK(now.ours != frames.back());
               frames.push_back(next);
               ++seen;
             });
    CHECK(seen == 4);
    config.data.history = 1;
    CHECK(contains(message_of([&] { test::train_here(config, true); }), "data.history"));

    // MeshPredictor steps from the same frames to the same bits.
    MeshPredictor in_memory(runtime, checkpoint);
    in_memory.set_mesh(test::arrays_of(trajectory.mesh()));
    in_memory.set_field("velocity", frames[first]);
    const auto unset = message_of([&] { in_memory.predict(); });
    CHECK_MESSAGE(contains(unset, "needed values one step before (set_previous_field), got none"), unset);
    for (size_t age = 1; age <= earlier; ++age) {
      if (age == 2) CHECK(contains(message_of([&] { in_memory.predict(); }), "values 2 steps before"));
      in_memory.set_previous_field("velocity", frames[first - age], 0, static_cast<int64_t>(age));
    }
    CHECK(contains(message_of([&] { in_memory.set_previous_field("velocity", frames[0], 0, 3); }),
                   fmt::format("needed 1 to {} steps before, got 3", earlier)));
    in_memory.record_steps(true);  // changes no bit
    in_memory.predict(4);
    std::vector<float> reached(frames.back().size());
    in_memory.get_field("velocity", reached);
    CHECK(reached == frames.back());
  }
}

TEST_CASE("history: settings that contradict it are refused") {
  const auto refused = [](const std::string& text) {
    return message_of([&] { parse_config("[data]\nhistory = 2\n" + text, "a.toml"); });
  };
  CHECK(refused("").empty());
  CHECK(contains(refused("[task]\nname = \"steady_field\""),
                 "a.toml:2: [data.history] needed 1 with task.name"));
  CHECK_FALSE(
      contains(refused("inputs = [\"p\"]\n[task]\nname = \"steady_field\""), "where no input is a target"));
  CHECK(contains(refused("inputs = [\"p\"]"), "needed 1 where no input is a target"));
  CHECK(contains(refused("[unroll]\nsteps = 2"), "needed 1 with unroll.steps above 1"));
}

}  // namespace
}  // namespace meshgrad
