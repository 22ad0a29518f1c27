// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

struct OptimizerCase {
  const char* name;
  OptimizerKind kind;
  double weight_decay, momentum, loss_scale, clip_norm;
};
constexpr OptimizerCase kOptimizerCases[] = {
    {"adam", OptimizerKind::adam, 0.0, 0.0, 1.0, 0.0},
    {"adam, decay, clipped", OptimizerKind::adam, 0.01, 0.0, 4.0, 0.5},
    {"adamw", OptimizerKind::adamw, 0.1, 0.0, 1.0, 0.0},
    {"adamw, unscaled, not clipped", OptimizerKind::adamw, 0.1, 0.0, 8.0, 1e6},
    {"sgd", OptimizerKind::sgd, 0.0, 0.0, 1.0, 0.0},
    {"sgd, decay, clipped", OptimizerKind::sgd, 0.1, 0.0, 1.0, 0.3},
    {"sgd, momentum, unscaled", OptimizerKind::sgd, 0.01, 0.9, 2.0, 0.0},
    // Norms of 1e-5 to 3e-3 once unscaled: clipped before that, all would be.
    {"sgd, scaled high, clipped", OptimizerKind::sgd, 0.0, 0.0, 65536.0, 1e-4}};
constexpr double kRate = 0.01;

reference::OptimizerStep reference_step(const OptimizerCase& c, double rate = kRate) {
  reference::OptimizerStep step;
  step.kind = c.kind;
  step.learning_rate = rate;
  step.weight_decay = c.weight_decay;
  step.momentum = c.momentum;
  step.gradient_scale = 1.0 / c.loss_scale;
  step.clip_norm = c.clip_norm;
  return step;
}

OptimizerSettings settings_of(const OptimizerCase& c, double rate = kRate) {
  return {.kind = c.kind,
          .weight_decay = c.weight_decay,
          .momentum = c.momentum,
          .clip_norm = c.clip_norm,
          .rate = {.peak = rate}};
}

/// An optimizer's tensors on a backend's device.
struct Stepper {
  const Backend& backend;
  Runtime& runtime;
  OptimizerDecision decision;
  OptimizerUpdate update;

  Stepper(const Backend& b, Runtime& r, const OptimizerSettings& settings, const StepState& first,
          const reference::OptimizerState& state, DType dtype)
      : backend(b), runtime(r) {
    const auto flat = [&](const std::vector<double>& values) {
      return to_vector(r, Matrix(1, static_cast<int64_t>(values.size()), values), dtype);
    };
    decision = {settings,
                {},
                Tensor::zeros(r, {1}, DType::f64, Tag::data),
                Tensor::zeros(r, {1}, DType::i32, Tag::data)};
    update.settings = settings;
    update.parameters = flat(state.parameters);
    update.gradients = flat(state.parameters);
    if (settings.kind != OptimizerKind::sgd || settings.momentum != 0.0)
      update.first_moment = flat(state.first_moment);
    if (settings.kind != OptimizerKind::sgd) update.second_moment = flat(state.second_moment);
    update.state = decision.state = Tensor::from<uint8_t>(
        r, std::span(reinterpret_cast<const uint8_t*>(&first), sizeof first), {kStepStateBytes}, Tag::data);
  }

  StepState state() const {
    const Tensor host = meshgrad::to_host(update.state, runtime.stream());
    StepState result;
    std::memcpy(&result, host.raw(), sizeof result);
    return result;
  }
  void set_scalars(double squared_norm, int32_t non_finite) {
    copy(Tensor::borrow(&squared_norm, {1}, DType::f64), decision.squared_norm, runtime.stream());
    copy(Tensor::borrow(&non_finite, {1}, DType::i32), decision.non_finite, runtime.stream());
  }
  void step(const Matrix& gradients, int32_t non_finite = 0) {
    copy(to_vector(runtime, gradients, update.parameters.dtype()), update.gradients, runtime.stream());
    set_scalars(reference::sum_of_squares(gradients.v), non_finite);
    backend.kernels->optimizer.decide(decision, runtime.stream());
    backend.kernels->optimizer.update(update, runtime.stream());
  }
};

/// Of a window with a loss, so that a step is taken.
StepState ready(double loss_scale = 1.0) {
  StepState state;
  state.window_loss = 3.0;
  state.window_weight = 2.0;
  state.loss_scale = loss_scale;
  return state;
}

