// SPDX-License-Identifier: Apache-2.0
// A mesh that a solver has partitioned over ranks: training and prediction on the parts are those of the
// whole mesh.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "simulated_ranks.h"
#include "train/given_parts_case.h"
#include "train/process.h"

namespace meshgrad::given_parts_test {
namespace {

namespace fs = std::filesystem;
using namespace test::given_parts;
using test::contains;
using test::given_parts::Part;  // not that of nn

/// Three steps from frame 2 of a wave; `rows` makes the rows of this rank's nodes of those of the whole mesh.
std::vector<float> predicted(MeshPredictor& predictor, const Wave& wave, std::span<const MeshArrays> meshes,
                             const std::function<std::vector<float>(std::span<const float>)>& rows) {
  constexpr int64_t kFrame = 2;
  const DataConfig& data = predictor.config().data;
  predictor.set_meshes(meshes);
  for (int64_t mesh = 0; mesh < std::ssize(meshes); ++mesh) {
    predictor.set_field("velocity", rows(wave.velocity(kFrame)), mesh);
    for (int64_t age = 1; age < data.history; ++age)
      predictor.set_previous_field("velocity", rows(wave.velocity(kFrame - age)), mesh, age);
  }
  if (data.kinematic_types.empty()) predictor.predict(2);
  for (int64_t step = data.kinematic_types.empty() ? 2 : 0; step < 3; ++step) {
    for (int64_t mesh = 0; mesh < std::ssize(meshes) && !data.kinematic_types.empty(); ++mesh)
      predictor.set_next_field("velocity", rows(wave.velocity(kFrame + 1 + step)), mesh);
    predictor.predict();
  }
  std::vector<float> values = rows(wave.velocity(0));
  predictor.get_field("velocity", values, std::ssize(meshes) - 1);
  return values;
}

/// On the whole mesh.
std::vector<float> predicted(Runtime& runtime, const std::string& file, const Wave& wave) {
  MeshPredictor predictor(runtime, file);
  return predicted(predictor, wave, std::vector{wave.whole()},
                   [](std::span<const float> all) { return std::vector<float>(all.begin(), all.end()); });
}

/// On a part, twice.
std::vector<float> predicted(Runtime& runtime, const std::string& file, const Wave& wave, const Part& part,
                             Ranks& ranks) {
  MeshPredictor predictor(runtime, file, &ranks);
  return predicted(predictor, wave, std::vector{part.arrays(), part.arrays()},
                   [&](auto all) { return part.rows(all); });
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

void check_training_on_parts(const Config& config, std::span<const Wave> waves, std::span<const Wave> later) {
  const test::ScratchDirectory scratch;
  Runtime runtime({.threads = 1});
  OnlineTrainer whole(runtime, config, parts_options());
  const Learned expected = learn_whole(whole, waves);
  // Also frames on the mesh that is set, before another one is.
  const auto repeat = [&](OnlineTrainer& trainer, const auto& rows) {
    trainer.restart_trajectory();
    for (int64_t t = 0; t < waves.back().frames; ++t) {
      trainer.set_field("velocity", rows(waves.back().velocity(t)));
      trainer.append();
    }
  };
  repeat(whole, [](std::span<const float> all) { return all; });
  const Learned expected_later = learn_whole(whole, later);
  CHECK(std::isfinite(expected.held_out));
  CHECK(whole.steps() == 4 * std::ssize(waves) + 4);
  test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
    const std::string file = scratch.path / fmt::format("parts{}.safetensors", ranks.rank());
    Runtime own({.threads = 1});
    const auto check = [&](const Learned& got, const Learned& wanted) {
      const auto differs = [](double a, double b) { return !(std::abs(a - b) <= 1e-5 * std::abs(b)); };
      if (differs(got.loss, wanted.loss) || differs(got.held_out, wanted.held_out)) {
        throw std::runtime_error(fmt::format("loss {} and {}, held out {} and {}", got.loss, wanted.loss,
                                             got.held_out, wanted.held_out));
      }
    };
    OnlineTrainer trainer(own, config, parts_options(), &ranks);
    check(learn_parts(trainer, waves, ranks.rank()), expected);
    trainer.save(file);
    const Part part(waves.back(), ranks.rank());
    const auto rows = [&](std::span<const float> all) { return part.rows(all); };
    repeat(trainer, rows);
    const Learned straight = learn_parts(trainer, later, ranks.rank());
    check(straight, expected_later);
    OnlineTrainer resumed(own, file, &ranks);
    repeat(resumed, rows);
    const Learned again = learn_parts(resumed, later, ranks.rank());
    if (again.loss != straight.loss || again.held_out != straight.held_out)
      throw std::runtime_error("another result after a restart");
  });
}

TEST_CASE("training on parts is training on the whole mesh") {
  const std::vector<Wave> waves{Wave(6, 5, 0.3), Wave(7, 5, 1.1)}, later{Wave(6, 5, 0.9)};
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    Config config = parts_config();
    config.data.predict = predict;
    check_training_on_parts(config, waves, later);
  }
}

