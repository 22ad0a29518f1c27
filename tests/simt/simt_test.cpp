// SPDX-License-Identifier: Apache-2.0
// The simulated device is no toy: it finds each planted bug and lets right kernels pass, whatever the order
// of threads, blocks and streams.
#include <meshgrad/kernels/cuda/simt.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <numeric>

#include "device.h"
#include "device_array.h"
#include "planted.h"
#include "support.h"

namespace meshgrad {
namespace {

namespace planted = cuda::planted;
using planted::kFloats;
using test::DeviceArray;
using test::Matrix;
using test::OwnStream;
using test::RandomMatrices;

constexpr uint64_t kSeeds = 20;

std::vector<float> random_floats(int64_t count, uint64_t seed) {
  const Matrix values = RandomMatrices(seed).normal(1, count);
  std::vector<float> floats(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    floats[static_cast<size_t>(i)] = static_cast<float>(values.v[static_cast<size_t>(i)]);
  return floats;
}

/// The device's error for the work on the stream, after which it is repaired; empty without one.
std::string error_of(const OwnStream& stream) {
  try {
    gpu::synchronize(stream.native);
  } catch (const DeviceError& error) {
    simt::repair_devices();
    return error.what();
  }
  return {};
}

/// The signal that ends a process which runs `body`; 0 for none.
template <class Body>
int signal_of(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int number : {SIGSEGV, SIGBUS}) std::signal(number, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_CASE("every planted bug is found, for every seed") {
  OwnStream stream;
  for (const planted::Bug& bug : planted::bugs()) {
    CAPTURE(std::string(bug.name));
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      simt::set_seed(seed);
      DeviceArray<float> in(random_floats(kFloats, seed), stream);
      DeviceArray<float> out(kFloats);
      DeviceArray<unsigned> counter({0}, stream);
      bug.start(stream.stream, {in.data, out.data, counter.data});
      const std::string error = error_of(stream);
      CAPTURE(error);
      CHECK(error.find(bug.message) != std::string::npos);
      CHECK(error.find("[kernel planted] needed") == 0);
      // The device can still be used.
      planted::add_one(stream.stream, in.data, out.data, kFloats);
      CHECK(error_of(stream).empty());
    }
  }
}

TEST_CASE("messages name threads and lines") {
  OwnStream stream;
  DeviceArray<float> in(random_floats(kFloats, 1), stream);
  DeviceArray<float> out(kFloats);
  DeviceArray<unsigned> counter({0}, stream);
  for (const planted::Bug& bug : planted::bugs()) {
    const std::string name = bug.name;
    if (name != "divergent barrier" && name != "write past the end") continue;
    bug.start(stream.stream, {in.data, out.data, counter.data});
    const std::string error = error_of(stream);
    CAPTURE(error);
    CHECK(error.find("planted_bugs.cu:") != std::string::npos);
    CHECK(error.find("thread ") != std::string::npos);
    CHECK(error.find(" of block ") != std::string::npos);
    if (name == "divergent barrier") {
      CHECK(error.find("planted_bugs.cu:", error.find("planted_bugs.cu:") + 1) != std::string::npos);
    }
  }
}

TEST_CASE("layer norm by shuffles") {
  OwnStream stream;
  for (const int rows : {1, 3, 4, 33}) {
    for (const int width : {1, 31, 32, 128, 129}) {
      CAPTURE(rows);
      CAPTURE(width);
      const std::vector<float> values = random_floats(int64_t{rows} * width, 7);
      DeviceArray<float> in(values, stream);
      DeviceArray<float> out(in.count);
      planted::layer_norm(stream.stream, in.data, out.data, rows, width);
      const std::vector<float> result = out.host(stream);
      double worst = 0;
      for (int r = 0; r < rows; ++r) {
        const float* row = values.data() + static_cast<ptrdiff_t>(r) * width;
        const double mean = std::accumulate(row, row + width, 0.0) / width;
        double squares = 0;
        for (int i = 0; i < width; ++i) squares += (row[i] - mean) * (row[i] - mean);
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (int i = 0; i < width; ++i) {
          const float found =
              result[static_cast<size_t>(r) * static_cast<size_t>(width) + static_cast<size_t>(i)];
          worst = std::max(worst, std::abs(static_cast<double>(found) - (row[i] - mean) * scale));
        }
      }
      CHECK(worst <= test::tolerance(DType::f32, width, 6));
    }
  }
}

TEST_CASE("sums are the same for every order of threads and blocks") {
  OwnStream stream;
  const std::vector<float> values = random_floats(1000, 3);
  DeviceArray<float> in(values, stream);
  DeviceArray<float> partial(64);
  DeviceArray<float> out(1);
  DeviceArray<unsigned> counter({0}, stream);
  std::vector<float> tree;
  std::vector<float> ticket;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(seed);
    planted::tree_sum(stream.stream, in.data, out.data);
    tree.push_back(out.host(stream)[0]);
    planted::ticket_sum(stream.stream, in.data, partial.data, out.data, counter.data, 1000);
    ticket.push_back(out.host(stream)[0]);
    CHECK(counter.host(stream)[0] == 0);
  }
  CHECK(std::count(tree.begin(), tree.end(), tree[0]) == kSeeds);
  CHECK(std::count(ticket.begin(), ticket.end(), ticket[0]) == kSeeds);
  const double first = std::accumulate(values.begin(), values.begin() + 256, 0.0);
  const double all = std::accumulate(values.begin(), values.end(), 0.0);
  CHECK(std::abs(static_cast<double>(tree[0]) - first) <= test::tolerance(DType::f32, 256, 6));
  CHECK(std::abs(static_cast<double>(ticket[0]) - all) <= test::tolerance(DType::f32, 1000, 6));
}

/// Largest difference of the device's matrix multiplication from sums in f64.
double error_of_gemm(int m, int n, int k, bool swapped, uint64_t seed) {
  OwnStream stream;
  const auto stored = [](const std::vector<float>& values) {
    std::vector<half> halves;
    halves.reserve(values.size());
    for (const float value : values) halves.emplace_back(value);
    return halves;
  };
  const std::vector<half> a = stored(random_floats(int64_t{m} * k, seed));
  const std::vector<half> b = stored(random_floats(int64_t{k} * n, seed + 1));
  DeviceArray<half> device_a(a, stream);
  DeviceArray<half> device_b(b, stream);
  DeviceArray<float> device_c(int64_t{m} * n);
  planted::gemm(stream.stream, device_a.data, device_b.data, device_c.data, m, n, k, swapped);
  const std::vector<float> c = device_c.host(stream);
  double worst = 0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += static_cast<double>(static_cast<float>(a[static_cast<size_t>(i * k + l)])) *
               static_cast<double>(static_cast<float>(b[static_cast<size_t>(l * n + j)]));
      }
      worst = std::max(worst, std::abs(sum - static_cast<double>(c[static_cast<size_t>(i * n + j)])));
    }
  }
  return worst;
}

