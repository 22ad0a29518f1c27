// SPDX-License-Identifier: Apache-2.0
// What a build has code for decides which devices it uses, before the first kernel.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>

#include <functional>

#include "device.h"
#include "support.h"

namespace meshgrad {
namespace {

using gpu::Code;
using gpu::code_for;
using test::contains;

struct Build {
  explicit Build(const std::string& architectures) { simt::set_architectures(architectures); }
  ~Build() {
    simt::set_architectures("");
    simt::set_compute_capability(0);
    simt::set_virtual_memory(true);
  }
  Build(const Build&) = delete;
  Build& operator=(const Build&) = delete;
};

constexpr Device kFirst{DeviceKind::cuda, 0}, kSecond{DeviceKind::cuda, 1};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

std::vector<std::string> messages_of_runtime(Device device) {
  std::vector<std::string> messages;
  RuntimeOptions options{.device = device};
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  const Runtime runtime(options);
  return messages;
}

TEST_CASE("code for a device: its instructions, or PTX of an older one") {
  const char* const usual = "80-real 90-real 90-virtual";
  CHECK(code_for(75, usual) == Code::none);
  CHECK(code_for(80, usual) == Code::binary);
  CHECK(code_for(89, usual) == Code::binary);
  CHECK(code_for(90, usual) == Code::binary);
  CHECK(code_for(120, usual) == Code::ptx);
  CHECK(code_for(80, "90-real") == Code::none);
  CHECK(code_for(100, "90-real") == Code::none);
  CHECK(code_for(100, "90") == Code::ptx);
  CHECK(code_for(86, "89 80-virtual") == Code::ptx);
  CHECK(code_for(90, "90a-real") == Code::binary);
  CHECK(code_for(91, "90a") == Code::none);
  CHECK(code_for(75, "native") == Code::binary);
  CHECK(code_for(75, "75") == Code::binary);
  CHECK(code_for(80, "75") == Code::none);  // it would have no fused kernels
  CHECK(code_for(75, "80") == Code::none);
  CHECK(code_for(90, "") == Code::none);
}

TEST_CASE("a device without code is refused with the option to add it") {
  const Build build("90-real");
  simt::set_compute_capability(80, 0);
  for (const std::string& error :
       {error_of([] { resolve_device("cuda:0"); }), error_of([] { Runtime runtime({.device = kFirst}); })}) {
    CAPTURE(error);
    CHECK(contains(error, "8.0"));
    CHECK(contains(error, "90-real"));
    CHECK(contains(error, "-DCMAKE_CUDA_ARCHITECTURES=80"));
  }
  CHECK(resolve_device("cuda:1") == kSecond);
  CHECK_NOTHROW(Runtime({.device = kFirst, .dry = true}));
}

TEST_CASE("auto looks at all devices, and says why it passes over one") {
  const Build build("90-real");
  std::string note;
  CHECK(resolve_device("auto", &note) == kFirst);
  CHECK(note == "device: cuda:0 (simulated)");
  simt::set_compute_capability(70, 0);
  CHECK(resolve_device("auto", &note) == kSecond);
  CHECK(note == "device: cuda:1 (simulated; simulated has compute capability 7.0, less than 7.5)");
  simt::set_compute_capability(80, 1);
  CHECK(resolve_device("auto", &note) == Device{});
  CHECK(contains(note, "device: cpu (simulated has compute capability 7.0, less than 7.5; simulated has "));
  CHECK(contains(note, "8.0, and this build has code for 90-real)"));
}

TEST_CASE("capability 7.5 is used where a build has code for it") {
  const Build build("75-real 80-real");
  simt::set_compute_capability(75, 0);
  CHECK(resolve_device("auto") == kFirst);
  CHECK_NOTHROW(Runtime({.device = kFirst}));
  simt::set_architectures("80-real");
  CHECK(contains(error_of([] { resolve_device("cuda:0"); }), "-DCMAKE_CUDA_ARCHITECTURES=75"));
}

TEST_CASE("a driver that compiles kernels is logged") {
  const Build build("90");
  CHECK(messages_of_runtime(kFirst).empty());
  simt::set_compute_capability(120, 0);
  const std::vector<std::string> messages = messages_of_runtime(kFirst);
  REQUIRE(messages.size() == 1);
  CHECK(contains(messages.front(), "cuda:0 has compute capability 12.0, for which this build has PTX only"));
}

TEST_CASE("devices without virtual memory use cudaMalloc, and log it") {
  const Build build("native");
  simt::set_virtual_memory(false);
  const std::vector<std::string> messages = messages_of_runtime(kFirst);
  REQUIRE(messages.size() == 1);
  CHECK(contains(messages.front(), "cuda:0 has no virtual memory management"));
  Runtime runtime({.device = kFirst});
  const test::Matrix ones(30, 10, 1.0);
  CHECK(test::to_matrix(test::to_tensor(runtime, ones, DType::f32)).v == ones.v);
}

}  // namespace
}  // namespace meshgrad