reference::OptimizerState zero_moments(const Matrix& parameters) {
  const std::vector<double> zeros(parameters.v.size(), 0.0);
  return {parameters.v, zeros, zeros};
}

TEST_CASE("five steps of every optimizer agree with the reference") {
  for (const Backend& backend : backends()) {
    for (const OptimizerCase& c : kOptimizerCases) {
      for (const DType dtype : backend.gradient_types()) {
        for (const int64_t size : backend.sizes_and(true, 40009)) {
          CAPTURE(std::string(c.name));
          CAPTURE(name_of(dtype));
          CAPTURE(size);
          Runtime runtime = backend.runtime();
          RandomMatrices random(61);
          const Matrix start = stored_as(dtype, random.normal(1, size));
          reference::OptimizerState state = zero_moments(start);
          Stepper stepper(backend, runtime, settings_of(c), ready(c.loss_scale), state, dtype);
          reference::OptimizerStep ref = reference_step(c);
          for (ref.step = 1; ref.step <= 5; ++ref.step) {
            const Matrix gradients = stored_as(dtype, random.normal(1, size));
            stepper.step(gradients);
            reference::optimizer_step(ref, gradients.v, state);
          }
          // Ten roundings a step and value, of which the square root and the quotient are the largest.
          CHECK(difference(stepper.update.parameters, Matrix(1, size, state.parameters), 50) == "");
          if (stepper.update.first_moment.defined())
            CHECK(difference(stepper.update.first_moment, Matrix(1, size, state.first_moment), 10) == "");
          if (stepper.update.second_moment.defined())
            CHECK(difference(stepper.update.second_moment, Matrix(1, size, state.second_moment), 10) == "");
          CHECK(to_matrix(stepper.update.gradients).v == std::vector<double>(start.v.size(), 0.0));
          CHECK(stepper.state().steps == 5);
        }
      }
    }
  }
}

TEST_CASE("the moving average stands still in a skipped step") {
  constexpr double kDecay = 0.3;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.gradient_types()) {
      for (const int64_t size : backend.sizes_and(true, 40009)) {
        CAPTURE(name_of(dtype));
        CAPTURE(size);
        Runtime runtime = backend.runtime();
        RandomMatrices random(62);
        const Matrix start = stored_as(dtype, random.normal(1, size));
        reference::OptimizerState state = zero_moments(start);
        OptimizerSettings settings = settings_of(kOptimizerCases[0]);
        settings.average_decay = kDecay;
        Stepper stepper(backend, runtime, settings, ready(), state, dtype);
        stepper.update.average = to_vector(runtime, start, dtype);
        std::vector<double> average = start.v;
        reference::OptimizerStep ref = reference_step(kOptimizerCases[0]);
        ref.step = 0;
        for (int64_t step = 1; step <= 5; ++step) {
          const Matrix gradients = stored_as(dtype, random.normal(1, size));
          const bool skipped = step == 3;
          stepper.step(gradients, skipped ? 1 : 0);
          if (skipped) continue;
          ++ref.step;
          reference::optimizer_step(ref, gradients.v, state);
          // 2/11, 3/12 and then 0.3 stay.
          const auto t = static_cast<double>(ref.step);
          const double keep = std::min(kDecay, (1.0 + t) / (10.0 + t));
          for (size_t i = 0; i < average.size(); ++i)
            average[i] = keep * average[i] + (1.0 - keep) * state.parameters[i];
        }
        CHECK(difference(stepper.update.average, Matrix(1, size, average), 60) == "");
      }
    }
  }
}

TEST_CASE("f32 updates are not lost at large step numbers") {
  for (const Backend& backend : backends()) {
    // beta2^step in f32 would round 1 - 0.999^1 to 1.00004e-3, and 0.9^1e6 to 0.
    for (const int64_t number : {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{10000000}}) {
      CAPTURE(number);
      Runtime runtime = backend.runtime();
      reference::OptimizerState state{{0.0}, {0.25}, {0.5}};
      StepState first = ready();
      first.steps = number - 1;
      Stepper stepper(backend, runtime, settings_of(kOptimizerCases[0], 1.0), first, state, DType::f32);
      stepper.step(Matrix(1, 1, 0.5));
      reference::OptimizerStep ref = reference_step(kOptimizerCases[0], 1.0);
      ref.step = number;
      reference::optimizer_step(ref, {0.5}, state);
      CHECK(difference(stepper.update.parameters, Matrix(1, 1, state.parameters), 1) == "");
    }
  }
}