TEST_CASE("GEMMs by asynchronous copies need the right layout") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(seed);
    CHECK(error_of_gemm(32, 24, 48, false, seed) <= test::tolerance(DType::f32, 48, 16));
  }
  CHECK(error_of_gemm(16, 8, 16, true, 1) > 0.1);
}

TEST_CASE("warps turn rows around, and count") {
  OwnStream stream;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(seed);
    const std::vector<float> values = random_floats(11 * 32, seed);
    DeviceArray<float> in(values, stream);
    DeviceArray<float> out(in.count);
    planted::reverse_rows(stream.stream, in.data, out.data, 11);
    const std::vector<float> result = out.host(stream);
    bool turned = true;
    for (size_t i = 0; i < result.size(); ++i) turned &= result[i] == values[i / 32 * 32 + 31 - i % 32];
    CHECK(turned);

    std::vector<int> numbers(75);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>((i * i + seed) % 7);
    DeviceArray<int> device_numbers(numbers, stream);
    DeviceArray<int> counts(std::vector<int>(7), stream);
    DeviceArray<unsigned> lanes(75);
    DeviceArray<unsigned> even(3);
    planted::histogram(stream.stream, device_numbers.data, counts.data, lanes.data, even.data, 75);
    const std::vector<int> found = counts.host(stream);
    for (int value = 0; value < 7; ++value) {
      CHECK(found[static_cast<size_t>(value)] == std::count(numbers.begin(), numbers.end(), value));
    }
    const std::vector<unsigned> masks = lanes.host(stream);
    const std::vector<unsigned> evens = even.host(stream);
    bool right = true;
    for (size_t i = 0; i < 75; ++i) {
      unsigned equal = 0;
      unsigned even_ones = 0;
      for (size_t j = i / 32 * 32; j < std::min<size_t>(75, i / 32 * 32 + 32); ++j) {
        equal |= static_cast<unsigned>(numbers[i] == numbers[j]) << j % 32;
        even_ones |= static_cast<unsigned>(numbers[j] % 2 == 0) << j % 32;
      }
      right &= masks[i] == equal && evens[i / 32] == even_ones;
    }
    CHECK(right);
  }
}

