// SPDX-License-Identifier: Apache-2.0
// What CUDA refuses of captures of several streams, and what orders the nodes of a graph.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>

#include "device.h"
#include "planted.h"
#include "support.h"

namespace meshgrad {
namespace {

/// Two streams of the first device, an event, and four floats of zero.
struct Fork {
  void* first = gpu::create_stream(0);
  void* second = gpu::create_stream(0);
  void* event = gpu::create_event(0);
  float* values = static_cast<float*>(gpu::allocate(0, 16));
  Fork() {
    gpu::fill(0, values, 0, 16, first);
    gpu::synchronize(first);
  }
  ~Fork() {
    gpu::free(values);
    gpu::destroy_event(event);
    gpu::destroy_stream(second);
    gpu::destroy_stream(first);
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  void order(void* earlier, void* later) const {
    gpu::record(event, earlier);
    gpu::wait(later, event);
  }
  void add(void* stream) const {
    cuda::planted::add_one(Stream({DeviceKind::cuda, 0}, 1, stream), values, values, 4);
  }
  float value() const {
    float host[4];
    gpu::copy(host, values, 16, first);
    return host[0];
  }
};

TEST_CASE("a capture ends when all its streams have joined") {
  const Fork fork;
  gpu::begin_capture(fork.first);
  fork.order(fork.first, fork.second);
  fork.add(fork.second);
  CHECK_THROWS_AS(gpu::end_capture(0, fork.first), DeviceError);
  gpu::begin_capture(fork.first);
  fork.order(fork.first, fork.second);
  fork.add(fork.second);
  fork.order(fork.second, fork.first);
  void* graph = gpu::end_capture(0, fork.first);
  gpu::launch_graph(0, graph, fork.first);
  gpu::destroy_graph(graph);  // it still runs
  CHECK(fork.value() == 1.0f);
}

TEST_CASE("a captured stream cannot wait for earlier work") {
  const Fork fork;
  gpu::record(fork.event, fork.second);
  gpu::begin_capture(fork.first);
  CHECK_THROWS_AS(gpu::wait(fork.first, fork.event), DeviceError);
  CHECK_THROWS_AS(gpu::end_capture(0, fork.first), DeviceError);
}

TEST_CASE("a captured event cannot be queried by the host") {
  const Fork fork;
  gpu::begin_capture(fork.first);
  gpu::record(fork.event, fork.first);
  gpu::destroy_graph(gpu::end_capture(0, fork.first));
  CHECK_THROWS_AS(gpu::passed(fork.event), DeviceError);
  CHECK_THROWS_AS(gpu::await(fork.event), DeviceError);
  gpu::record(fork.event, fork.first);
  CHECK_NOTHROW(gpu::await(fork.event));

  gpu::begin_capture(fork.first);
  gpu::begin_capture(fork.second);
  gpu::record(fork.event, fork.first);
  CHECK_THROWS_AS(gpu::wait(fork.second, fork.event), DeviceError);
  CHECK_THROWS_AS(gpu::end_capture(0, fork.second), DeviceError);
  gpu::destroy_graph(gpu::end_capture(0, fork.first));
}

/// Whether for some seed the graph's two streams run in the wrong order: x + 1 after or before it is cleared.
bool runs_out_of_order(bool wait) {
  constexpr uint64_t kSeeds = 20;
  bool wrong = false;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(seed);
    const Fork fork;
    gpu::begin_capture(fork.first);
    fork.order(fork.first, fork.second);
    gpu::fill(0, fork.values, 0, 16, fork.first);
    if (wait) fork.order(fork.first, fork.second);
    fork.add(fork.second);
    fork.order(fork.second, fork.first);
    void* graph = gpu::end_capture(0, fork.first);
    gpu::launch_graph(0, graph, fork.first);
    wrong |= fork.value() != 1.0f;
    gpu::destroy_graph(graph);
  }
  return wrong;
}

TEST_CASE("a graph keeps the order that events gave it, and no other") {
  CHECK(runs_out_of_order(false));
  CHECK_FALSE(runs_out_of_order(true));
}

}  // namespace
}  // namespace meshgrad