TEST_CASE("a skipped step only clears the gradients") {
  for (const Backend& backend : backends()) {
    for (const OptimizerCase& c : kOptimizerCases) {
      CAPTURE(std::string(c.name));
      Runtime runtime = backend.runtime();
      RandomMatrices random(62);
      const reference::OptimizerState state{random.normal(1, 129).v, random.normal(1, 129).v,
                                            std::vector<double>(129, 0.5)};
      Stepper stepper(backend, runtime, settings_of(c), ready(c.loss_scale), state, DType::f32);
      const Stepper before(backend, runtime, settings_of(c), ready(), state, DType::f32);
      const auto check_unchanged = [&] {
        CHECK(equal_bits(stepper.update.parameters, before.update.parameters));
        if (stepper.update.first_moment.defined())
          CHECK(equal_bits(stepper.update.first_moment, before.update.first_moment));
        if (stepper.update.second_moment.defined())
          CHECK(equal_bits(stepper.update.second_moment, before.update.second_moment));
        CHECK(to_matrix(stepper.update.gradients).v == std::vector<double>(129, 0.0));
        CHECK(stepper.state().steps == 0);
      };
      stepper.step(Matrix(1, 129, std::numeric_limits<double>::quiet_NaN()), 1);
      check_unchanged();
      CHECK(stepper.state().skipped == 1);
      // A loss that is not finite skips as well.
      Stepper bad(backend, runtime, settings_of(c), ready(c.loss_scale), state, DType::f32);
      StepState infinite = ready(c.loss_scale);
      infinite.window_loss = std::numeric_limits<double>::infinity();
      Stepper other(backend, runtime, settings_of(c), infinite, state, DType::f32);
      other.step(Matrix(1, 129, 1.0));
      CHECK(other.state().skipped == 1);
      CHECK(equal_bits(other.update.parameters, before.update.parameters));
      bad.step(Matrix(1, 129, 1.0));
      CHECK_FALSE(equal_bits(bad.update.parameters, before.update.parameters));
    }
  }
}

TEST_CASE("a clipped step of zero gradients is a step of zero, not NaN") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    OptimizerSettings settings;
    settings.rate.peak = 0.1;
    settings.clip_norm = 1.0;
    Stepper stepper(backend, runtime, settings, ready(), {{1.0, 2.0}, {0.0, 0.0}, {0.0, 0.0}}, DType::f32);
    stepper.step(Matrix(1, 2, 0.0));
    CHECK(to_matrix(stepper.update.parameters).v == std::vector<double>{1.0, 2.0});
  }
}