/// Models that read several frames, the next frame at moving nodes, or edges of a mesh that moves.
std::vector<Config> other_models() {
  std::vector<Config> configs(3, parts_config());
  configs[0].data.history = 3;
  configs[1].data.history = 2;
  configs[1].data.kinematic_types = {4};
  configs[2].data.world_position = "velocity";
  configs[2].data.kinematic_types = {4};
  return configs;
}

TEST_CASE("parts train as the whole mesh with noise and history") {
  // Nodes are numbered rank after rank: noise then is the same on the whole mesh.
  const std::vector<Wave> waves{Wave(6, 8, 0.3).by_rank()}, later{Wave(5, 6, 0.9).by_rank()};
  for (Config config : other_models()) {
    CAPTURE(config.data.history);
    config.train.noise = 0.05;
    check_training_on_parts(config, waves, later);
  }
}

void check_prediction_on_parts(const Config& config) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path / "whole.safetensors";
  const std::vector<Wave> waves{Wave(7, 6, 0.3)};
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, config, parts_options());
  learn_whole(trainer, waves);
  trainer.save(file);
  const std::vector<float> expected = predicted(runtime, file, waves.front());
  std::array<double, Wave::kRanks> differences{};
  test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
    Runtime own({.threads = 1});
    const Part part(waves.front(), ranks.rank());
    if (part.ghost_owner.empty()) throw std::runtime_error("no ghosts");
    std::vector<float> there;
    for (const int32_t node : part.nodes)
      for (size_t c = 0; c < 2; ++c) there.push_back(expected[2 * static_cast<size_t>(node) + c]);
    differences[static_cast<size_t>(ranks.rank())] =
        largest_difference(predicted(own, file, waves.front(), part, ranks), there);
  });
  for (const double difference : differences) CHECK(difference <= 1e-5);
}

TEST_CASE("prediction on parts is that on the whole mesh") {
  check_prediction_on_parts(parts_config());
  for (const Config& config : other_models()) check_prediction_on_parts(config);
}

/// Gradients of J, weights times the field "velocity" after three steps on two meshes, of which the second
/// gets new boundary values before the last step.
struct Gradients {
  std::vector<double> velocity, before, positions, speed, condition;
  std::vector<double> next;  // by the next values of the second step
};