TEST_CASE("bytes and operations of a launch are counted") {
  OwnStream stream;
  DeviceArray<float> in(random_floats(100, 1), stream);
  DeviceArray<float> out(100);
  DeviceArray<half> a(32 * 48);
  DeviceArray<half> b(48 * 24);
  DeviceArray<float> c(32 * 24);
  gpu::fill(0, a.data, 0, a.bytes(), stream.native);
  gpu::fill(0, b.data, 0, b.bytes(), stream.native);
  gpu::synchronize(stream.native);
  simt::take_reports();
  planted::add_one(stream.stream, in.data, out.data, 100);
  planted::gemm(stream.stream, a.data, b.data, c.data, 32, 24, 48, false);
  CHECK(simt::take_reports().empty());  // nothing has run yet
  gpu::synchronize(stream.native);
  const std::vector<simt::LaunchReport> reports = simt::take_reports();
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].name == "add_one");
  CHECK(reports[0].blocks == 2);
  CHECK(reports[0].threads == 64);
  CHECK(reports[0].bytes_read == 400);
  CHECK(reports[0].bytes_written == 400);
  CHECK(reports[0].unique_bytes_read == 400);
  CHECK(reports[0].unique_bytes_written == 400);
  CHECK(reports[0].tensor_flops == 0);
  // Each of the 2 x 3 tiles reads its 16 rows of a and its 8 columns of b.
  CHECK(reports[1].bytes_read == 6 * (16 * 48 + 48 * 8) * 2);
  CHECK(reports[1].unique_bytes_read == a.bytes() + b.bytes());
  CHECK(reports[1].unique_bytes_written == c.bytes());
  CHECK(reports[1].bytes_written == c.bytes());
  CHECK(reports[1].tensor_flops == 2 * 32 * 24 * 48);
  CHECK(reports[1].shared_bytes == 1536);
}

TEST_CASE("the host cannot touch device memory") {
  OwnStream stream;
  DeviceArray<float> values(random_floats(10, 1), stream);
  CHECK(signal_of([&] { values.data[0] = 1; }) == SIGSEGV);
  CHECK(signal_of([&] {
          volatile float x = values.data[3];
          static_cast<void>(x);
        }) == SIGSEGV);
  gpu::synchronize(stream.native);
  CHECK(signal_of([&] { values.data[0] = 1; }) == SIGSEGV);
  CHECK(signal_of([&] { planted::add_one(stream.stream, values.data, values.data, 10); }) == 0);
  std::vector<float> host(11);
  CHECK_THROWS_AS(gpu::copy(host.data(), values.data, 44, stream.native), DeviceError);
  CHECK_THROWS_AS(gpu::fill(0, values.data + 1, 0, 40, stream.native), DeviceError);
}

TEST_CASE("pinned memory must not change before its copy runs") {
  OwnStream stream;
  DeviceArray<float> device(4);
  auto* pinned = static_cast<float*>(gpu::allocate_pinned(0, 16));
  std::fill_n(pinned, 4, 1.0f);
  gpu::copy(device.data, pinned, 16, stream.native);
  std::fill_n(pinned, 4, 2.0f);  // too early
  CHECK(device.host(stream) == std::vector<float>(4, 2.0f));

  std::vector<float> pageable(4, 1.0f);
  gpu::copy(device.data, pageable.data(), 16, stream.native);
  std::fill_n(pageable.data(), 4, 2.0f);
  CHECK(device.host(stream) == std::vector<float>(4, 1.0f));

  // A copy to pinned memory is there after a synchronisation, not before.
  gpu::copy(pinned, device.data, 16, stream.native);
  CHECK(pinned[0] == 2.0f);
  gpu::synchronize(stream.native);
  CHECK(pinned[0] == 1.0f);
  gpu::free_pinned(pinned);
}

/// Whether for some seed the second stream reads what the first has not written yet.
bool comes_too_early(bool wait) {
  bool early = false;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(seed);
    OwnStream first;
    OwnStream second;
    DeviceArray<float> values(std::vector<float>(4, 0.0f), first);
    DeviceArray<float> result(4);
    gpu::synchronize(first.native);
    planted::add_one(first.stream, values.data, values.data, 4);
    void* event = gpu::create_event(0);
    gpu::record(event, first.native);
    if (wait) gpu::wait(second.native, event);
    planted::add_one(second.stream, values.data, result.data, 4);
    early |= result.host(second)[0] != 2.0f;
    gpu::destroy_event(event);
  }
  return early;
}