TEST_CASE("the copy in 16 bits is the rounded parameter") {
  for (const Backend& backend : backends()) {
    for (const OptimizerCase& c : kOptimizerCases) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(64);
      const Matrix start = random.normal(1, 1003);
      Stepper stepper(backend, runtime, settings_of(c), ready(), zero_moments(start), DType::f32);
      for (const DType dtype : {DType::f16, DType::bf16}) {
        stepper.update.storage = Tensor::zeros(runtime, {1003}, dtype, Tag::data);
        stepper.step(random.normal(1, 1003));
        const Tensor master_weights = meshgrad::to_host(stepper.update.parameters, runtime.stream());
        const Tensor rounded = meshgrad::to_host(stepper.update.storage, runtime.stream());
        int64_t different = 0;
        for (int64_t i = 0; i < 1003; ++i) {
          const float w = master_weights.data<float>()[i];
          const uint16_t bits = dtype == DType::f16 ? half(w).bits : bfloat16(w).bits;
          if (static_cast<const uint16_t*>(rounded.raw())[i] != bits) ++different;
        }
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("optimizer has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const OptimizerCase& c : kOptimizerCases) {
      CAPTURE(std::string(c.name));
      std::vector<std::unique_ptr<Runtime>> runtimes;
      std::vector<NamedTensors> results;
      const int64_t size = backend.many(100003);
      for (const int threads : backend.thread_counts()) {
        RuntimeOptions options;
        options.device = backend.device;
        options.threads = threads;
        Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
        RandomMatrices random(63);
        const reference::OptimizerState state{random.normal(1, size).v, random.normal(1, size).v,
                                              std::vector<double>(static_cast<size_t>(size), 0.5)};
        Stepper stepper(backend, runtime, settings_of(c), ready(c.loss_scale), state, DType::f32);
        stepper.step(stored_as(DType::f32, random.normal(1, size)));
        results.push_back({{"parameters", stepper.update.parameters}});
        if (stepper.update.first_moment.defined())
          results.back().emplace_back("first_moment", stepper.update.first_moment);
        if (stepper.update.second_moment.defined())
          results.back().emplace_back("second_moment", stepper.update.second_moment);
      }
      for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
    }
  }
}

// The rules by themselves.

TEST_CASE("the loss scale halves, doubles and stays within its ends") {
  OptimizerSettings settings;
  settings.scale_loss = true;
  settings.rate.peak = 1e-3;
  StepState state = ready(LossScaleRule().initial);
  const auto window = [&](bool bad) {
    state.window_loss = 1.0;
    decide(state, settings, 1.0, bad);
  };
  window(true);
  CHECK(state.loss_scale == 32768.0);
  CHECK(state.skip == 1);
  for (int i = 0; i < 1999; ++i) window(false);
  CHECK(state.loss_scale == 32768.0);
  window(false);
  CHECK(state.loss_scale == 65536.0);
  for (int i = 0; i < 1999; ++i) window(false);
  window(true);  // restarts the count
  CHECK(state.loss_scale == 32768.0);
  for (int i = 0; i < 1999; ++i) window(false);
  CHECK(state.loss_scale == 32768.0);
  for (int i = 0; i < 100; ++i) window(true);
  CHECK(state.loss_scale == 1.0);
  CHECK(state.consecutive_skips == 100);
  for (int i = 0; i < 40 * 2000; ++i) window(false);
  CHECK(state.loss_scale == 16777216.0);
  CHECK(state.skipped == 102);
  CHECK(state.consecutive_skips == 0);

  settings.scale_loss = false;
  state = ready();
  window(true);
  for (int i = 0; i < 4000; ++i) window(false);
  CHECK(state.loss_scale == 1.0);
}

TEST_CASE("gradients are unscaled before they are clipped") {
  OptimizerSettings settings;
  settings.clip_norm = 0.5;
  settings.rate = {.peak = 1.0, .warmup_steps = 10};
  StepState state = ready(8.0);
  decide(state, settings, 64.0, false);
  CHECK(state.gradient_norm == 1.0);
  CHECK(state.gradient_factor == doctest::Approx(0.5 / 8.0).epsilon(1e-5));
  CHECK(state.learning_rate == doctest::Approx(0.1));
  CHECK(state.last_loss == 1.5);
  CHECK(state.window_loss == 0.0);
  state.window_loss = 1.0;
  decide(state, settings, 64.0, true);
  CHECK(state.steps == 1);
  CHECK(state.learning_rate == doctest::Approx(0.2));
  state.window_loss = 1.0;
  decide(state, settings, 64.0, false);
  CHECK(state.learning_rate == doctest::Approx(0.2));
  CHECK(state.steps == 2);
  CHECK(state.loss_count == 3);
}

TEST_CASE("the learning rate ends where it is told to") {
  const LearningRate cosine{RateCurve::cosine, 1e-2, 1e-4, 5, 20};
  CHECK(rate_at(cosine, 0) == doctest::Approx(2e-3));
  CHECK(rate_at(cosine, 5) == doctest::Approx(1e-2));
  CHECK(rate_at(cosine, 24) == doctest::Approx(1e-4));
  CHECK(rate_at(cosine, 1000) == doctest::Approx(1e-4));
  const LearningRate exponential{RateCurve::exponential, 1e-2, 1e-4, 0, 3};
  CHECK(rate_at(exponential, 1) == doctest::Approx(1e-3));
  CHECK(rate_at(exponential, 2) == doctest::Approx(1e-4));
  CHECK(rate_at({.peak = 0.5}, 7) == 0.5);
}

TEST_CASE("the learning rate restarts, in equal or growing cycles") {
  LearningRate rate{.curve = RateCurve::cosine,
                    .peak = 1e-2,
                    .last = 1e-4,
                    .warmup_steps = 5,
                    .span = 99,
                    .restart_every = 10};
  CHECK(rate_at(rate, 4) == doctest::Approx(1e-2));
  for (const int64_t begin : {5, 15, 125}) {
    CHECK(rate_at(rate, begin) == doctest::Approx(1e-2));
    CHECK(rate_at(rate, begin + 9) == doctest::Approx(1e-4));
  }
  rate.restart_growth = 2.0;  // cycles begin at 5, 15, 35, 75
  for (const int64_t begin : {5, 15, 35, 75}) CHECK(rate_at(rate, begin) == doctest::Approx(1e-2));
  for (const int64_t end : {14, 34, 74}) CHECK(rate_at(rate, end) == doctest::Approx(1e-4));
  CHECK(rate_at(rate, 25) < 6e-3);
}

TEST_CASE("step decay multiplies after each interval") {
  const LearningRate rate{.curve = RateCurve::step,
                          .peak = 1e-2,
                          .last = 1e-4,
                          .warmup_steps = 2,
                          .step_every = 10,
                          .step_factor = 0.25};
  CHECK(rate_at(rate, 0) == doctest::Approx(5e-3));
  CHECK(rate_at(rate, 11) == doctest::Approx(1e-2));
  CHECK(rate_at(rate, 12) == doctest::Approx(2.5e-3));
  CHECK(rate_at(rate, 22) == doctest::Approx(6.25e-4));
  CHECK(rate_at(rate, 1000) == doctest::Approx(1e-4));
}

TEST_CASE("a batch's loss joins the window and seeds its backward pass") {
  for (const Backend& backend : backends()) {
    Runtime runtime = backend.runtime();
    Stepper stepper(backend, runtime, {}, ready(16.0), zero_moments(Matrix(1, 1, 1.0)), DType::f32);
    const auto scalar = [&](double value) {
      return Tensor::from<double>(runtime, std::span<const double>(&value, 1), {1}, Tag::data);
    };
    const Tensor seed = scalar(0.0);
    backend.kernels->optimizer.note_loss({stepper.update.state, scalar(5.0), scalar(4.0), seed},
                                         runtime.stream());
    CHECK(to_matrix(meshgrad::to_host(seed, runtime.stream())).v == std::vector<double>{4.0});
    CHECK(stepper.state().window_loss == 8.0);
    CHECK(stepper.state().window_weight == 4.0);
    CHECK(stepper.state().non_finite_losses == 0);
    backend.kernels->optimizer.note_loss({stepper.update.state, scalar(std::nan("")), scalar(4.0), seed},
                                         runtime.stream());
    CHECK(stepper.state().non_finite_losses == 1);
  }
}

TEST_CASE("optimizer says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](int64_t size, DType dtype = DType::f32) {
    return Tensor::zeros(runtime, {size}, dtype, Tag::data);
  };
  const auto error = [&](auto&& change) {
    OptimizerUpdate args;
    args.state = tensor(kStepStateBytes, DType::u8);
    args.parameters = tensor(9);
    args.gradients = tensor(9);
    args.first_moment = tensor(9);
    args.second_moment = tensor(9);
    change(args);
    return invalid_argument_text([&] { kernels::optimizer_update(args, runtime.stream()); });
  };
  CHECK(error([](OptimizerUpdate&) {}) == "");
  std::string text = error([&](OptimizerUpdate& a) { a.gradients = tensor(8); });
  CHECK_MESSAGE(
      (contains(text, "optimizer.update: gradients") && contains(text, "[9]") && contains(text, "[8]")),
      text);
  text = error([&](OptimizerUpdate& a) { a.first_moment = tensor(9, DType::f64); });
  CHECK_MESSAGE((contains(text, "first_moment") && contains(text, "f64")), text);
  text = error([](OptimizerUpdate& a) { a.second_moment = Tensor(); });
  CHECK_MESSAGE((contains(text, "second_moment") && contains(text, "none")), text);
  text = error([&](OptimizerUpdate& a) { a.state = tensor(8, DType::u8); });
  CHECK_MESSAGE(contains(text, "optimizer.update: state"), text);
  text = error([&](OptimizerUpdate& a) { a.storage = tensor(9); });
  CHECK_MESSAGE((contains(text, "storage") && contains(text, "f16")), text);
  CHECK(error([](OptimizerUpdate& a) {
          a.settings.kind = OptimizerKind::sgd;
          a.first_moment = a.second_moment = Tensor();
        }) == "");
  text = invalid_argument_text([&] {
    kernels::optimizer_decide({{}, tensor(kStepStateBytes, DType::u8), tensor(1), tensor(1, DType::i32)},
                              runtime.stream());
  });
  CHECK_MESSAGE(contains(text, "optimizer.decide: squared_norm"), text);
}

}  // namespace
}  // namespace meshgrad::test
