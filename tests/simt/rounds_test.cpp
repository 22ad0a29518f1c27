// SPDX-License-Identifier: Apache-2.0
// What shows in results only: errors of second rounds, and registers that were never written.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "device_array.h"
#include "planted.h"

namespace meshgrad {
namespace {

namespace planted = cuda::planted;
using test::DeviceArray;
using test::OwnStream;

/// The largest |out[i] - expected[i]|, with this many multiprocessors.
float largest_error(const char* multiprocessors, int count, const std::vector<float>& expected,
                    void (*start)(const Stream&, const float*, float*, int),
                    const std::vector<float>& values) {
  setenv("MESHGRAD_TEST_MULTIPROCESSORS", multiprocessors, 1);
  OwnStream stream;
  DeviceArray<float> in(values, stream);
  DeviceArray<float> out(count);
  start(stream.stream, in.data, out.data, count);
  const std::vector<float> found = out.host(stream);
  unsetenv("MESHGRAD_TEST_MULTIPROCESSORS");
  float largest = 0.0f;
  for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
  return largest;
}

std::vector<float> numbers() {
  std::vector<float> values(planted::kFloats);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f * static_cast<float>(i * i % 37);
  return values;
}

TEST_CASE("errors of second rounds show on few multiprocessors only") {
  const std::vector<float> values = numbers();
  std::vector<float> expected = values;
  for (float& x : expected) x += 1.0f;
  CHECK(largest_error("132", planted::kFloats, expected, planted::wrong_second_round, values) == 0.0f);
  CHECK(largest_error("3", planted::kFloats, expected, planted::wrong_second_round, values) > 0.1f);
}

TEST_CASE("a register that was never written holds no likely value") {
  const std::vector<float> values(64, 1.0f);
  const std::vector<float> expected(64, 16.0f);
  CHECK(largest_error("3", 64, expected, planted::sum_of_half_a_warp, values) > 1e30f);
}

}  // namespace
}  // namespace meshgrad