TEST_CASE("a stream that does not wait reads too early for some seed") {
  CHECK(comes_too_early(false));
  CHECK_FALSE(comes_too_early(true));
}

TEST_CASE("events pass when their work is done, and time it") {
  OwnStream stream;
  DeviceArray<float> values(std::vector<float>(64, 0.0f), stream);
  void* before = gpu::create_event(0, true);
  void* after = gpu::create_event(0, true);
  CHECK(gpu::passed(before));  // never recorded
  gpu::synchronize(stream.native);
  gpu::record(before, stream.native);
  for (int i = 0; i < 3; ++i) planted::add_one(stream.stream, values.data, values.data, 64);
  gpu::record(after, stream.native);
  int questions = 1;
  while (!gpu::passed(after)) ++questions;
  CHECK(questions > 1);
  CHECK(questions < 10);
  CHECK(gpu::milliseconds(before, after) > 0);
  CHECK(values.host(stream)[5] == 3.0f);
  gpu::destroy_event(before);
  gpu::destroy_event(after);
}

TEST_CASE("a capture records, and its graph repeats") {
  OwnStream stream;
  DeviceArray<float> values(std::vector<float>(64, 0.0f), stream);
  gpu::synchronize(stream.native);
  const gpu::Counters start = gpu::counters();
  gpu::begin_capture(stream.native);
  planted::add_one(stream.stream, values.data, values.data, 64);
  planted::add_one(stream.stream, values.data, values.data, 64);
  void* graph = gpu::end_capture(0, stream.native);
  CHECK(values.host(stream)[0] == 0.0f);
  for (int i = 0; i < 3; ++i) gpu::launch_graph(0, graph, stream.native);
  CHECK(values.host(stream)[0] == 6.0f);
  gpu::destroy_graph(graph);
  const gpu::Counters end = gpu::counters();
  CHECK(end.captures - start.captures == 1);
  CHECK(end.graph_launches - start.graph_launches == 3);
  CHECK(end.launches - start.launches == 2);
  CHECK(end.synchronizations - start.synchronizations == 2);
}

TEST_CASE("what may not be in a capture breaks it") {
  OwnStream stream;
  DeviceArray<float> values(std::vector<float>(4, 0.0f), stream);
  std::vector<float> host(4);
  void* event = gpu::create_event(0);
  const std::vector<std::function<void()>> calls = {
      [&] { gpu::synchronize(stream.native); },
      [&] { gpu::copy(values.data, host.data(), 16, stream.native); },
      [&] { gpu::copy(host.data(), values.data, 16, stream.native); },
      [&] { static_cast<void>(gpu::passed(event)); },
      [&] { static_cast<void>(gpu::allocate(0, 16)); },
  };
  for (const auto& call : calls) {
    gpu::begin_capture(stream.native);
    CHECK_THROWS_AS(call(), DeviceError);
    CHECK_THROWS_AS(gpu::end_capture(0, stream.native), DeviceError);
    CHECK_NOTHROW(gpu::synchronize(stream.native));
  }
  gpu::begin_capture(stream.native);
  gpu::abandon_capture(stream.native);
  CHECK_NOTHROW(gpu::synchronize(stream.native));
  gpu::destroy_event(event);
}

TEST_CASE("freed memory is poisoned and no longer there") {
  OwnStream stream;
  float* data = nullptr;
  {
    DeviceArray<float> values(std::vector<float>(4, 1.0f), stream);
    data = values.data;
  }
  std::vector<float> host(4);
  CHECK_THROWS_AS(gpu::copy(host.data(), data, 16, stream.native), DeviceError);
  DeviceArray<float> again(4);
  CHECK(again.data == data);
  CHECK(std::isnan(again.host(stream)[0]));
  planted::add_one(stream.stream, data, data, 5);
  CHECK(error_of(stream).find("byte 16 of device memory of 16 bytes") != std::string::npos);
}

TEST_CASE("shapes that no device starts are refused at once") {
  OwnStream stream;
  const auto start = [&](int64_t blocks, int threads, int shared) {
    simt::launch("shape", blocks, threads, shared, stream.native, [] {});
  };
  CHECK_THROWS_AS(start(1, 1025, 0), DeviceError);
  CHECK_THROWS_AS(start(1, 0, 0), DeviceError);
  CHECK_THROWS_AS(start(1, 32, gpu::shared_bytes(0) + 16), DeviceError);
  CHECK_NOTHROW(start(1, 1024, gpu::shared_bytes(0)));
  CHECK(error_of(stream).empty());
}

}  // namespace
}  // namespace meshgrad