/// `rows` makes the rows of this rank's nodes of those of the whole mesh.
Gradients gradients_of(MeshPredictor& predictor, const Wave& wave, const MeshArrays& mesh,
                       const std::function<std::vector<float>(std::span<const float>)>& rows) {
  constexpr int64_t kMesh = 1;
  const DataConfig& data = predictor.config().data;
  const int64_t earlier = data.history - (data.predict == Prediction::second_change ? 0 : 1);
  const bool kinematic = !data.kinematic_types.empty();
  const std::vector<float> now = rows(wave.velocity(0)), boundary = rows(wave.velocity(2)),
                           next = rows(wave.velocity(4));
  std::vector<float> weights(wave.velocity(3).begin(), wave.velocity(3).end());
  // Of another power of two on one rank, whose nodes in 16 bits are those of J alone: what passes to others
  // must not underflow.
  const bool alone = predictor.config().precision == DType::f16;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool first = wave.owner(static_cast<int32_t>(i / 2)) == 0;
    weights[i] *= first ? (alone ? 0x1p-24f : 64.0f) : (alone ? 0.0f : 1.0f);
  }
  weights = rows(weights);
  const std::vector<double> condition{0.3, -0.2};
  std::vector<double> speed(now.size() / 2);
  for (size_t i = 0; i < speed.size(); ++i) speed[i] = static_cast<double>(now[2 * i]);
  predictor.set_meshes(std::vector{mesh, mesh});
  predictor.record_steps(true);
  for (int64_t i = 0; i < 2; ++i) {
    predictor.set_field("velocity", now, i);
    for (int64_t before = 1; before <= earlier; ++before)
      predictor.set_previous_field("velocity", rows(wave.velocity(before)), i, before);
    predictor.set_field("speed", speed, i);
    predictor.set_field("condition", condition, i);
  }
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; kinematic && i < 2; ++i) predictor.set_next_field("velocity", next, i);
    if (step == 2) predictor.set_boundary("velocity", boundary, kMesh);
    predictor.predict();
  }
  predictor.set_gradient("velocity", weights, kMesh);
  predictor.backward();
  Gradients gradients;
  gradients.velocity.resize(now.size());
  predictor.get_gradient("velocity", gradients.velocity, kMesh);
  gradients.before.resize(earlier > 0 ? now.size() : 0);
  if (earlier > 0) predictor.get_previous_gradient("velocity", gradients.before, kMesh, earlier);
  gradients.next.resize(kinematic ? now.size() : 0);
  if (kinematic) predictor.get_next_gradient("velocity", gradients.next, kMesh, 1);
  gradients.positions.resize(now.size());
  predictor.get_position_gradient(gradients.positions, kMesh);
  gradients.speed.resize(speed.size());
  predictor.get_gradient("speed", gradients.speed, kMesh);
  gradients.condition.resize(condition.size());
  predictor.get_gradient("condition", gradients.condition, kMesh);
  return gradients;
}

/// A model in f64 that also reads a field on nodes and a condition of the whole mesh.
std::string gradient_model(const fs::path& folder, Config config, DType precision) {
  config.precision = precision;
  config.data.inputs = {"velocity", "speed", "condition"};
  config.data.targets = {"velocity"};
  config.model.activation = Activation::silu;
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, config,
                        {.fields = {{.name = "velocity", .components = 2},
                                    {.name = "speed", .components = 1},
                                    {.name = "condition", .components = 2, .on = FieldOn::graph}}});
  const Wave wave(6, 5, 0.3);
  trainer.set_mesh(wave.whole());
  for (int64_t t = 0; t < 5; ++t) {
    std::vector<float> speed;
    for (size_t i = 0; i < wave.velocity(t).size(); i += 2) speed.push_back(wave.velocity(t)[i]);
    trainer.set_field("velocity", wave.velocity(t));
    trainer.set_field("speed", speed);
    trainer.set_field("condition", std::vector<double>{0.1 * static_cast<double>(t), 0.2});
    trainer.append();
  }
  trainer.train(3);
  std::string file = folder / "gradients.safetensors";
  trainer.save(file);
  return file;
}

/// Of values on the nodes of a part, ghosts included, from those of the whole mesh.
double largest_relative_difference(std::span<const double> part, std::span<const double> whole,
                                   std::span<const int32_t> nodes) {
  const size_t width = nodes.empty() ? 1 : part.size() / nodes.size();
  double largest = 0, size = 0;
  for (const double value : whole) size = std::max(size, std::abs(value));
  for (size_t i = 0; i < part.size(); ++i) {
    const size_t at = nodes.empty() ? i : static_cast<size_t>(nodes[i / width]) * width + i % width;
    largest = std::max(largest, std::abs(part[i] - whole[at]));
  }
  return size > 0 ? largest / size : 1e9;
}

