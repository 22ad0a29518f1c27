// SPDX-License-Identifier: Apache-2.0
// A launch trace has each launch, in order and by name, with a time; without one, nothing is recorded.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/launch_trace.h>
#include <meshgrad/kernels/linear.h>

#include "planted.h"
#include "support.h"

namespace meshgrad {
namespace {

std::string names_of(const std::vector<LaunchTrace::Launch>& launches) {
  std::string names;
  for (const LaunchTrace::Launch& launch : launches) {
    CHECK(launch.ms >= 0.0);
    names += (names.empty() ? "" : ", ") + launch.name;
  }
  return names;
}

TEST_CASE("a launch trace has the kernels and GEMMs of its stream") {
  Runtime runtime({.device = {DeviceKind::cuda, 0}});
  Runtime other({.device = {DeviceKind::cuda, 1}});
  const auto zeros = [](Runtime& on, const Shape& shape) {
    const Tensor tensor = Tensor::empty(on, shape, DType::f32, Tag::data);
    fill_zero(tensor, on.stream());
    return tensor;
  };
  const auto add = [&](Runtime& on, const Tensor& values) {
    cuda::planted::add_one(on.stream(), values.data<float>(), values.data<float>(), 64);
  };
  const Tensor values = zeros(runtime, {64}), elsewhere = zeros(other, {64});
  const Tensor x = zeros(runtime, {4, 8}), weight = zeros(runtime, {8, 8}), y = zeros(runtime, {4, 8});
  add(runtime, values);
  {
    LaunchTrace trace(runtime.stream());
    CHECK(trace.take().empty());
    add(runtime, values);
    add(other, elsewhere);
    kernels::linear_forward({.rows = 4, .x = x, .weight = weight, .bias = {}, .y = y}, runtime,
                            runtime.stream());
    add(runtime, values);
    const std::vector<LaunchTrace::Launch> launches = trace.take();
    CHECK(names_of(launches) == "add_one, cuBLASLt, add_one");
    double end = 0.0;
    for (const LaunchTrace::Launch& launch : launches) {
      CHECK(launch.begin_ms >= end);
      CHECK(launch.end_ms >= launch.begin_ms);
      CHECK(launch.launched >= launches.front().launched);
      end = launch.end_ms;
    }
    CHECK(launches.front().begin_ms == 0.0);
    CHECK(trace.take().empty());
  }
  add(runtime, values);
  LaunchTrace later(runtime.stream());
  CHECK(later.take().empty());
  CHECK_THROWS_AS(LaunchTrace(runtime.stream()), InternalError);
}

}  // namespace
}  // namespace meshgrad
