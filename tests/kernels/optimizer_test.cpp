// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

struct Settings {
  const char* name;
  OptimizerKind kind;
  double weight_decay, momentum, gradient_scale, clip_norm;
};
constexpr Settings kSettings[] = {
    {"adam", OptimizerKind::adam, 0.0, 0.0, 1.0, 0.0},
    {"adam, decay, clipped", OptimizerKind::adam, 0.01, 0.0, 0.25, 0.5},
    {"adamw", OptimizerKind::adamw, 0.1, 0.0, 1.0, 0.0},
    {"adamw, unscaled, not clipped", OptimizerKind::adamw, 0.1, 0.0, 0.125, 1e6},
    {"sgd", OptimizerKind::sgd, 0.0, 0.0, 1.0, 0.0},
    {"sgd, decay, clipped", OptimizerKind::sgd, 0.1, 0.0, 1.0, 0.3},
    {"sgd, momentum, unscaled", OptimizerKind::sgd, 0.01, 0.9, 0.5, 0.0}};

OptimizerStep step_of(const Settings& settings) {
  OptimizerStep step;
  step.kind = settings.kind;
  step.learning_rate = 0.01;
  step.weight_decay = settings.weight_decay;
  step.momentum = settings.momentum;
  step.gradient_scale = settings.gradient_scale;
  step.clip_norm = settings.clip_norm;
  return step;
}

/// Flat tensors of `size` that start as the judge's state; squared_norm follows the gradients.
OptimizerStep with_tensors(Runtime& runtime, const OptimizerStep& settings,
                           const reference::OptimizerState& state, DType dtype) {
  const auto flat = [&](const std::vector<double>& values) {
    return to_vector(runtime, Matrix(1, static_cast<int64_t>(values.size()), values), dtype);
  };
  OptimizerStep step = settings;
  step.parameters = flat(state.parameters);
  step.gradients = flat(state.parameters);
  if (step.kind != OptimizerKind::sgd || step.momentum != 0.0) step.first_moment = flat(state.first_moment);
  if (step.kind != OptimizerKind::sgd) step.second_moment = flat(state.second_moment);
  step.squared_norm = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  return step;
}

void set_gradients(Runtime& runtime, OptimizerStep& step, const Matrix& gradients) {
  copy(to_vector(runtime, gradients, step.parameters.dtype()), step.gradients, runtime.stream());
  step.squared_norm.values<double>()[0] = reference::sum_of_squares(gradients.v);
}

TEST_CASE("five steps of every optimizer agree with the judge") {
  for (const Backend& backend : backends()) {
    for (const Settings& settings : kSettings) {
      for (const DType dtype : storage_types()) {
        for (const int64_t size : awkward_sizes_and(true, 40009)) {
          CAPTURE(std::string(settings.name));
          CAPTURE(name_of(dtype));
          CAPTURE(size);
          Runtime runtime = make_runtime();
          RandomMatrices random(61);
          const Matrix start = stored_as(dtype, random.normal(1, size));
          reference::OptimizerState state{start.v, std::vector<double>(start.v.size(), 0.0),
                                          std::vector<double>(start.v.size(), 0.0)};
          OptimizerStep step = with_tensors(runtime, step_of(settings), state, dtype);
          for (step.step = 1; step.step <= 5; ++step.step) {
            const Matrix gradients = stored_as(dtype, random.normal(1, size));
            set_gradients(runtime, step, gradients);
            backend.optimizer->step(step, runtime.stream());
            reference::optimizer_step(step, gradients.v, state);
          }
          // Ten roundings a step and value, of which the square root and the quotient are the largest.
          CHECK(difference(step.parameters, Matrix(1, size, state.parameters), 50) == "");
          if (step.first_moment.defined()) {
            CHECK(difference(step.first_moment, Matrix(1, size, state.first_moment), 10) == "");
          }
          if (step.second_moment.defined()) {
            CHECK(difference(step.second_moment, Matrix(1, size, state.second_moment), 10) == "");
          }
        }
      }
    }
  }
}

TEST_CASE(
    "a step moves what the parameters' last digit shows: f32 updates are not lost at large step numbers") {
  for (const Backend& backend : backends()) {
    Runtime runtime = make_runtime();
    // beta2^step in f32 would round 1 - 0.999^1 to 1.00004e-3, and 0.9^1e6 to 0.
    for (const int64_t number : {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{10000000}}) {
      CAPTURE(number);
      reference::OptimizerState state{{0.0}, {0.25}, {0.5}};
      OptimizerStep settings;
      settings.learning_rate = 1.0;
      settings.step = number;
      OptimizerStep step = with_tensors(runtime, settings, state, DType::f32);
      const Matrix gradient(1, 1, 0.5);
      set_gradients(runtime, step, gradient);
      backend.optimizer->step(step, runtime.stream());
      reference::optimizer_step(settings, gradient.v, state);
      CHECK(difference(step.parameters, Matrix(1, 1, state.parameters), 1) == "");
    }
  }
}