TEST_CASE("gradients on parts are those on the whole mesh") {
  const test::ScratchDirectory scratch;
  const Wave wave(7, 5, 0.3);
  std::vector<Config> models = other_models();
  models.insert(models.begin(), 2, parts_config());
  models[1].data.predict = Prediction::second_change;
  for (size_t model = 0; model < models.size(); ++model) {
    for (const DType precision : {DType::f64, DType::f16}) {
      if (precision == DType::f16 && model > 1) continue;  // differences of positions are coarse there
      CAPTURE(model);
      CAPTURE(name_of(precision));
      const std::string file = gradient_model(scratch.path, models[model], precision);
      Runtime runtime({.threads = 1});
      MeshPredictor predictor(runtime, file);
      const Gradients whole = gradients_of(predictor, wave, wave.whole(), [](std::span<const float> all) {
        return std::vector<float>(all.begin(), all.end());
      });
      std::array<double, Wave::kRanks> differences{};
      test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
        Runtime own({.threads = 1});
        const Part part(wave, ranks.rank());
        MeshPredictor on_part(own, file, &ranks);
        const Gradients parts =
            gradients_of(on_part, wave, part.arrays(), [&](auto all) { return part.rows(all); });
        double& largest = differences[static_cast<size_t>(ranks.rank())];
        const auto compare = [&](const auto& ours, const auto& theirs, std::span<const int32_t> nodes) {
          if (!ours.empty()) largest = std::max(largest, largest_relative_difference(ours, theirs, nodes));
        };
        compare(parts.velocity, whole.velocity, part.nodes);
        compare(parts.before, whole.before, part.nodes);
        compare(parts.positions, whole.positions, part.nodes);
        compare(parts.speed, whole.speed, part.nodes);
        compare(parts.condition, whole.condition, {});
        const auto owned = static_cast<size_t>(part.owned);
        if (!parts.next.empty())
          compare(std::span(parts.next).first(2 * owned), whole.next, std::span(part.nodes).first(owned));
      });
      // States between steps are in f32. In 16 bits, gradients are rounded at other places.
      for (const double difference : differences)
        CHECK(difference <= (precision == DType::f64 ? 1e-6 : 0.02));
    }
  }
}

TEST_CASE("a rank short of memory for its part tells the others") {
  const auto begin = std::chrono::steady_clock::now();
  const test::ScratchDirectory scratch;
  const std::string file = gradient_model(scratch.path, parts_config(), DType::f32);
  const Wave wave(40, 1, 0.3);
  std::array<std::string, Wave::kRanks> errors;
  std::atomic<int> told = 0;
  test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
    const bool small = ranks.rank() == 1;
    Runtime runtime({.threads = 1, .allocator = {.memory_limit = small ? 2 << 20 : 0}});
    MeshPredictor predictor(runtime, file, &ranks);
    const Part part(wave, ranks.rank());
    const std::vector<MeshArrays> meshes(40, part.arrays());
    errors[static_cast<size_t>(ranks.rank())] = test::message_of([&] { predictor.set_meshes(meshes); });
    ++told;
    while (told < Wave::kRanks) std::this_thread::yield();  // an end would tell the others too
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  CHECK(contains(errors[1], "memory"));
  for (const size_t other : {size_t{0}, size_t{2}})
    CHECK(contains(errors[other], "needed all ranks to go on, got the end of rank"));
}

TEST_CASE("a rank that learns of another's end leaves, too") {
  const test::ScratchDirectory scratch;
  const std::string file = gradient_model(scratch.path, parts_config(), DType::f32);
  const Wave wave(6, 1, 0.3);
  std::array<bool, Wave::kRanks> left{};
  std::atomic<int> started = 0;
  test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
    ++started;
    while (started < Wave::kRanks) std::this_thread::yield();  // an end would end their start
    if (ranks.rank() == 1) return ranks.leave();
    Runtime runtime({.threads = 1});
    MeshPredictor predictor(runtime, file, &ranks);
    const Part part(wave, ranks.rank());
    CHECK(contains(test::message_of([&] { predictor.set_mesh(part.arrays()); }), "got the end of rank 1"));
    left[static_cast<size_t>(ranks.rank())] = ranks.left();
  });
  CHECK(left == std::array{true, false, true});
}

TEST_CASE("a frame refused on one rank is refused on all") {
  const Wave wave(6, 5, 0.3);
  std::vector<std::string> texts(Wave::kRanks);
  std::vector<int64_t> samples(Wave::kRanks);
  test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    Runtime runtime({.threads = 1});
    OnlineTrainer trainer(runtime, parts_config(), parts_options(), &ranks);
    const Part part(wave, ranks.rank());
    trainer.set_mesh(part.arrays());
    for (int64_t t = 0; t < 4; ++t) {
      std::vector<float> rows = part.rows(wave.velocity(t));
      if (t == 1 && rank == 1) rows[2] = std::nanf("");
      texts[rank] += test::message_of([&] {
        test::message_of([&] { trainer.set_field("velocity", rows); });
        trainer.append();
      });
    }
    trainer.train(1);
    samples[rank] = trainer.seen();
  });
  CHECK(contains(texts[1], "[OnlineTrainer: field velocity] needed values, got none"));
  for (const size_t other : {size_t{0}, size_t{2}}) CHECK(contains(texts[other], "got an error on rank 1;"));
  for (const int64_t seen : samples) CHECK(seen == 2);  // of frames 0, 2 and 3
}

