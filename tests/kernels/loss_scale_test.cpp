// SPDX-License-Identifier: Apache-2.0
// The loss scale against an independent implementation of its rule, and on every backend against the host.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support.h"

namespace meshgrad::test {
namespace {

/// GradScaler's rule as its documentation has it, in its own types, with the bounds and Apex's hysteresis:
/// a count down that every clean step winds up again.
struct ReferenceScale {
  float scale;
  float growth, backoff;
  int growth_interval;
  double floor, cap;
  int hysteresis;
  int growth_tracker = 0;
  int hysteresis_left = hysteresis;

  void update(bool found_inf) {
    if (found_inf) {
      growth_tracker = 0;
      if (hysteresis_left > 0) --hysteresis_left;
      if (hysteresis_left > 0) return;
      scale *= backoff;
      if (static_cast<double>(scale) < floor) scale = static_cast<float>(floor);
      return;
    }
    hysteresis_left = hysteresis;
    ++growth_tracker;
    if (growth_tracker != growth_interval) return;
    growth_tracker = 0;
    if (!std::isinf(scale * growth)) scale *= growth;
    if (static_cast<double>(scale) > cap) scale = static_cast<float>(cap);
  }
};

struct Stream {
  LossScaleRule rule;
  double share_of_overflows = 0.0;
  int steps = 0;
};

/// Powers of two, so that float and double agree; in every third stream bounds and hysteresis as
/// GradScaler's: none.
Stream random_stream(std::mt19937_64& random) {
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
  Stream stream;
  LossScaleRule& rule = stream.rule;
  rule.initial = std::ldexp(1.0, below(21));
  rule.growth = std::ldexp(1.0, below(4));
  rule.backoff = std::ldexp(1.0, -below(4));
  rule.interval = 1 + below(6);
  const bool bare = below(3) == 0;
  rule.floor = bare ? 0x1p-120 : std::ldexp(rule.initial, -below(5));
  rule.cap = bare ? 0x1p120 : std::ldexp(rule.initial, below(5));
  rule.hysteresis = bare ? 1 : 1 + below(4);
  stream.share_of_overflows = 0.1 * below(11);
  stream.steps = 10 + below(30);
  return stream;
}

StepState ready(const LossScaleRule& rule) {
  StepState state;
  state.loss_scale = rule.initial;
  state.window_weight = 1.0;
  return state;
}

OptimizerSettings settings_of(const LossScaleRule& rule) {
  return {.kind = OptimizerKind::sgd, .rate = {.peak = 1.0}, .scale_loss = true, .loss_scale = rule};
}

TEST_CASE("the loss scale matches a million random overflow streams") {
  std::mt19937_64 random(17);
  int64_t wrong = 0, skipped = 0, grown = 0, held = 0;
  for (int64_t i = 0; i < 1'000'000; ++i) {
    const Stream stream = random_stream(random);
    const LossScaleRule& rule = stream.rule;
    const OptimizerSettings settings = settings_of(rule);
    ReferenceScale ref{static_cast<float>(rule.initial),
                       static_cast<float>(rule.growth),
                       static_cast<float>(rule.backoff),
                       static_cast<int>(rule.interval),
                       rule.floor,
                       rule.cap,
                       static_cast<int>(rule.hysteresis)};
    StepState state = ready(rule);
    const auto overflows = static_cast<uint64_t>(stream.share_of_overflows * 1024.0);
    int64_t bad = 0;
    for (int step = 0; step < stream.steps; ++step) {
      const bool overflow = random() % 1024 < overflows;
      const double before = state.loss_scale;
      bad += overflow ? 1 : 0;
      ref.update(overflow);
      decide(state, settings, 1.0, overflow);
      grown += state.loss_scale > before ? 1 : 0;
      held += overflow && state.loss_scale == before ? 1 : 0;
      const bool same = state.loss_scale == static_cast<double>(ref.scale) &&
                        state.clean_steps == ref.growth_tracker && (state.skip != 0) == overflow &&
                        state.skipped == bad && state.steps == step + 1 - bad;
      wrong += same ? 0 : 1;
    }
    skipped += bad;
  }
  CHECK(wrong == 0);
  CHECK(skipped > 10'000'000);  // the streams do what they are for
  CHECK(grown > 1'000'000);
  CHECK(held > 1'000'000);
}

TEST_CASE("the loss scale falls at the third skip in a row") {
  LossScaleRule rule;
  rule.hysteresis = 3;
  const OptimizerSettings settings = settings_of(rule);
  StepState state = ready(rule);
  const auto scale_after = [&](bool overflow) {
    decide(state, settings, 1.0, overflow);
    return state.loss_scale;
  };
  for (int i = 0; i < 10; ++i) {
    CHECK(scale_after(true) == 65536.0);
    CHECK(scale_after(true) == 65536.0);
    CHECK(scale_after(false) == 65536.0);
  }
  CHECK(scale_after(true) == 65536.0);
  CHECK(scale_after(true) == 65536.0);
  CHECK(scale_after(true) == 32768.0);
  CHECK(scale_after(true) == 16384.0);
  CHECK(state.consecutive_skips == 4);
  CHECK(state.last_skipped_scale == 32768.0);
  CHECK(state.last_skipped_step == state.steps + state.skipped - 1);
}

TEST_CASE("the loss scale ends at a floor and a cap") {
  LossScaleRule rule{
      .initial = 10.0, .growth = 3.0, .backoff = 0.25, .interval = 1, .floor = 1.5, .cap = 50.0};
  const OptimizerSettings settings = settings_of(rule);
  StepState state = ready(rule);
  std::vector<double> scales;
  for (const bool overflow : {true, true, true, false, false, false, false, false, true}) {
    decide(state, settings, 1.0, overflow);
    scales.push_back(state.loss_scale);
  }
  CHECK(scales == std::vector<double>{2.5, 1.5, 1.5, 4.5, 13.5, 40.5, 50.0, 50.0, 12.5});
}

TEST_CASE("loss scale: every backend's kernel follows the host's rule") {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    Runtime runtime = backend.runtime();
    std::mt19937_64 random(18);
    for (int round = 0; round < 5; ++round) {
      const Stream stream = random_stream(random);
      OptimizerSettings settings = settings_of(stream.rule);
      settings.clip_norm = 0.5;
      StepState expected = ready(stream.rule);
      OptimizerDecision args{settings, Tensor::zeros(runtime, {kStepStateBytes}, DType::u8, Tag::data),
                             Tensor::zeros(runtime, {1}, DType::f64, Tag::data),
                             Tensor::zeros(runtime, {1}, DType::i32, Tag::data)};
      copy(Tensor::borrow(&expected, {kStepStateBytes}, DType::u8), args.state, runtime.stream());
      for (int step = 0; step < 20; ++step) {
        double squared_norm = 3.0;
        int32_t overflow = random() % 3 == 0 ? 1 : 0;
        copy(Tensor::borrow(&squared_norm, {1}, DType::f64), args.squared_norm, runtime.stream());
        copy(Tensor::borrow(&overflow, {1}, DType::i32), args.non_finite, runtime.stream());
        backend.kernels->optimizer.decide(args, runtime.stream());
        decide(expected, settings, squared_norm, overflow != 0);
        const Tensor host = meshgrad::to_host(args.state, runtime.stream());
        StepState actual;
        std::memcpy(&actual, host.raw(), sizeof actual);
        CHECK(actual.loss_scale == expected.loss_scale);
        CHECK(actual.last_skipped_scale == expected.last_skipped_scale);
        CHECK(actual.gradient_factor == doctest::Approx(expected.gradient_factor));
        for (const auto member : {&StepState::steps, &StepState::skipped, &StepState::consecutive_skips,
                                  &StepState::clean_steps, &StepState::skip, &StepState::last_skipped_step})
          CHECK(actual.*member == expected.*member);
      }
    }
  }
}

TEST_CASE("a scale that is a power of two changes no bit of an update") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    RandomMatrices random(65);
    const Matrix start = random.normal(1, 257), gradients = random.normal(1, 257);
    const auto updated = [&](double scale) {
      Matrix scaled = gradients;
      double squared_norm = 0.0;
      for (double& g : scaled.v) {
        g = static_cast<double>(static_cast<float>(g)) * scale;
        squared_norm += g * g;
      }
      StepState state;
      state.loss_scale = scale;
      state.window_weight = 1.0;
      OptimizerUpdate args{.settings = {.clip_norm = 1.0, .rate = {.peak = 0.01}},
                           .state = Tensor::zeros(runtime, {kStepStateBytes}, DType::u8, Tag::data),
                           .parameters = to_vector(runtime, start, DType::f32),
                           .gradients = to_vector(runtime, scaled, DType::f32),
                           .first_moment = Tensor::zeros(runtime, {257}, DType::f32, Tag::data),
                           .second_moment = Tensor::zeros(runtime, {257}, DType::f32, Tag::data),
                           .storage = {}};
      decide(state, args.settings, squared_norm, false);
      copy(Tensor::borrow(&state, {kStepStateBytes}, DType::u8), args.state, runtime.stream());
      backend.kernels->optimizer.update(args, runtime.stream());
      return args.parameters;
    };
    CHECK(equal_bits(updated(1.0), updated(65536.0)));
    CHECK_FALSE(equal_bits(updated(1.0), to_vector(runtime, start, DType::f32)));
  }
}

}  // namespace
}  // namespace meshgrad::test
