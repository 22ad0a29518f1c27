// SPDX-License-Identifier: Apache-2.0
// Virtual memory when the driver refuses a call half-way, and devices that have none.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/memory/source_cuda.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>

#include <string>
#include <vector>

#include "fake_runtime.h"

namespace meshgrad {
namespace {

using fake_cuda::state;

constexpr int64_t kBytes = int64_t{4} << 20;
constexpr const char* kCalls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};

TEST_CASE("a mapping refused half-way leaves no memory") {
  state() = {};
  const auto source = make_cuda_virtual_memory(0);
  REQUIRE(source != nullptr);
  char* const address = source->reserve(2 * kBytes);
  for (const char* const call : kCalls) {
    CAPTURE(std::string(call));
    state().failing_call = call;
    CHECK(!source->map(address, kBytes));
    CHECK(state().handles == 0);
    CHECK(state().mappings == 0);
    CHECK(source->mapped_bytes() == 0);
    state().failing_call = "";
    REQUIRE(source->map(address, kBytes));  // at the same addresses
    CHECK(state().handles == 0);            // the mapping holds the memory
    CHECK(source->mapped_bytes() == kBytes);
    state().failing_call = call;
    CHECK(!source->map(address + kBytes, kBytes));
    CHECK(source->mapped_bytes() == kBytes);
    CHECK(state().mappings == 1);
    state().failing_call = "";
    source->unmap(address, kBytes);
    CHECK(state().mappings == 0);
  }
  source->release(address, 2 * kBytes);
}

TEST_CASE("after a refused allocation a later one succeeds") {
  state() = {};
  for (const char* const call : kCalls) {
    CAPTURE(std::string(call));
    Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1});
    const auto allocate = [&] { return Tensor::empty(runtime, Shape{kBytes}, DType::u8, Tag::data); };
    const Tensor first = allocate();
    state().failing_call = call;
    CHECK_THROWS_AS(allocate(), OutOfMemory);
    CHECK(state().handles == 0);
    state().failing_call = "";
    CHECK_NOTHROW(allocate());
  }
  CHECK(state().mappings == 0);
}

TEST_CASE("devices without virtual memory use cudaMalloc, and log it") {
  state() = {};
  state().virtual_memory = false;
  CHECK(make_cuda_virtual_memory(0) == nullptr);
  std::vector<std::string> messages;
  RuntimeOptions options{.device = {DeviceKind::cuda, 0}, .threads = 1};
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  {
    Runtime runtime(options);
    Tensor::empty(runtime, Shape{kBytes}, DType::u8, Tag::data);
  }
  REQUIRE(messages.size() == 1);
  CHECK(messages.front().find("cuda:0 has no virtual memory management") == 0);
  CHECK(state().calls.back() == "cudaMalloc on 0");
}

}  // namespace
}  // namespace meshgrad