TEST_CASE("parts that do not fit together are refused on all ranks") {
  const Wave wave(6, 5, 0.3);
  const auto errors = [&](const std::function<void(Part&, int)>& spoil) {
    std::vector<std::string> texts(Wave::kRanks);
    test::on_ranks(Wave::kRanks, [&](Ranks& ranks) {
      Runtime runtime({.threads = 1});
      OnlineTrainer trainer(runtime, parts_config(), parts_options(), &ranks);
      Part part(wave, ranks.rank());
      spoil(part, ranks.rank());
      std::string& text = texts[static_cast<size_t>(ranks.rank())];
      text = test::message_of([&] { trainer.set_mesh(part.arrays()); });
      barrier(ranks, "each has its own error");
      if (!text.empty() && !contains(test::message_of([&] { trainer.append(); }), "call set_mesh first"))
        throw std::runtime_error("a frame on a mesh that was refused");
      trainer.set_mesh(Part(wave, ranks.rank()).arrays());
      for (int64_t t = 0; t < 2; ++t) {
        trainer.set_field("velocity", Part(wave, ranks.rank()).rows(wave.velocity(t)));
        trainer.append();
      }
      if (trainer.train(1).steps != 1) throw std::runtime_error("no step on the right mesh");
    });
    return texts;
  };
  const auto refused = [&](const std::string& text, const std::function<void(Part&, int)>& spoil) {
    const std::vector<std::string> all = errors(spoil);
    CAPTURE(all);
    for (const std::string& ending : all)
      CHECK((contains(ending, "mesh in parts") || contains(ending, text)));
    CHECK(std::ranges::any_of(all, [&](const std::string& ending) { return contains(ending, text); }));
  };
  for (const std::string& text : errors([](Part&, int) {})) CHECK(text.empty());
  refused("owner of ghost 0] needed another rank among 0 .. 2, got 1", [](Part& part, int rank) {
    if (rank == 1) part.ghost_owner.front() = 1;
  });
  refused("nodes that rank 0 owns, got number 99", [](Part& part, int rank) {
    const auto ghost = std::ranges::find(part.ghost_owner, 0);
    if (rank == 2) part.ghost_number[static_cast<size_t>(ghost - part.ghost_owner.begin())] = 99;
  });
  refused("that edges of rank 0 make neighbours of rank 1", [](Part& part, int rank) {
    if (rank == 1) part.cells.resize(part.cells.size() - 6);
  });
  refused("[OnlineTrainer: node_type] needed one number a node", [](Part& part, int rank) {
    if (rank == 2) part.types.pop_back();
  });

  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, parts_config(), parts_options());
  trainer.set_mesh(wave.whole());
  MeshArrays alone = wave.whole();
  alone.in_parts = true;
  CHECK(contains(test::message_of([&] { trainer.set_mesh(alone); }), "all in parts, or all whole"));
}

TEST_CASE("what needs whole meshes is refused on parts") {
  Wave wave(6, 5, 0.3);
  MeshArrays alone = wave.whole();
  alone.in_parts = true;
  Runtime runtime({.threads = 1});
  const auto refusal = [&](const std::function<void(Config&)>& change) {
    Config config = parts_config();
    change(config);
    OnlineTrainer trainer(runtime, config, parts_options());
    return test::message_of([&] { trainer.set_mesh(alone); });
  };
  CHECK(refusal([](Config&) {}).empty());
  const std::string loss = "no relative_l2, sample and type_weights on a mesh that the solver has cut";
  CHECK(contains(refusal([](Config& config) { config.loss.name = LossName::relative_l2; }), loss));
  CHECK(contains(refusal([](Config& config) { config.loss.sample = 0.5; }), loss));
  CHECK(contains(refusal([](Config& config) { config.loss.type_weights = {{"0", 2.0}}; }), loss));
  CHECK(contains(refusal([](Config& config) {
                   config.data.world_position = "velocity";
                   config.data.world_radius = 0.1;
                 }),
                 "whole meshes, with data.world_radius"));
}

}  // namespace
}  // namespace meshgrad::given_parts_test
