// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/engine/gpu_launch.h>
#include <meshgrad/engine/span.h>

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "fake_runtime.h"

namespace meshgrad {
namespace {

using fake_cuda::state;

struct FreshState {
  FreshState() { state() = {}; }
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

constexpr int kLarge = 65536;

/// Another kernel at each call, unless one is given.
void start(void* stream, int shared_bytes = 0, const char* kernel = nullptr) {
  static const char kernels[100] = {};
  static int started = 0;
  int argument = 0;
  gpu::start_kernel({.name = "probe",
                     .kernel = kernel != nullptr ? kernel : &kernels[started++],
                     .shared_bytes = shared_bytes,
                     .opts_in = shared_bytes > 0,
                     .stream = stream},
                    &argument);
}

TEST_CASE_FIXTURE(FreshState, "a launch is not blamed for an earlier call's error") {
  void* stream = gpu::create_stream(0);
  state().pending = cudaErrorInvalidValue;  // by the host application
  CHECK_NOTHROW(start(stream));
  CHECK(state().pending == cudaErrorInvalidValue);  // still the application's to read
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "a refused attribute or launch names the kernel") {
  void* stream = gpu::create_stream(0);
  state().attribute_error = cudaErrorInvalidValue;
  std::string text = error_of([&] { start(stream, kLarge); });
  CHECK(contains(text, "probe"));
  CHECK(contains(text, "65536 bytes of shared memory"));
  CHECK(state().pending == cudaSuccess);
  state().attribute_error = cudaSuccess;
  CHECK_NOTHROW(start(stream, kLarge));

  state().launch_error = cudaErrorNoKernelImageForDevice;
  CHECK(contains(error_of([&] { start(stream); }), "CMAKE_CUDA_ARCHITECTURES"));
  CHECK(state().pending == cudaSuccess);
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "a kernel that failed earlier is named as the cause") {
  void* stream = gpu::create_stream(0);
  state().launch_error = cudaErrorIllegalAddress;
  const std::string text = error_of([&] { start(stream); });
  CHECK(contains(text, "an earlier kernel failed: an illegal memory access"));
  CHECK(contains(text, "compute-sanitizer"));
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "freeing leaves no error") {
  void* stream = gpu::create_stream(0);
  void* event = gpu::create_event(0);
  void* graph = gpu::end_capture(0, stream);
  state().destroy_error = cudaErrorInvalidValue;
  const std::vector<std::function<void()>> frees = {
      [&] { gpu::destroy_graph(graph); },
      [&] { gpu::destroy_event(event); },
      [&] { gpu::destroy_stream(stream); },
      [&] { gpu::free(gpu::allocate(0, 1)); },
      [&] { gpu::free_pinned(gpu::allocate_pinned(0, 1)); },
  };
  for (const auto& free : frees) {
    free();
    CHECK(state().pending == cudaSuccess);
  }
}

TEST_CASE_FIXTURE(FreshState, "large thread blocks ask for all shared memory") {
  void* stream = gpu::create_stream(0);
  start(stream);
  CHECK(state().carveout == -1);
  start(stream, kLarge);
  CHECK(state().carveout == 100);
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "attributes of a kernel are set once, and again after errors") {
  static const char kernel = 0;
  void* const streams[] = {gpu::create_stream(0), gpu::create_stream(1)};
  const auto calls_of = [&](int device, int bytes) {
    const gpu::CurrentDevice current(device);
    state().attribute_calls = 0;
    start(streams[device], bytes, &kernel);
    return state().attribute_calls;
  };
  CHECK(calls_of(0, kLarge) == 2);
  CHECK(calls_of(0, kLarge) == 0);
  CHECK(calls_of(0, kLarge / 2) == 0);
  CHECK(calls_of(1, kLarge) == 2);
  CHECK(calls_of(0, 2 * kLarge) == 2);
  state().launch_error = cudaErrorInvalidValue;
  CHECK_THROWS_AS(calls_of(0, kLarge), DeviceError);
  state().launch_error = cudaSuccess;
  CHECK(calls_of(0, kLarge) == 2);
  for (void* stream : streams) gpu::destroy_stream(stream);
}

/// All calls for which the current device counts, on the second device.
void use_second_device() {
  constexpr int kDevice = 1;
  void* stream = gpu::create_stream(kDevice);
  void* event = gpu::create_event(kDevice);
  gpu::record(event, stream);
  void* memory = gpu::allocate(kDevice, 8);
  void* pinned = gpu::allocate_pinned(kDevice, 8);
  gpu::fill(kDevice, memory, 0, 8, stream);
  gpu::memory(kDevice);
  gpu::begin_capture(stream);
  void* graph = gpu::end_capture(kDevice, stream);
  gpu::launch_graph(kDevice, graph, stream);
  {
    const gpu::CurrentDevice current(kDevice);
    start(stream);
  }
  gpu::destroy_graph(graph);
  gpu::free_pinned(pinned);
  gpu::free(memory);
  gpu::destroy_event(event);
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "a second device is used from any thread") {
  std::string text = error_of(use_second_device);
  CHECK(text == "");
  std::thread([&] { text = error_of(use_second_device); }).join();
  CHECK(text == "");
  CHECK(state().calls.size() == 14);
  for (const std::string& call : state().calls) {
    CAPTURE(call);
    CHECK(call.ends_with(" on 1"));
  }
  int current = -1;
  cudaGetDevice(&current);
  CHECK(current == 0);  // the application's choice
}

TEST_CASE_FIXTURE(FreshState, "shared memory is the device's, or without one an H200's") {
  CHECK(gpu::multiprocessor_memory(0).bytes == 100 * 1024);
  CHECK(gpu::multiprocessor_memory(0).reserved_per_block == 512);
  state().devices = 0;
  CHECK(gpu::multiprocessor_memory(0).bytes == 228 * 1024);
  CHECK(gpu::multiprocessor_memory(0).reserved_per_block == 1024);
  CHECK(state().pending == cudaSuccess);
}

TEST_CASE_FIXTURE(FreshState, "a planned card goes before the device") {
  const gpu::PlannedCard planned(&gpu::card("t4"));
  CHECK(gpu::multiprocessor_memory(0).bytes == 64 * 1024);
  CHECK(gpu::shared_bytes(0) == 64 * 1024);
  CHECK(gpu::multiprocessors(0) == 40);
  CHECK(gpu::compute_capability(0) == 75);
  CHECK(state().calls.empty());
}

TEST_CASE_FIXTURE(FreshState, "tests can lower the number of multiprocessors, not raise it") {
  CHECK(gpu::multiprocessors(0) == 132);
  for (const auto& [wanted, used] : {std::pair{"3", 3}, std::pair{"0", 1}, std::pair{"1000", 132}}) {
    setenv("MESHGRAD_TEST_MULTIPROCESSORS", wanted, 1);
    CHECK(gpu::multiprocessors(0) == used);
  }
  unsetenv("MESHGRAD_TEST_MULTIPROCESSORS");
}

TEST_CASE_FIXTURE(FreshState, "tests can lower shared memory, not raise it") {
  const int all = gpu::shared_bytes(0);
  CHECK(all > 48 * 1024);
  for (const auto& [wanted, used] :
       {std::pair{"50000", 50'000}, std::pair{"0", 48 * 1024}, std::pair{"900000", all}}) {
    setenv("MESHGRAD_TEST_SHARED_BYTES", wanted, 1);
    CHECK(gpu::shared_bytes(0) == used);
  }
  unsetenv("MESHGRAD_TEST_SHARED_BYTES");
}

TEST_CASE_FIXTURE(FreshState, "a device without code is no matter of shared memory") {
  void* stream = gpu::create_stream(0);
  state().attribute_error = cudaErrorNoKernelImageForDevice;
  const std::string text = error_of([&] { start(stream, kLarge); });
  CHECK(contains(text, "code for this device in a build for 80-real 90-real 90-virtual"));
  CHECK(contains(text, "-DCMAKE_CUDA_ARCHITECTURES"));
  gpu::destroy_stream(stream);
}

TEST_CASE_FIXTURE(FreshState, "why there are no devices") {
  CHECK(gpu::why_no_devices() == "");
  state().driver = 11080;
  CHECK(gpu::devices().empty());
  CHECK(contains(gpu::why_no_devices(), "a driver of CUDA 11.8, older than CUDA "));
  CHECK(contains(error_of([] { resolve_device("cuda"); }), "CUDA 11.8"));
  std::string note;
  resolve_device("auto", &note);
  CHECK(contains(note, "CUDA 11.8"));
  state().driver = 0;
  CHECK(gpu::why_no_devices() == "no NVIDIA driver");
  state() = {};
  state().devices = 0;
  CHECK(gpu::why_no_devices() == "no CUDA device that the driver reports");
  CHECK(state().pending == cudaSuccess);
}

TEST_CASE("spans are nested ranges of NVTX") {
  setenv("NVTX_INJECTION64_PATH", TEST_PROFILER, 1);
  REQUIRE(gpu::profiled());
  CHECK(Span::wanted());
  CHECK(!records_spans());
  {
    const Span step("step 3");
    { const Span forward(std::string("forward")); }
    const Span backward("backward");
  }
  void* const profiler = dlopen(TEST_PROFILER, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(profiler != nullptr);
  const auto text = [&](const char* name) {
    return std::string(reinterpret_cast<const char* (*)()>(dlsym(profiler, name))());
  };
  CHECK(text("profiler_notes") == "[step 3[forward][backward]]");
  CHECK(text("profiler_domains") == "meshgrad");
  dlclose(profiler);
}

}  // namespace
}  // namespace meshgrad