TEST_CASE("a step with non_finite set changes nothing") {
  for (const Backend& backend : backends()) {
    for (const Settings& settings : kSettings) {
      CAPTURE(std::string(settings.name));
      Runtime runtime = make_runtime();
      RandomMatrices random(62);
      const reference::OptimizerState state{random.normal(1, 129).v, random.normal(1, 129).v,
                                            std::vector<double>(129, 0.5)};
      OptimizerStep step = with_tensors(runtime, step_of(settings), state, DType::f32);
      const OptimizerStep before = with_tensors(runtime, step_of(settings), state, DType::f32);
      copy(unwritten(runtime, {129}, DType::f32), step.gradients, runtime.stream());
      step.squared_norm.values<double>()[0] = std::numeric_limits<double>::quiet_NaN();
      step.non_finite = Tensor::zeros(runtime, {1}, DType::i32, Tag::data);
      step.non_finite.values<int32_t>()[0] = 1;
      backend.optimizer->step(step, runtime.stream());
      CHECK(equal_bits(step.parameters, before.parameters));
      if (step.first_moment.defined()) CHECK(equal_bits(step.first_moment, before.first_moment));
      if (step.second_moment.defined()) CHECK(equal_bits(step.second_moment, before.second_moment));

      set_gradients(runtime, step, Matrix(1, 129, 1.0));
      step.non_finite.values<int32_t>()[0] = 0;
      backend.optimizer->step(step, runtime.stream());
      CHECK_FALSE(equal_bits(step.parameters, before.parameters));
    }
  }
}

TEST_CASE("a clipped step of zero gradients is a step of zero, not NaN") {
  for (const Backend& backend : backends()) {
    Runtime runtime = make_runtime();
    const reference::OptimizerState state{{1.0, 2.0}, {0.0, 0.0}, {0.0, 0.0}};
    OptimizerStep settings;
    settings.learning_rate = 0.1;
    settings.clip_norm = 1.0;
    OptimizerStep step = with_tensors(runtime, settings, state, DType::f64);
    set_gradients(runtime, step, Matrix(1, 2, 0.0));
    backend.optimizer->step(step, runtime.stream());
    CHECK(to_matrix(step.parameters).v == std::vector<double>{1.0, 2.0});
  }
}

TEST_CASE("optimizer leaves the same bits for any number of threads, and in every run") {
  for (const Backend& backend : backends()) {
    for (const Settings& settings : kSettings) {
      CAPTURE(std::string(settings.name));
      std::vector<std::unique_ptr<Runtime>> runtimes;
      std::vector<NamedTensors> results;
      for (const int threads : {1, 1, 2, 3, 5}) {
        RuntimeOptions options;
        options.threads = threads;
        Runtime& runtime = *runtimes.emplace_back(std::make_unique<Runtime>(options));
        RandomMatrices random(63);
        const reference::OptimizerState state{random.normal(1, 100003).v, random.normal(1, 100003).v,
                                              std::vector<double>(100003, 0.5)};
        OptimizerStep step = with_tensors(runtime, step_of(settings), state, DType::f32);
        set_gradients(runtime, step, stored_as(DType::f32, random.normal(1, 100003)));
        backend.optimizer->step(step, runtime.stream());
        results.push_back({{"parameters", step.parameters}});
        if (step.first_moment.defined()) results.back().emplace_back("first_moment", step.first_moment);
        if (step.second_moment.defined()) results.back().emplace_back("second_moment", step.second_moment);
      }
      for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
    }
  }
}

TEST_CASE("optimizer says which argument does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](int64_t size, DType dtype = DType::f32) {
    return Tensor::zeros(runtime, {size}, dtype, Tag::data);
  };
  const auto error = [&](auto&& change) {
    OptimizerStep args;
    args.parameters = tensor(9);
    args.gradients = tensor(9);
    args.first_moment = tensor(9);
    args.second_moment = tensor(9);
    change(args);
    return invalid_argument_text([&] { optimizer_step(args, runtime.stream()); });
  };
  CHECK(error([](OptimizerStep&) {}) == "");
  std::string text = error([&](OptimizerStep& a) { a.gradients = tensor(8); });
  CHECK_MESSAGE(
      (contains(text, "optimizer.step: gradients") && contains(text, "[9]") && contains(text, "[8]")), text);
  text = error([&](OptimizerStep& a) { a.first_moment = tensor(9, DType::f64); });
  CHECK_MESSAGE((contains(text, "first_moment") && contains(text, "f64")), text);
  text = error([](OptimizerStep& a) { a.second_moment = Tensor(); });
  CHECK_MESSAGE((contains(text, "second_moment") && contains(text, "none")), text);
  text = error([](OptimizerStep& a) { a.clip_norm = 1.0; });
  CHECK_MESSAGE(contains(text, "squared_norm"), text);
  text = error([](OptimizerStep& a) { a.step = 0; });
  CHECK_MESSAGE(contains(text, "a step of 1 or more"), text);
  CHECK(error([](OptimizerStep& a) {
          a.kind = OptimizerKind::sgd;
          a.first_moment = a.second_moment = Tensor();
        }) == "");
}

}  // namespace
}  // namespace meshgrad::test
