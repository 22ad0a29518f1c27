// SPDX-License-Identifier: Apache-2.0
// Two devices: the right one is current at each call, and their streams, events and memory are not mixed up.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>

#include <thread>

#include <meshgrad/kernels/cuda/simt.h>
#include "device.h"
#include "planted.h"
#include "streams.h"
#include "support.h"

namespace meshgrad {
namespace {

using test::contains;

constexpr int kSecond = 1;
constexpr int64_t kValues = 64;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("the simulated device insists on the current device") {
  void* first = gpu::create_stream(0);
  void* second = gpu::create_stream(kSecond);
  void* memory = gpu::allocate(0, 16);
  void* event = gpu::create_event(0);
  CHECK(contains(error_of([&] { simt::launch("probe", 1, 1, 0, second, [] {}); }), "a stream of device 1"));
  CHECK(contains(error_of([&] { gpu::fill(0, memory, 0, 16, second); }), "a stream of device 1"));
  CHECK(contains(error_of([&] { gpu::fill(kSecond, memory, 0, 16, second); }), "of the other device"));
  CHECK(contains(error_of([&] { gpu::record(event, second); }), "an event of device 0"));
  CHECK_NOTHROW(gpu::wait(second, event));
  {
    const gpu::CurrentDevice current(kSecond);
    CHECK_NOTHROW(simt::launch("probe", 1, 1, 0, second, [] {}));
    CHECK_THROWS_AS(simt::launch("probe", 1, 1, 0, first, [] {}), DeviceError);
  }
  CHECK_NOTHROW(simt::launch("probe", 1, 1, 0, first, [] {}));
  CHECK_THROWS_AS(gpu::CurrentDevice(simt::kDevices), DeviceError);
  gpu::synchronize(second);
  // A kernel reads and writes memory of its own device only.
  const Stream stream({DeviceKind::cuda, kSecond}, 1, second);
  auto* const values = static_cast<float*>(memory);
  cuda::planted::add_one(stream, values, values, 4);
  const std::string first_error = error_of([&] { gpu::synchronize(second); });
  CHECK(contains(first_error, "memory of device 1"));
  // As on a GPU, no call on that device succeeds any more, and each names the kernel that failed first.
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { gpu::synchronize(second); }, [&] { gpu::create_event(kSecond); },
           [&] { gpu::create_stream(kSecond); }, [&] { gpu::allocate(kSecond, 16); },
           [&] { gpu::allocate_pinned(kSecond, 16); }, [&] { gpu::begin_capture(second); },
           [&] { gpu::copy(memory, memory, 16, second); },
           [&] { cuda::planted::add_one(stream, values, values, 4); }})
    CHECK(contains(error_of(call), "an earlier kernel failed: " + first_error));
  gpu::synchronize(first);  // the other device works
  simt::repair_devices();
  gpu::synchronize(second);
  gpu::destroy_event(event);
  gpu::free(memory);
  gpu::destroy_stream(second);
  gpu::destroy_stream(first);
}

/// A kernel, a memset, copies, events and a captured graph.
void work_on(Runtime& runtime) {
  const Stream& stream = runtime.stream();
  const Tensor values = Tensor::empty(runtime, Shape{kValues}, DType::f32, Tag::data);
  fill_zero(values, stream);
  auto* const data = values.data<float>();
  CapturedWork work(runtime, "add", [&](Runtime& own) {
    cuda::planted::add_one(own.stream(), data, data, static_cast<int>(kValues));
  });
  for (int i = 0; i < 3; ++i) work.run();
  std::vector<float> host(kValues);
  gpu::copy(host.data(), data, values.bytes(), stream.native());
  CHECK(work.refusal() == "");
  CHECK(host.front() == 3.0f);
  CHECK(host.back() == 3.0f);
}

TEST_CASE("a Runtime works on any device and from any thread") {
  RuntimeOptions options;
  options.device = {DeviceKind::cuda, kSecond};
  for (const bool expandable : {true, false}) {
    CAPTURE(expandable);
    options.allocator.expandable_segments = expandable;
    Runtime second(options);
    options.device.index = 0;
    Runtime first(options);
    options.device.index = kSecond;
    work_on(second);
    work_on(first);
    std::string text;
    std::thread([&] { text = error_of([&] { work_on(second); }); }).join();
    CHECK(text == "");
    std::thread([&] { text = error_of([&] { work_on(first); }); }).join();
    CHECK(text == "");
  }
}

}  // namespace
}  // namespace meshgrad
